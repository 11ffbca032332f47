//! A call on its way through the stages.

use super::near::Comparing;
use super::outcome::SKIPPED;
use super::{attempt, classify, lookup, rank, recall, reserve, resolve, route, side};
use crate::cache_key::CacheScope;
use crate::deadline::Deadline;
use crate::dialect::{NOT_IN_CACHE_KEY, Request, input_tokens, text_tokens};
use crate::endpoint::StageName;
use crate::flow::{Effect, Turn};
use crate::json::Document;
use crate::message::{Answer, Headers};
use crate::refusal::Refusal;
use crate::request::{Controls, Head};
use crate::snapshot::{Entry, Snapshot};
use crate::speaks::Speaks;
use crate::translate::Between;
use crate::world::{KeyHash, World};
use proxium_wire::{Admitted, Attempt, KeyRecord, Release, Settlement, settlement};
use std::rc::Rc;

/// A call whose key is good and whose body is not read yet.
#[derive(Debug)]
pub struct Opened {
    /// The head.
    pub head: Head,
    /// Its `x-proxium-*` headers.
    pub controls: Controls,
    /// The key's SHA-256.
    pub key_hash: KeyHash,
    /// The key.
    pub key: Rc<KeyRecord>,
    /// The catalog this call keeps to its end.
    pub snapshot: Rc<Snapshot>,
}

impl Opened {
    /// The catalog's limit.
    #[must_use]
    pub fn max_body_bytes(&self) -> u64 {
        self.snapshot.catalog.limits.max_body_bytes
    }
}

/// A call whose body is read. The later members are filled by the stage that decides them.
#[derive(Debug)]
pub struct Call {
    /// The head.
    pub head: Head,
    /// Its `x-proxium-*` headers.
    pub controls: Controls,
    /// The key's SHA-256.
    pub key_hash: KeyHash,
    /// The key.
    pub key: Rc<KeyRecord>,
    /// The catalog this call keeps to its end.
    pub snapshot: Rc<Snapshot>,
    /// The body.
    pub body: Document,
    /// What proxium acts on in it.
    pub request: Request,
    /// What is wrong with the body, told by *resolve* where the limits are asked first.
    pub fault: Option<Refusal>,
    /// By when the plan must have answered.
    pub deadline: Deadline,
    /// *Recall*: what was added to the body; `None`: nothing was asked for.
    pub recalled: Option<recall::Recalled>,
    /// *Recall*: more memories than fit, while it is decided which are taken.
    pub choice: Option<rank::Choice>,
    /// *Classify*: the tier that stands for `auto`.
    pub tier: Option<String>,
    /// *Resolve*: the plan, at most four entries.
    pub plan: Vec<Rc<Entry>>,
    /// *Resolve*: the plan past the project's soft cap; empty: there is none.
    pub soft_cap_plan: Vec<Rc<Entry>>,
    /// *Reserve*: the soft cap's plan was taken.
    pub soft_cap: bool,
    /// *Lookup*: where answers are cached; `None`: neither read nor written.
    pub cache: Option<CacheScope>,
    /// *Reserve*: when it was asked for.
    pub asked_ms: u64,
    /// *Reserve*: it was asked for twice, and one of them may be done after the call is over.
    pub asked_again: bool,
    /// *Lookup*: where near answers are sought; `None`: they are not.
    pub comparing: Option<Comparing>,
    /// *Reserve*: the admission that is asked for may hold an embedding's money instead.
    pub embeds: bool,
    /// Side calls that were made; recorded once the call is let in.
    pub side_calls: Vec<Settlement>,
    /// *Reserve*: the admission; `None` before it, and without a control plane (`allow`).
    pub admitted: Option<Admitted>,
    /// *Attempt*: what was tried.
    pub attempts: Vec<Attempt>,
    /// *Attempt*: the last entry that the caller's own deadline ended after the request was sent.
    pub cut_by_caller: Option<Rc<Entry>>,
    /// *Attempt*: the smallest wait that a provider, rest or breaker named.
    pub retry_after_ms: Option<u64>,
    /// *Attempt*: the last entry's own 404, in the client's dialect.
    pub not_found: Option<Answer>,
    /// *Attempt*: why an entry's dialect cannot carry this call.
    pub cannot_carry: Option<Refusal>,
    /// Stages still to pass.
    stages: &'static [StageName],
}

