//! Reservations: what the scripts are told and what they answer.
//!
//! A reservation is a record by an id that the filter minted: held, then settled, released or expired, and never back. Each step is one
//! script, so that any number of control planes and repeated or late messages come to the same end.

use super::args::Args;
use super::scripts::Scripts;
use super::{StoreError, ledger};
use fred::prelude::*;
use proxium_wire::{
    AdmitRequest, Admitted, Alternative, Hits, Hold, Limit, NanoUsd, OwnCredential, RateLimit, Refused, Settle, Settlement, StoredAnswer,
    Window, admit_reply::Outcome,
};

/// A script that says so holds no state for the project; no spend is assumed, see [`StoreError::Corrupt`].
pub(super) const STATE_MISSING: &str = "state_missing";

/// The windows' sums stay exact below 2^53; no call has this many tokens, and a provider that claims more is not believed.
const MAX_TOKENS: u64 = 1_000_000_000_000;

/// Amounts stay below 2^53 where a script compares them: the highest monthly cap, 9,000,000 USD, is the most one call can come to.
const MAX_NANO_USD: i64 = 9_000_000_000_000_000;

/// No hold outlives a day, whatever a filter asks.
const MAX_HOLD_MS: u64 = 86_400_000;

fn tokens(of: u64) -> i64 {
    i64::try_from(of.min(MAX_TOKENS)).unwrap_or(i64::MAX)
}

/// One way to make a call, as the script decides over it.
pub(super) enum Way<'a> {
    /// A provider is called.
    Call(&'a Alternative),
    /// The answer is stored, and charged so much.
    Hit(&'a StoredAnswer, NanoUsd),
    /// The answer is stored, and free.
    Free,
}

impl Way<'_> {
    /// Kind, tokens, money, input and output tokens, model.
    fn add_to(&self, args: Args, resolved: &str) -> Args {
        let (kind, hold, model) = match self {
            Self::Call(alternative) => {
                let own = alternative.resolved_model.as_str();
                ("call", alternative.hold, if own.is_empty() { resolved } else { own })
            }
            Self::Hit(answer, charge) => ("hit", Hold { nano_usd: charge.0, ..Hold::default() }, answer.model.as_str()),
            Self::Free => ("free", Hold::default(), ""),
        };
        args.text(kind)
            .number(tokens(hold.input_tokens.saturating_add(hold.output_tokens)))
            .number(hold.nano_usd.clamp(0, MAX_NANO_USD))
            .number(tokens(hold.input_tokens))
            .number(tokens(hold.output_tokens))
            .text(&ledger::text(model))
    }
}

/// What became of an admission.
pub(super) enum Admission {
    /// The stored answer of the alternative that was taken; `charged` if it went through the limits.
    Hit { soft_cap: bool, rate_limit: RateLimit },
    /// All else.
    Other(Outcome),
}

