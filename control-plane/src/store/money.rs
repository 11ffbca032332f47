//! The money of a call: looked up, reserved, settled or released, and never lost.

use super::answers::Answers;
use super::reservations::{Admission, Way};
use super::scripts::Scripts;
use super::{StoreError, changes, memories, name, reservations, responses, spend};
use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use proxium_wire::{
    AdmitReply, AdmitRequest, Alternative, Call, Endpoint, Hit, NanoUsd, ResponseOwner, SettleReply, SettleRequest, Settlement, Store,
    StoredAnswer, admit_reply::Outcome, settlement::End,
};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PPM: u32 = 1_000_000;

/// A fraction of what an answer cost, rounded half up.
fn charge(answer: &StoredAnswer, ppm: u32) -> NanoUsd {
    let share = i128::from(answer.cost_nano_usd.max(0)) * i128::from(ppm) + i128::from(PPM / 2);
    NanoUsd(i64::try_from(share / i128::from(PPM)).unwrap_or(i64::MAX))
}

/// A stored answer that does for a call.
#[derive(Clone)]
struct Found {
    answer: StoredAnswer,
    /// Of the alternative past the soft cap.
    of_cheaper: bool,
    /// Absent: it is the exact one.
    similarity_ppm: Option<u32>,
}

/// How the script is to decide over an alternative whose answer may be stored.
fn way<'a>(stored: Option<&'a StoredAnswer>, charge_ppm: u32, alternative: &'a Alternative) -> Way<'a> {
    match (stored, charge_ppm) {
        (None, _) => Way::Call(alternative),
        (Some(_), 0) => Way::Free,
        (Some(answer), ppm) => Way::Hit(answer, charge(answer, ppm)),
    }
}

/// Admissions and settlements. It holds nothing itself: any number of them, on any number of control planes, act as one.
#[derive(Clone)]
pub struct Money {
    redis: Client,
    scripts: Arc<Scripts>,
    answers: Arc<Answers>,
    replicas: u8,
}

// A command of Redis is a future of 7 KiB: boxed where few calls need it, so that what each call is stays small to move.

/// So long an admission or a settlement waits for its replicas.
const REPLICATION_MS: u64 = 500;

impl Money {
    /// `redis` keeps the money, `cache` the answers; they may be the same.
    #[must_use]
    pub fn new(redis: Client, cache: Client) -> Self {
        Self { redis, scripts: Arc::new(Scripts::new()), answers: Arc::new(Answers::new(cache)), replicas: 0 }
    }

    /// Answers only what so many replicas have, too (`WAIT`): less is lost when a master dies, and each call waits for its replicas. All
    /// else on the connection waits behind it.
    #[must_use]
    pub const fn replicated(mut self, replicas: u8) -> Self {
        self.replicas = replicas;
        self
    }

