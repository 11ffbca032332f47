//! A stream on its way to the client: passed as it comes, metered, translated if the dialects differ, settled when it ends.

use super::attempt::{TIMER_SLACK_MS, TO_CLIENT};
use super::call::Call;
use super::outcome::timeout_outcome;
use super::record;
use crate::breaker::{Lane, Outcome};
use crate::dialect::text_tokens;
use crate::flow::{Effect, Stage, Turn};
use crate::message::{Answer, Failure};
use crate::price;
use crate::snapshot::Entry;
use crate::speaks::Speaks;
use crate::sse;
use crate::stream::{Fold, Hider, Meter, broken};
use crate::told::Told;
use crate::translate::{self, StreamTranslator};
use crate::world::World;
use proxium_wire::settlement::End;
use proxium_wire::{Attempt, Dialect, Settle, Settlement, Usage};
use std::rc::Rc;

/// A stream whose first event has come.
#[derive(Debug)]
pub struct Streaming {
    call: Box<Call>,
    entry: Rc<Entry>,
    lane: Lane,
    is_probe: bool,
    began_ms: u64,
    /// The input estimate: the body is forgotten once a stream has begun, for nobody else will be asked.
    input_tokens: u64,
    reader: sse::Reader,
    meter: Meter,
    /// For the cache; none where nothing is stored.
    fold: Option<Fold>,
    way: Way,
    /// The provider's body came to its end, whatever that end was.
    whole_body: bool,
}

/// How the provider's bytes become the client's.
#[derive(Debug)]
enum Way {
    /// As they are.
    Pass,
    /// Without the usage chunk, which the client did not ask for.
    Hide(Hider),
    /// In the client's dialect.
    Translate(Box<StreamTranslator>),
}

impl Streaming {
    /// Takes the head of a stream; its events follow.
    pub fn begin(
        call: Box<Call>,
        entry: Rc<Entry>,
        lane: Lane,
        is_probe: bool,
        began_ms: u64,
        answer: &Answer,
        dropped: &[String],
    ) -> Turn {
        let provider = entry.provider.dialect();
        let translator = StreamTranslator::new(&call.between(&entry), &call.body, call.head.arrived_ms / 1_000, call.request.include_usage);
        let way = match translator {
            Some(translator) => Way::Translate(Box::new(translator)),
            None if call.head.route.speaks == Speaks::Openai && !call.request.include_usage => Way::Hide(Hider::new()),
            None => Way::Pass,
        };
        let mut call = call;
        let input_tokens = call.input_tokens();
        call.body.forget();
        call.attempts.push(Attempt { model: entry.model.name.clone(), outcome: "ok".into(), ms: 0 });
        let mut headers = record::answer_headers(&call, &entry, dropped);
        headers.copy_allowed(&answer.headers, TO_CLIENT);
        let fold = call.cache.map(|_| Fold::new(provider, record::MAX_STORED_BYTES));
        let streaming = Self {
            call,
            entry,
            lane,
            is_probe,
            began_ms,
            input_tokens,
            reader: sse::Reader::new(),
            meter: Meter::new(provider),
            fold,
            way,
            whole_body: false,
        };
        Turn::wait(Stage::Streaming(Box::new(streaming)), Effect::StreamHead(headers))
    }

    /// Takes bytes of the provider; gives those for the client, or nothing: they go as they are.
    pub fn chunk(&mut self, bytes: &[u8], end: bool) -> Option<Vec<u8>> {
        let Self { reader, meter, fold, way, .. } = self;
        let held = matches!(way, Way::Hide(hider) if hider.holds());
        // Who wants no more of an event than its cost need not read one that is like the one before.
        let only_meters = fold.is_none() && !matches!(way, Way::Translate(_));
        let (mut rest, mut out) = (bytes, Vec::new());
        loop {
            if only_meters && reader.between_events() {
                let alike = taken(&mut rest, |rest| *rest = meter.skip(rest)).1;
                if let Way::Hide(hider) = way {
                    hider.pass(alike, &mut out);
                }
            }
            let (event, read) = taken(&mut rest, |rest| reader.read(rest));
            if let Way::Hide(hider) = way {
                hider.push(read, &mut out);
            }
            let Some(event) = event else { break };
            take(event, meter, fold.as_mut(), way, &mut out);
        }
        let mid_event = end && reader.mid_event();
        if end {
            if let Some(event) = reader.finish() {
                take(&event, meter, fold.as_mut(), way, &mut out);
            }
            meter.finish();
            self.whole_body = true;
        }
        // A translator ends a broken stream itself.
        let broken = (end && !self.meter.ended() && !self.meter.failed()).then(|| broken(self.call.head.route.speaks));
        match &mut self.way {
            Way::Pass if broken.is_none() => return None,
            Way::Pass => out.extend_from_slice(bytes),
            Way::Hide(hider) => {
                if end {
                    out.extend(hider.finish());
                }
                // Nothing was added, so as many bytes are the same bytes.
                if broken.is_none() && !held && out.len() == bytes.len() {
                    return None;
                }
            }
            Way::Translate(translator) => {
                if end {
                    translator.finish(&mut out);
                }
                return Some(out);
            }
        }
        if let Some(broken) = broken {
            if mid_event && matches!(self.way, Way::Pass) {
                out.extend_from_slice(b"\n\n");
            }
            out.extend(broken);
        }
        Some(out)
    }

