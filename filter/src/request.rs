//! One request: every host callback becomes an event, the flow steps, its effects are performed.

use crate::group::Waiter;
use crate::host;
use crate::metrics::{self, ControlCall};
use crate::observed::Observed;
use crate::vm::Host;
use proxium_flow::control_plane::callout;
use proxium_flow::message::{Callout, Failure, Reply};
use proxium_flow::world::World;
use proxium_flow::{Effect, Event, Stage, Turn};
use proxium_wire::{SettleRequest, Settlement, metric, path};
use proxy_wasm::types::Action;
use std::rc::Rc;

/// The client waits at most so long for the acknowledgement of its settlement.
const SETTLE_WAIT_MS: u64 = 50;
/// The body limit before the catalog is known.
const DEFAULT_MAX_BODY_BYTES: u64 = 10 << 20;
/// A body is held once as text and about once in its canonical form; an answer once, and once to be stored.
const COPIES: u64 = 2;

/// The request body on its way into Envoy's buffer.
#[derive(Clone, Copy, Default, PartialEq)]
enum Body {
    #[default]
    Coming,
    Whole,
    TooLarge,
    Overloaded,
}

/// Whose the request is now.
#[derive(Clone, Copy, Default, PartialEq)]
enum Way {
    /// Held here.
    #[default]
    Held,
    /// None of proxium's.
    Passed,
    /// Answered by the flow; what still comes of the request goes nowhere.
    Answered,
    /// With Envoy's router; the head of its answer is awaited.
    Routed,
    /// The router's answer is held here: it is being read, or another is sought in its place.
    Answering,
    /// The router's stream passes.
    Streaming,
}

/// The callout whose end the flow waits for.
struct Pending {
    /// None while it is with others.
    token: Option<u32>,
    /// The settlement it carries.
    settlement: Option<String>,
    control: Option<ControlCall>,
}

/// One request, wherever its events come from: Envoy's filter chain, or the root context.
pub struct Request {
    host: Rc<Host>,
    me: Waiter,
    stage: Stage,
    way: Way,
    /// The flow asked for the router's answer.
    reads_answer: bool,
    body: Body,
    body_size: usize,
    /// The flow asked for the body.
    reads: bool,
    /// Bytes of the response chunk that is being delivered.
    chunk_size: usize,
    pending: Option<Pending>,
    held_bytes: u64,
    /// None for a request that is none of proxium's.
    observed: Option<Observed>,
    traceparent: Option<String>,
}

impl Request {
    /// A request whose head is not read yet.
    pub fn new(host: Rc<Host>, me: Waiter) -> Self {
        Self {
            host,
            me,
            stage: Stage::Done,
            way: Way::Held,
            reads_answer: false,
            chunk_size: 0,
            body: Body::default(),
            body_size: 0,
            reads: false,
            pending: None,
            held_bytes: 0,
            observed: None,
            traceparent: None,
        }
    }

    fn feed(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next {
            let turn = std::mem::take(&mut self.stage).step(event, &*self.host);
            next = self.perform(turn);
        }
    }

