//! Which models, in which order: sender rule, key rule, project chain, default chain; the first level with a match wins.

use super::call::Call;
use crate::flow::Turn;
use crate::refusal::Refusal;
use crate::snapshot::{Entry, Snapshot};
use crate::world::World;
use proxium_wire::{KeyRecord, Rules};
use std::rc::Rc;

/// A plan has at most so many entries.
pub const MAX_ENTRIES: usize = 4;

/// Decides the plan.
pub fn enter(mut call: Box<Call>, world: &impl World) -> Turn {
    let requested = call.request.model.as_str();
    let chain = chain(&call.key, &call.controls.source, &call.snapshot, requested);
    let route = call.head.route;
    let models: Vec<Rc<Entry>> = entries(&call.snapshot, &chain).filter(|entry| entry.serves(route.endpoint, route.dialect)).collect();
    if models.is_empty() {
        return call.refuse(&Refusal::ModelNotFound(requested.to_owned()));
    }
    let allowed = |entry: &Rc<Entry>| call.key.allowed_models.is_empty() || call.key.allowed_models.contains(&entry.model.name);
    let mut plan: Vec<Rc<Entry>> = Vec::new();
    for entry in models.into_iter().filter(allowed) {
        if plan.len() < MAX_ENTRIES && !plan.contains(&entry) {
            plan.push(entry);
        }
    }
    if plan.is_empty() {
        return call.refuse(&Refusal::ModelNotAllowed(requested.to_owned()));
    }
    call.plan = plan;
    call.next(world)
}

/// The names of the chain for `requested`; a catalog model that no level matches is a chain of itself.
fn chain(key: &KeyRecord, source: &str, snapshot: &Snapshot, requested: &str) -> Vec<String> {
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
fn entries(snapshot: &Snapshot, names: &[String]) -> impl Iterator<Item = Rc<Entry>> {
    names.iter().flat_map(|name| match snapshot.entry(name) {
        Some(entry) => vec![entry.clone()],
        None => snapshot.chain(name).unwrap_or_default().iter().filter_map(|model| snapshot.entry(model)).cloned().collect(),
    })
}
