//! What the operator is told of one call: metrics, and filter state for the access log, once it ended.

use crate::host;
use crate::metrics::{count, record};
use proxium_flow::RawHead;
use proxium_flow::endpoint;
use proxium_flow::message::{Headers, Response};
use proxium_flow::snapshot::{Entry, Snapshot};
use proxium_flow::told::Told;
use proxium_wire::settlement::End;
use proxium_wire::{KeyRecord, NanoUsd, Settlement, metric};

/// A call as far as it is known.
#[derive(Default)]
pub struct Observed {
    endpoint: &'static str,
    arrived_ms: u64,
    answer: Option<Answer>,
    settled: Option<Settled>,
}

struct Answer {
    status: u16,
    /// `ok`, or why there is no answer of a model.
    code: &'static str,
    headers: Headers,
}

struct Settled {
    model: String,
    provider: String,
    input_tokens: u64,
    output_tokens: u64,
    cost: NanoUsd,
}

impl Observed {
    /// A request; nothing for one that is none of proxium's.
    pub fn new(head: &RawHead, now_ms: u64) -> Option<Self> {
        let path = head.path.split_once('?').map_or(head.path.as_str(), |(path, _)| path);
        let route = endpoint::route(&head.method, path)?;
        Some(Self { endpoint: route.endpoint.name(), arrived_ms: now_ms, ..Self::default() })
    }

    /// The client is answered.
    pub fn answered(&mut self, response: Response) {
        let code = response.code.unwrap_or(if matches!(response.status, 200..=299) { "ok" } else { "provider_error" });
        self.answer = Some(Answer { status: response.status, code, headers: response.headers });
    }

    /// A stream begins.
    pub fn streams(&mut self, headers: Headers, snapshot: Option<&Snapshot>) {
        if let Some(entry) = entry_of(&headers, snapshot) {
            record(metric::FIRST_TOKEN, &operation(self.endpoint, &entry.provider.name, &entry.model.name), self.age_ms());
        }
        self.answer = Some(Answer { status: 200, code: "ok", headers });
    }

    /// What the call comes to.
    pub fn settles(&mut self, settlement: &Settlement) {
        if let Some(End::Settle(settle)) = &settlement.end {
            let output_tokens = settle.usage.output;
            self.settled = Some(Settled {
                model: settle.model.clone(),
                provider: settle.provider.clone(),
                input_tokens: settle.usage.tokens().saturating_sub(output_tokens),
                output_tokens,
                cost: NanoUsd(settle.cost_nano_usd),
            });
        }
    }

    /// The call is over.
    pub fn ended(&self, snapshot: Option<&Snapshot>) {
        let none = Headers::new();
        let (status, code, headers) = match &self.answer {
            Some(answer) => (answer.status.to_string(), answer.code, &answer.headers),
            None => ("499".to_owned(), "client_gone", &none),
        };
        count(metric::CALLS, &[("endpoint", self.endpoint), ("status", &status), ("code", code)]);
        if let Some(cache) = headers.get("x-proxium-cache") {
            count(metric::CACHE, &[("cache", cache)]);
            host::set_state("proxium.cache", cache);
        }
        if let Some(attempts) = headers.get("x-proxium-attempts") {
            host::set_state("proxium.attempts", attempts);
        }
        host::set_state("proxium.endpoint", self.endpoint);
        host::set_state("proxium.code", code);
        if let Some(settled) = &self.settled {
            self.answered_by(&settled.provider, &settled.model);
            for (kind, tokens) in [("input", settled.input_tokens), ("output", settled.output_tokens)] {
                let [operation, provider, model] = operation(self.endpoint, &settled.provider, &settled.model);
                record(metric::TOKENS, &[operation, ("gen_ai_token_type", kind), provider, model], tokens);
                host::set_state(&format!("proxium.{kind}_tokens"), &tokens.to_string());
            }
            host::set_state("proxium.cost_usd", &settled.cost.to_string());
        } else if let Some(entry) = entry_of(headers, snapshot) {
            self.answered_by(&entry.provider.name, &entry.model.name);
            if let Some(cost) = headers.get("x-proxium-cost-usd") {
                host::set_state("proxium.cost_usd", cost);
            }
        }
    }

    fn answered_by(&self, provider: &str, model: &str) {
        record(metric::DURATION, &operation(self.endpoint, provider, model), self.age_ms());
        host::set_state("proxium.provider", provider);
        host::set_state("proxium.model", model);
    }

    fn age_ms(&self) -> u64 {
        host::now_ms().saturating_sub(self.arrived_ms)
    }
}

/// OpenTelemetry's labels of an operation.
fn operation<'a>(endpoint: &'static str, provider: &'a str, model: &'a str) -> [(&'static str, &'a str); 3] {
    let name = if endpoint == "messages" { "chat" } else { endpoint };
    [("gen_ai_operation_name", name), ("gen_ai_provider_name", provider), ("gen_ai_response_model", model)]
}

fn entry_of<'a>(headers: &Headers, snapshot: Option<&'a Snapshot>) -> Option<&'a Entry> {
    snapshot?.entry(headers.get("x-proxium-model")?).map(AsRef::as_ref)
}

/// Takes what the flow tells as it happens.
pub fn told(told: Told<'_>) {
    match told {
        Told::Key(KeyRecord { project, key_id, .. }) => {
            host::set_state("proxium.project", project);
            host::set_state("proxium.key", key_id);
        }
        Told::Attempt { entry, outcome, ms } => {
            let labels = [("outcome", outcome), ("provider", entry.provider.name.as_str()), ("model", entry.model.name.as_str())];
            count(metric::ATTEMPTS, &labels);
            if !proxium_flow::stage::outcome::SKIPPED.contains(&outcome) {
                record(
                    metric::ATTEMPT,
                    &[("outcome", outcome), ("gen_ai_provider_name", &entry.provider.name), ("gen_ai_response_model", &entry.model.name)],
                    ms,
                );
            }
        }
    }
}