    /// Whether calls can be served: Redis answers, and has the functions that they need or is given them.
    ///
    /// # Errors
    /// It does not answer, or takes no functions: it is full, or may not be written to.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.scripts.load(&self.redis).await?;
        Ok(self.redis.ping(None).await?)
    }

    /// Waits until what was written for this project is on the replicas that were asked for.
    async fn on_replicas(&self, project: &str) -> Result<(), StoreError> {
        if self.replicas == 0 {
            return Ok(());
        }
        let slot = fred::util::redis_keyslot(name::prefix(project).as_bytes());
        let command = CustomCommand::new_static("WAIT", ClusterHash::Custom(slot), false);
        let args: Vec<Value> = vec![i64::from(self.replicas).into(), REPLICATION_MS.to_string().into()];
        let have: u8 = Box::pin(self.redis.custom(command, args)).await?;
        if have >= self.replicas { Ok(()) } else { Err(StoreError::NotReplicated { have, want: self.replicas }) }
    }

    /// The cached answer, or a reservation with the project's own credentials, or a refusal. The same request again is the same reservation;
    /// one whose reservation has ended is refused (with [`proxium_wire::Limit::MaxParallelCalls`] and no wait).
    ///
    /// Both alternatives are looked up, the normal one first; of two that have no free answer, the spend decides: the cheaper one counts,
    /// and its stored answer too, once spend and holds have reached the soft cap.
    ///
    /// `open` opens a sealed credential: provider, sealed text.
    ///
    /// # Errors
    /// Redis cannot answer, the project's state is missing, or `open` failed. In the last case the hold stands until it is released or due.
    pub async fn admit(
        &self,
        request: &AdmitRequest,
        open: impl Fn(&str, &str) -> Result<String, StoreError>,
    ) -> Result<AdmitReply, StoreError> {
        if request.side_call {
            return Box::pin(self.admit_side(request, open)).await;
        }
        let mut found = self.stored(request).await;
        if found.is_none() {
            if let Some(side) = self.embedding(request).await
                && let Admission::Other(Outcome::Admitted(held)) =
                    reservations::reserve(&self.redis, &self.scripts, &side, &Way::Call(&side.normal), None, &open).await?
            {
                return Ok(AdmitReply { outcome: Some(Outcome::Embed(held)) });
            }
            found = self.near(request).await;
        }
        let (charge_ppm, expires_in_ms) = match &found {
            None => (0, 0),
            Some(Found { of_cheaper: false, similarity_ppm: None, .. }) => {
                let expiry = self.answers.expires_in_ms(&request.project, &request.normal.cache_key);
                let (charge_ppm, expires_in_ms) = Box::pin(async { tokio::join!(self.charge_ppm(&request.project), expiry) }).await;
                (charge_ppm?, expires_in_ms)
            }
            Some(_) => (Box::pin(self.charge_ppm(&request.project)).await?, 0),
        };
        if let (Some(found @ Found { of_cheaper: false, .. }), 0) = (&found, charge_ppm) {
            return Ok(self.free(request, found.clone(), expires_in_ms));
        }
        let (normal, cheaper) = match &found {
            Some(found) if found.of_cheaper => (None, Some(&found.answer)),
            Some(found) => (Some(&found.answer), None),
            None => (None, None),
        };
        let normal_way = way(normal, charge_ppm, &request.normal);
        // A stored answer of the normal chain is taken past the soft cap too.
        let cheaper_way = request.soft_cap.as_ref().filter(|_| normal.is_none());
        let cheaper_way = cheaper_way.map(|alternative| way(cheaper, charge_ppm, alternative));
        let admission = reservations::reserve(&self.redis, &self.scripts, request, &normal_way, cheaper_way.as_ref(), &open).await?;
        if matches!(admission, Admission::Hit { .. } | Admission::Other(Outcome::Admitted(_))) {
            self.on_replicas(&request.project).await?;
        }
        match admission {
            Admission::Other(Outcome::Admitted(mut admitted)) => {
                if !request.previous_response_id.is_empty() {
                    let find = responses::find(&self.redis, &request.project, &request.previous_response_id);
                    admitted.previous_response = Box::pin(find).await?;
                }
                Ok(AdmitReply { outcome: Some(Outcome::Admitted(admitted)) })
            }
            Admission::Other(outcome) => Ok(AdmitReply { outcome: Some(outcome) }),
            Admission::Hit { soft_cap, rate_limit } => {
                let taken = found.filter(|found| found.of_cheaper == soft_cap);
                let taken = taken.ok_or_else(|| StoreError::Corrupt("reserve took an answer that is not stored".to_owned()))?;
                if charge_ppm == 0 {
                    return Ok(self.free(request, taken, 0));
                }
                let charged_nano_usd = charge(&taken.answer, charge_ppm).0;
                let Found { answer, similarity_ppm, .. } = taken;
                let hit = Hit { answer, charged_nano_usd, soft_cap, rate_limit: Some(rate_limit), similarity_ppm, expires_in_ms: 0 };
                Ok(AdmitReply { outcome: Some(Outcome::Hit(hit)) })
            }
        }
    }

    /// The exact answer, of the normal alternative first.
    async fn stored(&self, request: &AdmitRequest) -> Option<Found> {
        let normal = self.answers.find(&request.project, &request.normal.cache_key).await;
        if let Some(answer) = normal {
            return Some(Found { answer, of_cheaper: false, similarity_ppm: None });
        }
        let cheaper = self.answers.find(&request.project, &request.soft_cap.as_ref()?.cache_key).await;
        cheaper.map(|answer| Found { answer, of_cheaper: true, similarity_ppm: None })
    }

    /// A near answer, of the normal alternative first.
    async fn near(&self, request: &AdmitRequest) -> Option<Found> {
        let near = request.near.as_ref()?;
        let found = Box::pin(self.answers.near(&request.project, &request.normal.partition, near)).await;
        if let Some((answer, ppm)) = found {
            return Some(Found { answer, of_cheaper: false, similarity_ppm: Some(ppm) });
        }
        let found = Box::pin(self.answers.near(&request.project, &request.soft_cap.as_ref()?.partition, near)).await;
        found.map(|(answer, ppm)| Found { answer, of_cheaper: true, similarity_ppm: Some(ppm) })
    }

    /// The side call that the request asks for, where its vector could be compared with any.
    async fn embedding(&self, request: &AdmitRequest) -> Option<AdmitRequest> {
        let embed = request.embed.as_ref()?;
        let model = &embed.model;
        let call = Call {
            endpoint: Endpoint::Embeddings.into(),
            requested_model: model.clone(),
            resolved_model: model.clone(),
            ..request.call.clone()
        };
        let normal = Alternative { hold: embed.hold, providers: vec![embed.provider.clone()], ..Alternative::default() };
        Box::pin(self.answers.compares()).await.then(|| AdmitRequest {
            id: embed.id.clone(),
            call,
            normal,
            soft_cap: None,
            side_call: true,
            beside: Some(request.normal.hold),
            embed: None,
            ..request.clone()
        })
    }

    /// Holds the money of a side call, unless what it would find out is kept from an earlier one.
    async fn admit_side(
        &self,
        request: &AdmitRequest,
        open: impl Fn(&str, &str) -> Result<String, StoreError>,
    ) -> Result<AdmitReply, StoreError> {
        if let Some(answer) = self.answers.find(&request.project, &request.normal.cache_key).await {
            return Ok(AdmitReply { outcome: Some(Outcome::Hit(Hit { answer, ..Hit::default() })) });
        }
        match reservations::reserve(&self.redis, &self.scripts, request, &Way::Call(&request.normal), None, open).await? {
            Admission::Other(outcome) => Ok(AdmitReply { outcome: Some(outcome) }),
            Admission::Hit { .. } => Err(StoreError::Corrupt("reserve took an answer for a side call".to_owned())),
        }
    }

    /// What a hit costs, in parts per million of what it saved, as the project has it now.
    async fn charge_ppm(&self, project: &str) -> Result<u32, StoreError> {
        let ppm: Option<u32> = self.redis.hget(name::project(project), "cached_answer_charge").await?;
        Ok(ppm.unwrap_or(0).min(PPM))
    }

    /// Writes the record of a free hit behind the answer's back: the client need not wait for it, nor miss its answer if it fails.
    fn free(&self, request: &AdmitRequest, found: Found, expires_in_ms: u64) -> AdmitReply {
        let Found { answer, of_cheaper: soft_cap, similarity_ppm } = found;
        let (money, request, model) = (self.clone(), request.clone(), answer.model.clone());
        tokio::spawn(async move {
            if let Err(error) = reservations::hit(&money.redis, &money.scripts, &request, &model).await {
                tracing::warn!(project = request.project, %error, "a cache hit is missing in the ledger");
            }
        });
        let hit = Hit { answer, soft_cap, similarity_ppm, expires_in_ms, ..Hit::default() };
        AdmitReply { outcome: Some(Outcome::Hit(hit)) }
    }

    /// Ends reservations in their order, each once, and keeps the answers that came with them.
    ///
    /// # Errors
    /// One at least is not in Redis. The others are; send the same again.
    pub async fn settle(&self, request: &SettleRequest) -> Result<SettleReply, StoreError> {
        let mut failed = None;
        for settlement in &request.settlements {
            let mut ended = self.end(settlement).await;
            if ended.is_ok() {
                ended = self.on_replicas(&settlement.project).await;
            }
            if let Err(error) = ended {
                tracing::warn!(project = settlement.project, id = settlement.id, %error, "a settlement was not taken");
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(SettleReply {}), Err)
    }

    async fn end(&self, settlement: &Settlement) -> Result<(), StoreError> {
        match &settlement.end {
            Some(End::Settle(settle)) => {
                let new = reservations::settle(&self.redis, &self.scripts, settlement, settle).await?;
                if !settle.response_id.is_empty() {
                    let owner = ResponseOwner { provider: settle.provider.clone(), own_credential: settle.own_credential };
                    Box::pin(responses::keep(&self.redis, &settlement.project, &settle.response_id, &owner)).await?;
                }
                // Only with its first settlement: a repeated one must not bring back what was purged meanwhile.
                if let (true, Some(store)) = (new, &settle.store)
                    && let Err(error) = Box::pin(self.keep(&settlement.project, store)).await
                {
                    tracing::warn!(project = settlement.project, %error, "an answer was not stored");
                }
                Ok(())
            }
            Some(End::Release(_)) => reservations::release(&self.redis, &self.scripts, settlement).await,
            Some(End::Hits(hits)) => match reservations::hits(&self.redis, &self.scripts, settlement, hits).await {
                // They hold nothing, so nothing would get better by keeping them; filters need their room for what does.
                Err(StoreError::Unavailable(error)) if error.details().starts_with("OOM") => {
                    tracing::warn!(project = settlement.project, hits = hits.count, %error, "cache hits are missing in the ledger");
                    Ok(())
                }
                outcome => outcome,
            },
            None => {
                tracing::error!(
                    id = settlement.id,
                    "a settlement of a kind that this version does not know was dropped; upgrade the control plane first"
                );
                Ok(())
            }
        }
    }

    /// Keeps an answer; filters that may have the one before it are told. One that came of memories that were deleted meanwhile is not kept:
    /// it is looked at once it stands in the index from which a deletion takes it, so that one of the two sees the other.
    async fn keep(&self, project: &str, store: &Store) -> Result<(), StoreError> {
        if self.answers.keep(project, store).await? && store.renews {
            changes::answer_changed(&self.redis, &hex::encode(&store.cache_key)).await?;
        }
        for stamp in &store.memories {
            if memories::stamp(&self.redis, project, &stamp.end_user).await? != *stamp {
                return self.answers.drop_made_of(project, &stamp.end_user).await;
            }
        }
        Ok(())
    }

    /// Charges the due holds of all projects at their estimate, and answers how many; makes states anew that were lost. Meant for each
    /// second, on every control plane.
    ///
    /// # Errors
    /// Redis cannot answer, for one project at least; what was charged stays charged, and the next sweep goes on.
    pub async fn sweep_all(&self) -> Result<u64, StoreError> {
        let (mut charged, mut failed) = (0, None);
        let mut cursor = String::from("0");
        loop {
            let (next, projects) = self.some_projects(cursor).await?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1000.0;
            let pipeline = self.redis.pipeline();
            for project in &projects {
                let () = pipeline.zcount(name::due(project), f64::NEG_INFINITY, now).await?;
                let () = pipeline.hexists(name::state(project), "spend").await?;
            }
            let facts: Vec<u64> = if projects.is_empty() { Vec::new() } else { pipeline.all().await? };
            for (project, facts) in projects.iter().zip(facts.chunks_exact(2)) {
                let outcome = match facts {
                    [_, 0] => spend::rebuild(&self.redis, &self.scripts, project).await.map(|()| 0),
                    [due, _] if *due > 0 => reservations::expire(&self.redis, &self.scripts, project).await,
                    _ => Ok(0),
                };
                match outcome {
                    Ok(some) => charged += some,
                    // One project that cannot be swept must not keep the others waiting.
                    Err(error) => _ = failed.get_or_insert(error),
                }
            }
            if next == "0" {
                return failed.map_or(Ok(charged), Err);
            }
            cursor = next;
        }
    }

    /// Forgets ledger records of all projects that are older than this.
    ///
    /// # Errors
    /// Redis cannot answer; the next time goes on.
    pub async fn trim_ledgers(&self, retention: Duration) -> Result<(), StoreError> {
        let oldest = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(retention).as_millis().to_string();
        let mut cursor = String::from("0");
        loop {
            let (next, projects) = self.some_projects(cursor).await?;
            for project in &projects {
                let () = self.redis.xtrim(name::ledger(project), ("MINID", "~", oldest.as_str())).await?;
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Begins windows of a project anew; see [`spend::Reset`]. `false`: there is no such project.
    ///
    /// # Errors
    /// Redis cannot answer.
    pub async fn reset(&self, project: &str, reset: &spend::Reset) -> Result<bool, StoreError> {
        spend::reset(&self.redis, &self.scripts, project, reset).await
    }

    /// Adds a signed amount to a project's running month, once per id; see [`spend::Correction`]. `false`: there is no such project.
    ///
    /// # Errors
    /// Redis cannot answer, or the project's state is missing.
    pub async fn correct(&self, project: &str, correction: &spend::Correction) -> Result<bool, StoreError> {
        spend::correct(&self.redis, &self.scripts, project, correction).await
    }

    /// A page of the project ids and the cursor of the next, `0` at the end.
    async fn some_projects(&self, cursor: String) -> Result<(String, Vec<String>), StoreError> {
        let command = CustomCommand::new_static("SSCAN", ClusterHash::FirstKey, false);
        let args: Vec<Value> = vec![name::PROJECTS.into(), cursor.into(), "COUNT".into(), 500.into()];
        Ok(self.redis.custom(command, args).await?)
    }
}