impl Call {
    /// Reads the body and goes on to the first stage after authentication.
    pub fn begin(opened: Opened, body: Vec<u8>, world: &impl World) -> Turn {
        let Opened { head, controls, key_hash, key, snapshot } = opened;
        let bytes = body.len() as u64;
        let read = Document::read(body, NOT_IN_CACHE_KEY)
            .map_err(Refusal::from)
            .and_then(|body| (head.route.request)(&body).map(|request| (body, request)));
        let (body, request, fault) = match read {
            Ok((body, request)) => (body, request, None),
            Err(fault) if head.route.reserves_first() => {
                (Document::default(), Request { least_input_tokens: text_tokens(bytes), ..Request::default() }, Some(fault))
            }
            Err(refusal) => return Turn::refuse(&refusal, head.route.dialect, &head.request_id),
        };
        let limits = &snapshot.catalog.limits;
        let deadline = Deadline::new(head.arrived_ms, controls.timeout_ms, limits.default_timeout_ms, limits.max_timeout_ms);
        let stages = head.route.stages.strip_prefix(&[StageName::Authenticate]).unwrap_or(head.route.stages);
        let call = Self {
            head,
            controls,
            key_hash,
            key,
            snapshot,
            body,
            request,
            fault,
            deadline,
            recalled: None,
            choice: None,
            tier: None,
            comparing: None,
            embeds: false,
            side_calls: Vec::new(),
            plan: Vec::new(),
            soft_cap_plan: Vec::new(),
            soft_cap: false,
            cache: None,
            asked_ms: 0,
            asked_again: false,
            admitted: None,
            attempts: Vec::new(),
            cut_by_caller: None,
            retry_after_ms: None,
            not_found: None,
            cannot_carry: None,
            stages,
        };
        Box::new(call).next(world)
    }

    /// Goes on to the next stage of the endpoint's table.
    pub fn next(mut self: Box<Self>, world: &impl World) -> Turn {
        let Some((stage, rest)) = self.stages.split_first() else { return Turn::done(Vec::new()) };
        self.stages = rest;
        match stage {
            StageName::Authenticate | StageName::Record | StageName::List => self.next(world),
            StageName::Recall => recall::enter(self, world),
            StageName::Classify => classify::enter(self, world),
            StageName::Resolve => resolve::enter(self, world),
            StageName::Lookup => lookup::enter(self, world),
            StageName::Reserve => reserve::enter(self, world),
            StageName::Attempt if route::applies(&self, world) => route::enter(self, world),
            StageName::Attempt => attempt::run(self, 0, world),
        }
    }

    /// Who the client and an entry's provider are to each other.
    #[must_use]
    pub fn between<'a>(&'a self, entry: &'a Entry) -> Between<'a> {
        let route = &self.head.route;
        Between {
            client: route.speaks,
            provider: Speaks::of(&entry.provider, route),
            model: &entry.model.upstream,
            request_id: &self.head.request_id,
        }
    }

    /// Goes on with the plan past the soft cap.
    pub fn take_soft_cap_plan(&mut self) {
        self.plan = std::mem::take(&mut self.soft_cap_plan);
        self.soft_cap = true;
    }

    /// The end user's tag: the header, else the body's.
    #[must_use]
    pub fn end_user(&self) -> &str {
        if self.controls.end_user.is_empty() { &self.request.user } else { &self.controls.end_user }
    }

    /// The body is not the client's any more.
    #[must_use]
    pub fn body_was_changed(&self) -> bool {
        self.recalled.as_ref().is_some_and(|recalled| recalled.count > 0)
    }