    /// Performs a step's effects; an event that is there at once comes back.
    fn perform(&mut self, turn: Turn) -> Option<Event> {
        let mut now = None;
        self.stage = turn.stage;
        for effect in turn.effects {
            match effect {
                Effect::Pass => self.way = Way::Passed,
                Effect::ReadBody { max_bytes } => {
                    self.reads = true;
                    if self.body_size as u64 > max_bytes {
                        self.body = Body::TooLarge;
                    }
                    now = self.body_event();
                }
                Effect::Call(callout) => now = self.call(callout, None),
                Effect::Settle(settlement) => now = self.settle(settlement),
                Effect::Post(settlement) => {
                    self.observe(|observed| observed.settles(&settlement));
                    self.host.vm.outbox.borrow_mut().post(settlement, host::now_ms());
                }
                Effect::PostSide(settlement) => self.host.vm.outbox.borrow_mut().post(settlement, host::now_ms()),
                Effect::Route(route) => {
                    for (key, value) in &route.state {
                        host::set_state(key, value);
                    }
                    host::replace_request_headers(&route.headers);
                    if let Some(body) = &route.body {
                        host::replace_request_body(self.body_size, body);
                        host::set_request_header("content-length", Some(&body.len().to_string()));
                    }
                    self.way = Way::Routed;
                    host::resume_request();
                }
                Effect::ReadAnswer => self.reads_answer = true,
                Effect::StreamHead(headers) => {
                    host::replace_response_headers(200, &headers);
                    let snapshot = self.host.snapshot();
                    self.observe(|observed| observed.streams(headers, snapshot.as_deref()));
                    // The flow has forgotten the request's body.
                    self.host.vm.free(std::mem::take(&mut self.held_bytes));
                    self.way = Way::Streaming;
                }
                Effect::Forward(bytes) => host::replace_response_body(self.chunk_size, &bytes),
                Effect::Respond(response) => {
                    self.way = Way::Answered;
                    host::respond(&response);
                    self.observe(|observed| observed.answered(response));
                }
                Effect::CredentialRefused { credential, status } => {
                    log::error!("a provider refused the credential of {credential} with {status}: check that it is valid and paid for");
                    let provider = credential.rsplit('/').next().unwrap_or_default();
                    metrics::count(metric::CREDENTIAL_REFUSED, &[("provider", provider)]);
                }
            }
        }
        now
    }

    /// Sends a settlement at once; the outbox keeps it until it is acknowledged, here or later.
    fn settle(&mut self, settlement: Settlement) -> Option<Event> {
        self.observe(|observed| observed.settles(&settlement));
        let id = settlement.id.clone();
        let request = SettleRequest { settlements: vec![settlement] };
        let mut call = callout(&self.host.config, path::SETTLE, self.traceparent.as_deref(), &request, SETTLE_WAIT_MS);
        call.groups = true;
        for settlement in request.settlements {
            self.host.vm.outbox.borrow_mut().post_sent(settlement, host::now_ms());
        }
        self.call(call, Some(id))
    }

    /// Sends a callout, maybe with others; its end, if it is there at once.
    fn call(&mut self, callout: Callout, settlement: Option<String>) -> Option<Event> {
        let control = ControlCall::of(&callout, &self.host.config.control_plane_cluster);
        let token = if callout.groups {
            self.host.group.join(callout, self.me.clone());
            None
        } else {
            match host::dispatch(&callout) {
                Some(token) => Some(token),
                None => return Some(Event::Reply(Reply::Failed(Failure::Connect))),
            }
        };
        self.pending = Some(Pending { token, settlement, control });
        None
    }

    /// The callout whose end it waits for, if it was sent by itself.
    pub fn awaits(&self) -> Option<u32> {
        self.pending.as_ref()?.token
    }

    /// That callout ended.
    pub fn landed(&mut self, token: u32, num_headers: usize, body_size: usize) {
        if self.awaits() == Some(token) {
            self.take(body_size, || host::reply(num_headers, body_size));
        }
    }

    /// The call that went with others goes once more, alone.
    pub fn asked_again(&mut self) {
        self.feed(Event::AskedAgain);
    }

    /// The call that went with others ended so.
    pub fn replied(&mut self, reply: Reply) {
        let size = if let Reply::Answer(answer) = &reply { answer.body.len() } else { 0 };
        self.take(size, || reply);
    }

    fn take(&mut self, size: usize, reply: impl FnOnce() -> Reply) {
        let Some(pending) = self.pending.take() else { return };
        if !self.hold((size as u64).saturating_mul(COPIES)) {
            return self.feed(Event::Overloaded);
        }
        let reply = reply();
        if let Some(control) = pending.control {
            control.ended(&reply);
        }
        if let (Some(id), Reply::Answer(answer)) = (pending.settlement, &reply)
            && answer.status == 200
        {
            self.host.vm.outbox.borrow_mut().acknowledge(&id, host::now_ms());
        }
        self.feed(Event::Reply(reply));
    }

    fn observe(&mut self, act: impl FnOnce(&mut Observed)) {
        if let Some(observed) = &mut self.observed {
            act(observed);
        }
    }

    /// The body's event, once the flow asked for it and its fate is known.
    fn body_event(&mut self) -> Option<Event> {
        if !self.reads {
            return None;
        }
        let event = match self.body {
            Body::Coming => return None,
            Body::Whole => Event::Body(host::request_body(self.body_size)),
            Body::TooLarge => Event::TooLarge,
            Body::Overloaded => Event::Overloaded,
        };
        self.reads = false;
        Some(event)
    }

