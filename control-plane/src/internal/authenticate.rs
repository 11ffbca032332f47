//! Whose key is this?

use super::{Failure, State};
use crate::store::keys::{self, Identity};
use crate::store::record::Rules;
use axum::body::Bytes;
use prost::Message;
use proxium_wire::{AuthenticateReply, AuthenticateRequest, KeyRecord, Names, ProjectRecord};

/// Answers the record of a key, or none. A revoked or expired key is told too: the filter checks both at each use.
pub(super) async fn answer(state: &State, body: Bytes) -> Result<Vec<u8>, Failure> {
    let request = AuthenticateRequest::decode(body)?;
    let found = keys::identify(&state.redis, &hex::encode(&request.key_hash)).await?;
    Ok(AuthenticateReply { key: found.map(record) }.encode_to_vec())
}

fn record(found: Identity) -> KeyRecord {
    let expires_at_ms = found.key.expires_at_ms();
    KeyRecord {
        key_id: found.key_id,
        project: found.project_id,
        expires_at_ms,
        revoked: found.key.revoked,
        allowed_models: found.key.allowed_models,
        rules: rules(found.key.rules),
        project_record: ProjectRecord {
            rules: rules(found.project.rules),
            sender_rules: found
                .senders
                .into_iter()
                .filter(|(_, sender)| !sender.rules.is_empty())
                .map(|(source, sender)| (source, rules(sender.rules)))
                .collect(),
            exact_cache: found.project.cache.exact,
            cache_ttl_s: found.project.cache.ttl_s,
            own_credentials: found.own_credentials,
            cached_answer_charge_ppm: found.project.cached_answer_charge.0,
            // Without a soft cap nothing is ever past it.
            memory: found.project.memory,
            auto_classify: found.project.auto_classify,
            near_threshold_ppm: found.project.cache.near.enabled.then_some(found.project.cache.near.threshold.0),
            soft_cap_chain: found.project.soft_cap.map(|_| found.project.soft_cap_chain).unwrap_or_default(),
        },
    }
}

fn rules(rules: Rules) -> proxium_wire::Rules {
    proxium_wire::Rules { chains: rules.into_iter().map(|(name, names)| (name, Names { names })).collect() }
}