    /// What the ledger is told of the call before it is made.
    #[must_use]
    pub fn facts(&self) -> proxium_wire::Call {
        proxium_wire::Call {
            endpoint: self.head.route.endpoint.into(),
            requested_model: self.request.model.clone(),
            resolved_model: self.plan.first().map(|entry| entry.model.name.clone()).unwrap_or_default(),
            end_user: self.end_user().chars().take(256).collect(),
            started_at_ms: self.head.arrived_ms,
        }
    }

    /// Ends the call's reservation; `None` where the endpoint makes none.
    #[must_use]
    pub fn settlement(&self, end: settlement::End) -> Option<Settlement> {
        self.head.route.reserves().then(|| Settlement {
            id: self.head.request_id.clone(),
            project: self.key.project.clone(),
            key_id: self.key.key_id.clone(),
            source: self.controls.source.clone(),
            end: Some(end),
            side_call: false,
        })
    }

    /// Gives the reservation back whole, whether or not it was ever made.
    #[must_use]
    pub fn release(&self) -> Option<Settlement> {
        self.settlement(settlement::End::Release(Release {}))
    }

    /// Gives back what is reserved by now: nothing where that is still to come.
    #[must_use]
    pub fn given_back(&self) -> Option<Settlement> {
        if self.stages.contains(&StageName::Reserve) { None } else { self.release() }
    }

    /// The input tokens as estimated.
    #[must_use]
    pub fn input_tokens(&self) -> u64 {
        input_tokens(&self.body).max(self.request.least_input_tokens)
    }

    /// Refuses the call where nothing is owed.
    #[must_use]
    pub fn refuse(&self, refusal: &Refusal) -> Turn {
        self.refuse_after(refusal, None)
    }

    /// Refuses the call; what is owed is posted first.
    #[must_use]
    pub fn refuse_after(&self, refusal: &Refusal, owed: Option<Settlement>) -> Turn {
        let mut response = refusal.response(self.head.route.dialect, &self.head.request_id);
        if let Some(admitted) = &self.admitted {
            crate::refusal::add_rate_limit(&mut response.headers, &admitted.rate_limit);
        }
        let released = self.side_calls.iter().map(|side| Settlement { end: Some(settlement::End::Release(Release {})), ..side.clone() });
        let embedding = self.embeds.then(|| side::release(self, side::Purpose::Embed));
        let beside = released.chain(embedding).map(Effect::PostSide);
        Turn::done(owed.map(Effect::Post).into_iter().chain(beside).chain([Effect::Respond(response)]).collect())
    }

    /// The call is let in: what was paid beside it is its project's, and what was only held is not.
    pub fn record_side_calls(&mut self) -> Vec<Effect> {
        let embedding = std::mem::take(&mut self.embeds).then(|| side::release(self, side::Purpose::Embed));
        std::mem::take(&mut self.side_calls).into_iter().chain(embedding).map(Effect::PostSide).collect()
    }

    /// `x-proxium-cache` of an answer that a provider gave.
    #[must_use]
    pub const fn cache_label(&self) -> &'static str {
        if self.cache.is_some() { "miss" } else { "bypass" }
    }

    /// The headers that every answer of a model has.
    #[must_use]
    pub fn answer_headers(&self, model: &str, cache: &str) -> Headers {
        let sent = self.attempts.iter().filter(|attempt| !SKIPPED.contains(&attempt.outcome.as_str())).count();
        let mut headers = Headers::new();
        headers.add("x-proxium-request-id", self.head.request_id.as_str());
        headers.add("x-proxium-model", model);
        headers.add("x-proxium-cache", cache);
        headers.add("x-proxium-attempts", sent.to_string());
        if self.soft_cap {
            headers.add("x-proxium-soft-cap", "true");
        }
        if let Some(tier) = &self.tier {
            headers.add("x-proxium-tier", tier.as_str());
        }
        if let Some(recalled) = &self.recalled {
            headers.add("x-proxium-memories", recalled.count.to_string());
        }
        if let Some(admitted) = &self.admitted {
            crate::refusal::add_rate_limit(&mut headers, &admitted.rate_limit);
        }
        headers
    }
}