/// Asks for an admission, by the normal way or, past the soft cap, the cheaper one. `open` opens a sealed credential.
pub(super) async fn reserve(
    redis: &Client,
    scripts: &Scripts,
    request: &AdmitRequest,
    normal: &Way<'_>,
    cheaper: Option<&Way<'_>>,
    open: impl Fn(&str, &str) -> Result<String, StoreError>,
) -> Result<Admission, StoreError> {
    let AdmitRequest { id, project, key_id, source, call, hold_ms, side_call, .. } = request;
    let beside = request.beside.unwrap_or_default();
    let args = Args::default()
        .text(id)
        .text(key_id)
        .text(source)
        .number(tokens((*hold_ms).min(MAX_HOLD_MS)))
        .flag(*side_call)
        .text(ledger::endpoint(call))
        .text(&ledger::text(&call.requested_model))
        .text(&ledger::text(&call.end_user))
        .text(&call.started_at_ms.to_string())
        .number(tokens(beside.input_tokens.saturating_add(beside.output_tokens)))
        .number(beside.nano_usd.clamp(0, MAX_NANO_USD));
    let args = normal.add_to(args, &call.resolved_model);
    let args = match cheaper {
        Some(cheaper) => cheaper.add_to(args, ""),
        None => args.none(6),
    };
    let args = providers(request).into_iter().fold(args, Args::text);

    let mut reply = Reply(scripts.reserve.run::<Value>(redis, project, args.clone()).await?.into_array());
    // Of the key, then of the sender.
    for _ in 0..2 {
        if reply.text(0)? == "window_missing" {
            rewindow(redis, scripts, project, &reply.text(1)?, &reply.text(2)?).await?;
            reply = Reply(scripts.reserve.run::<Value>(redis, project, args.clone()).await?.into_array());
        }
    }
    Ok(Admission::Other(match reply.text(0)?.as_str() {
        "admitted" => {
            let credentials = reply
                .texts(8)?
                .chunks_exact(2)
                .filter_map(|pair| if let [provider, sealed] = pair { Some((provider, sealed)) } else { None })
                .map(|(provider, sealed)| Ok(OwnCredential { provider: provider.clone(), secret: open(provider, sealed)? }))
                .collect::<Result<_, StoreError>>()?;
            Outcome::Admitted(Admitted {
                soft_cap: reply.number(7)? == 1,
                credentials,
                rate_limit: reply.rate_limit()?,
                previous_response: None,
            })
        }
        "hit" => return Ok(Admission::Hit { soft_cap: reply.number(7)? == 1, rate_limit: reply.rate_limit()? }),
        "refused" => Outcome::Refused(Refused {
            limit: limit(&reply.text(7)?)?.into(),
            of_sender: reply.number(8)? == 1,
            retry_after_ms: u64::try_from(reply.number(9)?).ok(),
            rate_limit: reply.rate_limit()?,
        }),
        // Nobody waits for this answer: whoever ended the reservation had given it up. It must only not be an admission.
        "ended" => Outcome::Refused(Refused {
            limit: Limit::MaxParallelCalls.into(),
            of_sender: false,
            retry_after_ms: None,
            rate_limit: RateLimit { requests: None, tokens: None },
        }),
        "invalid_key" => Outcome::InvalidKey(()),
        STATE_MISSING => return Err(state_missing(project)),
        other => return Err(StoreError::Corrupt(format!("reserve answered {other}"))),
    }))
}

/// Makes the windows of a key or sender anew that were lost.
async fn rewindow(redis: &Client, scripts: &Scripts, project: &str, kind: &str, id: &str) -> Result<(), StoreError> {
    match scripts.rewindow.run::<String>(redis, project, Args::default().flag(kind == "key").text(id)).await?.as_str() {
        "done" => {
            tracing::warn!(project, kind, id, "lost windows were counted anew from the ledger");
            Ok(())
        }
        STATE_MISSING => Err(state_missing(project)),
        "too_many" => Err(StoreError::Corrupt(format!(
            "the windows of {kind} {id} of project {project} are gone, and its last hour is too long to count again: restore Redis from a \
             backup, or begin them anew with `proxium spend reset {project} --window all`"
        ))),
        other => Err(StoreError::Corrupt(format!("rewindow answered {other}"))),
    }
}

/// The providers of both alternatives, each once.
fn providers(request: &AdmitRequest) -> Vec<&str> {
    let of = |alternative: &'_ Alternative| alternative.providers.len();
    if of(&request.normal) == 0 || request.soft_cap.as_ref().is_some_and(|cheaper| of(cheaper) == 0) {
        return Vec::new();
    }
    let mut all: Vec<&str> = Vec::new();
    for provider in request.normal.providers.iter().chain(request.soft_cap.iter().flat_map(|cheaper| &cheaper.providers)) {
        if !all.contains(&provider.as_str()) {
            all.push(provider);
        }
    }
    all
}

/// Records a hit that is free, once for its id.
pub(super) async fn hit(redis: &Client, scripts: &Scripts, of: &AdmitRequest, model: &str) -> Result<(), StoreError> {
    let args = Args::default().text(&of.id).text(&of.key_id).text(&of.source).text(&ledger::text(model)).number(1);
    record_hits(redis, scripts, &of.project, args.fields(ledger::of_hit(&of.call, model))).await
}

/// Records free hits that a filter answered by itself, once for the id of their batch.
pub(super) async fn hits(redis: &Client, scripts: &Scripts, of: &Settlement, hits: &Hits) -> Result<(), StoreError> {
    let count = tokens(hits.count);
    let args = Args::default().text(&of.id).text(&of.key_id).text(&of.source).text(&ledger::text(&hits.model)).number(count);
    let args = args.fields(ledger::of_hit(&hits.call, &hits.model)).fields(vec![("hits", count.to_string())]);
    record_hits(redis, scripts, &of.project, args).await
}