    /// Settles what came, however the stream ended.
    pub fn settle(mut self, by_client: bool, world: &impl World) -> Option<Settlement> {
        let now_ms = world.now_ms();
        let ended = self.meter.ended();
        let lasted_ms = now_ms.saturating_sub(self.began_ms);
        // Envoy cuts a stream at its deadline without a word.
        let late = !self.whole_body && self.call.deadline.left_ms(now_ms) <= TIMER_SLACK_MS;
        let (word, outcome) = match (ended && !self.meter.failed(), by_client) {
            (true, _) => ("ok", Outcome::Success),
            (false, true) => ("abandoned", Outcome::Nothing),
            (false, false) if late => (Failure::Timeout.name(), timeout_outcome(lasted_ms, self.entry.model.timeout_ms)),
            (false, false) => ("stream_broken", Outcome::Failure),
        };
        world.report(&self.lane, outcome, self.is_probe);
        world.tell(Told::Attempt { entry: &self.entry, outcome: word, ms: lasted_ms });
        if let Some(attempt) = self.call.attempts.last_mut() {
            (attempt.outcome, attempt.ms) = (word.into(), lasted_ms);
        }
        let (usage, estimated) = self.usage();
        let cost = price::cost(&usage, &self.entry.model.prices);
        let whole = self.fold.take().filter(|_| self.meter.complete()).and_then(Fold::finish).and_then(|unary| {
            translate::answer(&self.call.between(&self.entry), &self.call.body, unary, self.call.head.arrived_ms / 1_000)
        });
        let settle = Settle {
            usage,
            cost_nano_usd: cost.0,
            estimated,
            abandoned: !ended && (by_client || (late && self.call.deadline.is_callers())),
            store: record::store(&self.call, &self.entry, cost, whole.as_ref(), world),
            response_id: self.meter.response_id().to_owned(),
            ..record::ended(&self.call, &self.entry, now_ms)
        };
        self.call.settlement(End::Settle(Box::new(settle)))
    }

    /// The tokens, and whether they are an estimate. Anthropic tells the input at the start and the output at the end only: a stream cut
    /// between is estimated by what was generated.
    fn usage(&self) -> (Usage, bool) {
        let generated = text_tokens(self.meter.generated_bytes());
        match self.meter.usage() {
            Some(usage) if !self.meter.ended() && self.entry.provider.dialect() == Dialect::Anthropic && usage.output < generated => {
                (Usage { output: generated, ..usage }, true)
            }
            Some(usage) => (usage, false),
            None => (Usage { input: self.input_tokens, output: generated, ..Usage::default() }, true),
        }
    }
}

/// Lets `take` step over some of these bytes; its outcome, and what it stepped over.
fn taken<'a, T>(bytes: &mut &'a [u8], take: impl FnOnce(&mut &'a [u8]) -> T) -> (T, &'a [u8]) {
    let before = *bytes;
    let outcome = take(bytes);
    (outcome, before.get(..before.len().saturating_sub(bytes.len())).unwrap_or_default())
}

/// An event, for everybody who wants it whole.
fn take(event: &sse::Event, meter: &mut Meter, fold: Option<&mut Fold>, way: &mut Way, out: &mut Vec<u8>) {
    meter.event(event);
    if let Some(fold) = fold {
        fold.event(event);
    }
    if let Way::Translate(translator) = way {
        translator.event(event, out);
    }
}
