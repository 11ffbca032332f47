//! The root context of a worker: plugin configuration, snapshot poll, outbox drain.

use crate::breakers;
use crate::downstream::Downstream;
use crate::group::Group;
use crate::handover;
use crate::host::{self, Metric};
use crate::metrics::ControlCall;
use crate::upstream::Upstream;
use crate::vm::{Host, Vm};
use proxium_flow::config::Config;
use proxium_flow::control_plane::{TIMEOUT_MS, callout, read};
use proxium_flow::world::World;
use proxium_wire::{SettleReply, SnapshotReply, SnapshotRequest, metric, path};
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;
use std::rc::Rc;

const TICK_MS: u64 = 50;
const POLL_MS: u64 = 1_000;
/// So many batches a tick drain 25,000 settlements a second.
const BATCHES_A_TICK: usize = 20;

/// One root context.
#[derive(Default)]
pub struct Root {
    is_upstream: bool,
    host: Option<Rc<Host>>,
    poll: Option<(u32, Option<ControlCall>)>,
    next_poll_ms: u64,
    next_gauges_ms: u64,
    metrics: Option<Metrics>,
}

struct Metrics {
    pending: Metric,
    given_up: Metric,
}

impl Root {
    fn poll(&mut self, host: &Host, now_ms: u64) {
        if self.poll.is_some() || now_ms < self.next_poll_ms {
            return;
        }
        self.next_poll_ms = now_ms.saturating_add(POLL_MS);
        let (catalog_revision, cursor) = host.vm.known_revision();
        let breakers = breakers::not_closed();
        let node = if breakers.is_empty() { String::new() } else { breakers::envoy_id() };
        let request = SnapshotRequest { catalog_revision, cursor, breakers, node };
        let callout = callout(&host.config, path::SNAPSHOT, None, &request, TIMEOUT_MS);
        self.poll = host::dispatch(&callout).map(|token| (token, ControlCall::of(&callout, &host.config.control_plane_cluster)));
    }

    fn tell_breakers(&mut self, host: &Host, now_ms: u64) {
        if let Some(snapshot) = host.snapshot().filter(|_| now_ms >= self.next_gauges_ms) {
            self.next_gauges_ms = now_ms.saturating_add(POLL_MS);
            breakers::tell(snapshot.all().map(|entry| entry.provider.name.as_str()), now_ms);
        }
    }

    fn drain(&self, host: &Host, now_ms: u64) {
        host.vm.tell_hits(now_ms, false);
        for _ in 0..BATCHES_A_TICK {
            let Some((request, ids)) = host.vm.outbox.borrow_mut().batch(now_ms) else { break };
            match host::dispatch(&callout(&host.config, path::SETTLE, None, &request, TIMEOUT_MS)) {
                Some(token) => host.vm.outbox.borrow_mut().sent(token, ids),
                None => {
                    let given_up = host.vm.outbox.borrow_mut().failed(ids, now_ms);
                    self.tell_given_up(&given_up);
                    break;
                }
            }
        }
        self.tell_pending(host);
    }

    /// The gauge is one for all workers: each adds what changed in its VM.
    fn tell_pending(&self, host: &Host) {
        if let Some(metrics) = &self.metrics {
            let pending = host.vm.outbox.borrow().len() as i64;
            metrics.pending.add(pending - host.vm.told_pending.replace(pending));
        }
    }

    /// Takes over what a VM left that ended.
    fn inherit(host: &Host, now_ms: u64) {
        for settlement in handover::take(&host.config.control_plane_cluster) {
            host.vm.outbox.borrow_mut().post(settlement, now_ms);
        }
    }

    fn tell_given_up(&self, ids: &[String]) {
        for id in ids {
            log::error!("settlement {id} was not acknowledged for an hour and is given up; its hold is charged at its estimate");
            if let Some(metrics) = &self.metrics {
                metrics.given_up.increment();
            }
        }
    }
}

impl Context for Root {
    /// After the last stream of this context. Its VM may end with it: a new filter has VMs of its own.
    fn on_done(&mut self) -> bool {
        host::awake();
        if let Some(host) = &self.host {
            host.vm.tell_hits(host::now_ms(), true);
            handover::leave(&host.config.control_plane_cluster, &host.vm.outbox.borrow_mut().leave());
            self.tell_pending(host);
        }
        true
    }

    fn on_http_call_response(&mut self, token: u32, num_headers: usize, body_size: usize, _num_trailers: usize) {
        host::awake();
        let Some(host) = self.host.clone() else { return };
        if host.group.landed(&host.config, token, num_headers, body_size) {
            return;
        }
        let reply = host::control_plane_reply(num_headers, body_size);
        let now_ms = host::now_ms();
        if let Some((_, call)) = self.poll.take_if(|(poll, _)| *poll == token) {
            if let Some(call) = call {
                call.ended(&reply);
            }
            if let Some(snapshot) = read::<SnapshotReply>(&reply) {
                host.vm.learn(snapshot, now_ms);
            }
            return;
        }
        let given_up = host.vm.outbox.borrow_mut().landed(token, read::<SettleReply>(&reply).is_some(), now_ms);
        self.tell_given_up(&given_up);
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, _size: usize) -> bool {
        host::awake();
        if host::root_id() == "upstream" {
            self.is_upstream = true;
            return true;
        }
        match Config::read(&host::plugin_configuration()) {
            Ok(config) => {
                let vm = Vm::of(&config.control_plane_cluster);
                vm.configure(&config);
                self.host = Some(Rc::new(Host { config: Rc::new(config), vm, group: Group::new() }));
                self.metrics =
                    Some(Metrics { pending: Metric::gauge(metric::OUTBOX_PENDING), given_up: Metric::counter(metric::OUTBOX_GIVEN_UP) });
                host::set_tick_period(TICK_MS);
                true
            }
            Err(fault) => {
                log::error!("{fault}");
                false
            }
        }
    }

    fn on_tick(&mut self) {
        host::awake();
        if let Some(host) = self.host.clone() {
            let now_ms = host::now_ms();
            self.poll(&host, now_ms);
            self.tell_breakers(&host, now_ms);
            Self::inherit(&host, now_ms);
            self.drain(&host, now_ms);
            host.group.send(&host.config, true);
        }
    }

    fn on_queue_ready(&mut self, _queue_id: u32) {
        host::awake();
        if let Some(host) = &self.host {
            host.group.send(&host.config, false);
        }
    }

    fn create_http_context(&self, context_id: u32) -> Option<Box<dyn HttpContext>> {
        if self.is_upstream {
            return Some(Box::new(Upstream::default()));
        }
        let host = self.host.clone()?;
        Some(Box::new(Downstream::new(host, context_id)))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