async fn record_hits(redis: &Client, scripts: &Scripts, project: &str, args: Args) -> Result<(), StoreError> {
    match scripts.hits.run::<String>(redis, project, args).await?.as_str() {
        STATE_MISSING => Err(state_missing(project)),
        _ => Ok(()),
    }
}

/// Replaces the hold by what was used. `true`: recorded; `false`: it had been before, or the project is gone.
pub(super) async fn settle(redis: &Client, scripts: &Scripts, of: &Settlement, settle: &Settle) -> Result<bool, StoreError> {
    let cost = settle.cost_nano_usd.clamp(0, MAX_NANO_USD);
    if cost != settle.cost_nano_usd || settle.usage.tokens() > MAX_TOKENS {
        tracing::error!(
            project = of.project,
            id = of.id,
            "a cost or usage beyond belief was cut; check the provider's usage and its prices"
        );
    }
    let args = Args::default()
        .text(&of.id)
        .text(&of.key_id)
        .text(&of.source)
        .number(cost)
        .number(tokens(settle.usage.tokens()))
        .number(tokens(settle.usage.input))
        .number(tokens(settle.usage.output))
        .number(tokens(settle.usage.cached_input))
        .number(tokens(settle.usage.cache_write_5m.saturating_add(settle.usage.cache_write_1h)))
        .number(settle.estimated.into())
        .text(&ledger::text(&settle.model))
        .flag(of.side_call)
        .fields(ledger::of_settle(settle));
    match scripts.settle.run::<String>(redis, &of.project, args).await?.as_str() {
        "recorded" => Ok(true),
        STATE_MISSING => Err(state_missing(&of.project)),
        _ => Ok(false),
    }
}

/// Gives the hold back; nothing if it had ended.
pub(super) async fn release(redis: &Client, scripts: &Scripts, of: &Settlement) -> Result<(), StoreError> {
    match scripts.release.run::<String>(redis, &of.project, Args::default().text(&of.id)).await?.as_str() {
        STATE_MISSING => Err(state_missing(&of.project)),
        _ => Ok(()),
    }
}

/// Charges every due hold of a project at its estimate; answers how many there were.
pub(super) async fn expire(redis: &Client, scripts: &Scripts, project: &str) -> Result<u64, StoreError> {
    /// So few that no other call waits long.
    const AT_ONCE: u64 = 64;
    let mut all = 0;
    loop {
        let some: u64 = scripts.expire.run(redis, project, Args::default().number(tokens(AT_ONCE))).await?;
        all += some;
        if some < AT_ONCE {
            return Ok(all);
        }
    }
}

pub(super) fn state_missing(project: &str) -> StoreError {
    StoreError::Corrupt(format!(
        "{} is missing; nothing is admitted until it is rebuilt, which is tried each second",
        super::name::state(project)
    ))
}

fn limit(name: &str) -> Result<Limit, StoreError> {
    [Limit::MonthlyCap, Limit::CallsPerHour, Limit::RequestsPerMinute, Limit::TokensPerMinute, Limit::MaxParallelCalls]
        .into_iter()
        .find(|limit| limit.name() == name)
        .ok_or_else(|| StoreError::Corrupt(format!("reserve answered the limit {name}")))
}

/// What `reserve.lua` answers, read by position.
struct Reply(Vec<Value>);

impl Reply {
    fn part<T: FromValue>(&self, at: usize) -> Result<T, StoreError> {
        let value = self.0.get(at).cloned().unwrap_or(Value::Null);
        value.convert().map_err(|error| StoreError::Corrupt(format!("part {at} of the answer of reserve: {error}")))
    }

    fn text(&self, at: usize) -> Result<String, StoreError> {
        self.part(at)
    }

    fn number(&self, at: usize) -> Result<i64, StoreError> {
        self.part(at)
    }

    /// From there to the end.
    fn texts(&self, from: usize) -> Result<Vec<String>, StoreError> {
        (from..self.0.len()).map(|at| self.text(at)).collect()
    }

    fn window(&self, at: usize) -> Result<Option<Window>, StoreError> {
        Ok(match (self.part(at)?, self.part(at + 1)?, self.part(at + 2)?) {
            (Some(limit), Some(remaining), Some(reset_ms)) => Some(Window { limit, remaining, reset_ms }),
            _ => None,
        })
    }

    fn rate_limit(&self) -> Result<RateLimit, StoreError> {
        Ok(RateLimit { requests: self.window(1)?, tokens: self.window(4)? })
    }
}
