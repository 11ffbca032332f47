//! Which models, in which order: sender rule, key rule, project chain, default chain; the first level with a match wins.

use super::call::Call;
use super::price_guard::affordable;
use crate::flow::Turn;
use crate::refusal::Refusal;
use crate::snapshot::{Entry, Snapshot};
use crate::speaks::Speaks;
use crate::world::World;
use proxium_wire::{Endpoint, KeyRecord, Rules};
use std::rc::Rc;

/// A plan has at most so many entries.
pub const MAX_ENTRIES: usize = 4;

/// Decides the plan, and the cheaper one past the project's soft cap.
pub fn enter(mut call: Box<Call>, world: &impl World) -> Turn {
    if let Some(fault) = call.fault.take() {
        return refuse(&call, &fault);
    }
    let requested = call.tier.as_deref().unwrap_or(&call.request.model);
    let models = models(&call, requested);
    if models.is_empty() {
        return refuse(&call, &Refusal::ModelNotFound(requested.to_owned()));
    }
    let models = match of_previous(&call, models) {
        Ok(models) => models,
        Err(refusal) => return refuse(&call, &refusal),
    };
    let plan = plan(&call, models);
    if plan.is_empty() {
        return refuse(&call, &Refusal::ModelNotAllowed(requested.to_owned()));
    }
    match affordable(&call, plan) {
        Ok(plan) => call.plan = plan,
        Err(refusal) => return refuse(&call, &refusal),
    }
    call.soft_cap_plan = soft_cap_plan(&call);
    call.next(world)
}

/// A response is gone on from at the provider that keeps it, on the account that made it; nobody else knows it.
fn of_previous(call: &Call, models: Vec<Rc<Entry>>) -> Result<Vec<Rc<Entry>>, Refusal> {
    let previous = &call.request.previous_response_id;
    if previous.is_empty() {
        return Ok(models);
    }
    let admitted = call.admitted.as_ref().ok_or(Refusal::ControlPlaneUnavailable)?;
    let owner = admitted.previous_response.as_ref();
    let owner = owner.filter(|owner| owner.own_credential == call.owns_credential(&owner.provider));
    let owner = owner.ok_or_else(|| Refusal::ResponseNotFound(previous.clone()))?;
    let keeps =
        |entry: &Rc<Entry>| entry.provider.name == owner.provider && Speaks::of(&entry.provider, &call.head.route) == Speaks::Responses;
    let models: Vec<_> = models.into_iter().filter(keeps).collect();
    if models.is_empty() {
        let why = "`previous_response_id` names a response that none of this model's providers made. Name the model that made it.";
        return Err(Refusal::invalid("previous_response_id", why));
    }
    Ok(models)
}

fn refuse(call: &Call, refusal: &Refusal) -> Turn {
    call.refuse_after(refusal, call.given_back())
}

/// The plan that a name stands for.
pub(super) fn plan_for(call: &Call, requested: &str) -> Vec<Rc<Entry>> {
    plan(call, models(call, requested))
}

fn models(call: &Call, requested: &str) -> Vec<Rc<Entry>> {
    let chain = chain(&call.key, &call.controls.source, &call.snapshot, requested);
    entries(&call.snapshot, &chain).filter(|entry| entry.serves(call.head.route.endpoint)).collect()
}

/// The plan past the soft cap: empty where there is none, where the key may use none of it, and for other endpoints than chat and messages.
fn soft_cap_plan(call: &Call) -> Vec<Rc<Entry>> {
    let endpoint = call.head.route.endpoint;
    if !matches!(endpoint, Endpoint::Chat | Endpoint::Messages) {
        return Vec::new();
    }
    let chain = &call.key.project_record.soft_cap_chain;
    let models = entries(&call.snapshot, chain).filter(|entry| entry.serves(endpoint)).collect();
    affordable(call, plan(call, models)).unwrap_or_default()
}

/// The first entries that the key may use, each once.
fn plan(call: &Call, models: Vec<Rc<Entry>>) -> Vec<Rc<Entry>> {
    let mut plan: Vec<Rc<Entry>> = Vec::new();
    for entry in models.into_iter().filter(|entry| allowed(&call.key, &entry.model.name)) {
        if plan.len() < MAX_ENTRIES && !plan.contains(&entry) {
            plan.push(entry);
        }
    }
    plan
}

/// The key may use this catalog model.
pub(super) fn allowed(key: &KeyRecord, model: &str) -> bool {
    key.allowed_models.is_empty() || key.allowed_models.iter().any(|allowed| allowed == model)
}

/// The names of the chain for `requested`; a catalog model that no level matches is a chain of itself.
pub(super) fn chain(key: &KeyRecord, source: &str, snapshot: &Snapshot, requested: &str) -> Vec<String> {
    let project = &key.project_record;
    let rules = [project.sender_rules.get(source), Some(&key.rules), Some(&project.rules)];
    let by_rule = rules.into_iter().flatten().find_map(|rules| matching(rules, requested));
    let by_default = || snapshot.chain(requested).or_else(|| snapshot.chain("*"));
    by_rule.or_else(by_default).map_or_else(|| vec![requested.to_owned()], <[String]>::to_vec)
}

fn matching<'a>(rules: &'a Rules, requested: &str) -> Option<&'a [String]> {
    rules.chains.get(requested).or_else(|| rules.chains.get("*")).map(|chain| chain.names.as_slice())
}

/// The models that the names stand for; a rule may name a default chain. A name gone from the catalog stands for nothing.
pub(super) fn entries(snapshot: &Snapshot, names: &[String]) -> impl Iterator<Item = Rc<Entry>> {
    names.iter().flat_map(|name| match snapshot.entry(name) {
        Some(entry) => vec![entry.clone()],
        None => snapshot.chain(name).unwrap_or_default().iter().filter_map(|model| snapshot.entry(model)).cloned().collect(),
    })
}
