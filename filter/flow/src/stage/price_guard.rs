//! Which entries of a plan are too dear: for the caller, by `x-proxium-max-cost-usd`, or as failovers, by the catalog's price guard.
//!
//! What counts is the worst case of this very call on an entry, as it is held: cheap input with dear output is not cheap for every call.

use super::call::Call;
use super::reserve::worst;
use crate::refusal::Refusal;
use crate::request::MAX_COST;
use crate::snapshot::Entry;
use proxium_wire::NanoUsd;
use std::rc::Rc;

const PPM: i128 = 1_000_000;

/// The entries of a plan that are not too dear. The guard compares with the first entry that the caller can pay.
///
/// # Errors
/// A 400: every entry may cost more than the caller wants.
pub fn affordable(call: &Call, plan: Vec<Rc<Entry>>) -> Result<Vec<Rc<Entry>>, Refusal> {
    let guard = call.snapshot.catalog.max_failover_ratio_ppm;
    if call.controls.max_cost.is_none() && guard.is_none() {
        return Ok(plan);
    }
    let priced: Vec<(NanoUsd, Rc<Entry>)> = plan.into_iter().map(|entry| (worst(call, &entry), entry)).collect();
    let cheapest = priced.iter().map(|(worst, _)| *worst).min();
    let most = call.controls.max_cost.unwrap_or(NanoUsd(i64::MAX));
    let mut payable = priced.into_iter().filter(|(worst, _)| *worst <= most);
    let Some((first, entry)) = payable.next() else {
        let cheapest = cheapest.unwrap_or_default();
        return Err(Refusal::invalid(
            MAX_COST,
            format!(
                "Every model for this call may cost more than {most} USD, at least {cheapest} USD. Raise `{MAX_COST}`, ask for fewer output tokens, or \
                 name a cheaper model."
            ),
        ));
    };
    let near = |worst: NanoUsd| guard.is_none_or(|ppm| i128::from(worst.0) * PPM <= i128::from(first.0) * i128::from(ppm));
    Ok(std::iter::once(entry).chain(payable.filter(|(worst, _)| near(*worst)).map(|(_, entry)| entry)).collect())
}