    /// Some more of the body is in Envoy's buffer, `size` in all.
    fn receive(&mut self, size: usize, end: bool) {
        if matches!(self.body, Body::TooLarge | Body::Overloaded) {
            host::discard_request_body(size);
            return;
        }
        let max_bytes = self.max_body_bytes();
        let grown = (size.saturating_sub(self.body_size) as u64).saturating_mul(COPIES);
        self.body_size = size;
        if size as u64 > max_bytes {
            self.body = Body::TooLarge;
            host::discard_request_body(size);
        } else if !self.hold(grown) {
            self.body = Body::Overloaded;
            host::discard_request_body(size);
        } else if end {
            self.body = Body::Whole;
        }
    }

    /// Some of the body is here, `size` bytes in all.
    pub fn request_piece(&mut self, size: usize, end: bool) -> Action {
        if self.way == Way::Held {
            self.receive(size, end);
            if let Some(event) = self.body_event() {
                self.feed(event);
            }
        }
        self.request_action()
    }

    fn request_action(&self) -> Action {
        if matches!(self.way, Way::Held | Way::Answered) { Action::Pause } else { Action::Continue }
    }

    fn max_body_bytes(&self) -> u64 {
        self.host.snapshot().map_or(DEFAULT_MAX_BODY_BYTES, |snapshot| snapshot.catalog.limits.max_body_bytes)
    }

    fn hold(&mut self, bytes: u64) -> bool {
        let held = self.host.vm.hold(bytes);
        if held {
            self.held_bytes = self.held_bytes.saturating_add(bytes);
        }
        held
    }

    /// The head is here.
    pub fn request_head(&mut self, end_of_stream: bool) -> Action {
        let head = host::request_head();
        let announced = head.headers.get("content-length").and_then(|length| length.parse::<u64>().ok());
        if end_of_stream {
            self.body = Body::Whole;
        } else if announced.is_some_and(|bytes| bytes > self.max_body_bytes()) {
            // Nothing of it is kept: a fast sender could otherwise fill Envoy's buffer before the filter sees how much came, and Envoy
            // would refuse it in plain text.
            self.body = Body::TooLarge;
        }
        self.observed = Observed::new(&head, host::now_ms());
        self.traceparent = head.headers.get("traceparent").map(str::to_owned);
        let turn = Stage::open(head, &*self.host);
        if let Some(event) = self.perform(turn) {
            self.feed(event);
        }
        self.request_action()
    }

    /// The body has ended before its trailers.
    pub fn request_trailers(&mut self) -> Action {
        self.request_piece(self.body_size, true)
    }

    /// The head of what goes to the client is here.
    pub fn response_head(&mut self, end_of_stream: bool) -> Action {
        if self.way != Way::Routed {
            return Action::Continue;
        }
        self.way = Way::Answering;
        self.feed(Event::Head(host::response_head()));
        if end_of_stream && std::mem::take(&mut self.reads_answer) {
            self.feed(Event::Body(Vec::new()));
        }
        if self.way == Way::Streaming { Action::Continue } else { Action::Pause }
    }

    /// Some of what goes to the client is here.
    pub fn response_piece(&mut self, size: usize, end_of_stream: bool) -> Action {
        match self.way {
            Way::Held | Way::Passed | Way::Answered | Way::Routed => Action::Continue,
            Way::Streaming => {
                self.chunk_size = size;
                self.feed(Event::Chunk(host::response_body(size), end_of_stream));
                Action::Continue
            }
            Way::Answering => {
                if end_of_stream && std::mem::take(&mut self.reads_answer) {
                    let event = if self.hold(size as u64) { Event::Body(host::response_body(size)) } else { Event::Overloaded };
                    self.feed(event);
                }
                Action::Pause
            }
        }
    }

    /// The stream is over.
    pub fn ended(&mut self) {
        self.feed(Event::Closed { by_client: host::client_left() });
        if let Some(observed) = &self.observed {
            observed.ended(self.host.snapshot().as_deref());
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.host.vm.free(self.held_bytes);
    }
}
