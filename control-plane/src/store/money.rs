//! The money of a call: looked up, reserved, settled or released, and never lost.

use super::answers::Answers;
use super::scripts::Scripts;
use super::{StoreError, ledger, name, reservations};
use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use proxium_wire::{AdmitReply, AdmitRequest, Hit, SettleReply, SettleRequest, Settlement, admit_reply::Outcome, settlement::End};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Admissions and settlements. It holds nothing itself: any number of them, on any number of control planes, act as one.
#[derive(Clone)]
pub struct Money {
    redis: Client,
    scripts: Arc<Scripts>,
    answers: Arc<Answers>,
}

impl Money {
    /// `redis` keeps the money, `cache` the answers; they may be the same.
    #[must_use]
    pub fn new(redis: Client, cache: Client) -> Self {
        Self { redis, scripts: Arc::new(Scripts::new()), answers: Arc::new(Answers::new(cache)) }
    }

    /// The cached answer, or a reservation with the project's own credentials, or a refusal. The same request again is the same reservation;
    /// one whose reservation has ended is refused (with [`proxium_wire::Limit::MaxParallelCalls`], which no ceiling answers yet).
    ///
    /// Only [`AdmitRequest::normal`] is read: the soft cap's alternative is looked up after it and taken by the spend, when soft caps come.
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
        if let Some(answer) = self.answers.find(&request.project, &request.normal.cache_key).await {
            self.record_hit(request, ledger::of_hit(request, &answer));
            return Ok(AdmitReply { outcome: Some(Outcome::Hit(Hit { answer, charged_nano_usd: 0 })) });
        }
        reservations::reserve(&self.redis, &self.scripts, request, open).await
    }

    /// Writes the record of a free hit behind the answer's back: the client need not wait for it, nor miss its answer if it fails.
    fn record_hit(&self, request: &AdmitRequest, record: ledger::Fields) {
        let (redis, project) = (self.redis.clone(), request.project.clone());
        tokio::spawn(async move {
            if let Err(error) = redis.xadd::<(), _, _, _, _>(name::ledger(&project), false, None, "*", record).await {
                tracing::warn!(project, %error, "a cache hit is missing in the ledger");
            }
        });
    }

    /// Ends reservations in their order, each once, and keeps the answers that came with them.
    ///
    /// # Errors
    /// One at least is not in Redis. The others are; send the same again.
    pub async fn settle(&self, request: &SettleRequest) -> Result<SettleReply, StoreError> {
        let mut failed = None;
        for settlement in &request.settlements {
            if let Err(error) = self.end(settlement).await {
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
                // Only with its first settlement: a repeated one must not bring back what was purged meanwhile.
                if let (true, Some(store)) = (new, &settle.store)
                    && let Err(error) = self.answers.keep(&settlement.project, store).await
                {
                    tracing::warn!(project = settlement.project, %error, "an answer was not stored");
                }
                Ok(())
            }
            Some(End::Release(_)) => reservations::release(&self.redis, &self.scripts, settlement).await,
            None => {
                tracing::error!(
                    id = settlement.id,
                    "a settlement of a kind that this version does not know was dropped; upgrade the control plane first"
                );
                Ok(())
            }
        }
    }

    /// Charges the due holds of all projects at their estimate; answers how many. Meant for each second, on every control plane.
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
            }
            let due: Vec<u64> = if projects.is_empty() { Vec::new() } else { pipeline.all().await? };
            for (project, _) in projects.iter().zip(due).filter(|(_, due)| *due > 0) {
                match reservations::expire(&self.redis, &self.scripts, project).await {
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

    /// A page of the project ids and the cursor of the next, `0` at the end.
    async fn some_projects(&self, cursor: String) -> Result<(String, Vec<String>), StoreError> {
        let command = CustomCommand::new_static("SSCAN", ClusterHash::FirstKey, false);
        let args: Vec<Value> = vec![name::PROJECTS.into(), cursor.into(), "COUNT".into(), 500.into()];
        Ok(self.redis.custom(command, args).await?)
    }
}
