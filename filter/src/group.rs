//! Calls of the control plane that begin in one turn of Envoy's event loop, or while one of their path is on its way, travel as one callout.
//!
//! Whoever is first wakes the root context through a shared queue of its own; Envoy delivers that in the same turn, after what else is
//! ready. What waits for another's return goes with the next tick at the latest, so that a slow one holds up nobody. The root context sends, because the SDK drops an answer to a request that is over.
//! For the SDK, a callout belongs to the context that it called last: what a request sends while the root context hands it an answer comes
//! back to the root context, which passes it on.

use crate::host;
use crate::request::Request;
use proxium_flow::config::Config;
use proxium_flow::group::{apart, next, together};
use proxium_flow::message::{Callout, Failure, Reply};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Weak;

/// A request that waits for an answer.
#[derive(Clone)]
pub struct Waiter {
    /// Its context in Envoy.
    pub context_id: u32,
    /// It may be over by then.
    pub request: Weak<RefCell<Request>>,
}

/// A callout on its way.
enum Flight {
    /// For all of these.
    Group(Vec<(Callout, Waiter)>),
    /// That a request made from the root context, to which its answer comes.
    PassedOn(Waiter),
}

/// What waits to be sent, and who waits for what was.
pub struct Group {
    queue: Option<u32>,
    woken: Cell<bool>,
    waiting: RefCell<Vec<(Callout, Waiter)>>,
    flights: RefCell<HashMap<u32, Flight>>,
}

impl Group {
    /// An empty one, of the root context that is current.
    pub fn new() -> Self {
        Self {
            queue: host::make_queue(&host::random_id()),
            woken: Cell::default(),
            waiting: RefCell::default(),
            flights: RefCell::default(),
        }
    }

    /// Sends a call soon.
    pub fn join(&self, callout: Callout, waiter: Waiter) {
        self.waiting.borrow_mut().push((callout, waiter));
        if let (false, Some(queue)) = (self.woken.replace(true), self.queue) {
            host::ring(queue);
        }
    }

    /// Sends what waits; `at_once`: even if others of its path are on their way.
    pub fn send(&self, config: &Config, at_once: bool) {
        if let (true, Some(queue)) = (self.woken.replace(false), self.queue) {
            host::empty(queue);
        }
        let (mut waiting, mut stay) = (self.waiting.take(), Vec::new());
        while !waiting.is_empty() {
            let group = next(&mut waiting);
            if !at_once && self.flies_like(&group) {
                stay.extend(group);
            } else {
                let token = host::dispatch(&together(&group, config));
                self.flies(token, group);
            }
        }
        // What joined meanwhile comes after.
        self.waiting.borrow_mut().splice(0..0, stay);
    }

    fn flies_like(&self, group: &[(Callout, Waiter)]) -> bool {
        let path = |group: &[(Callout, Waiter)]| group.first().and_then(|(callout, _)| callout.headers.get(":path").map(str::to_owned));
        let wanted = path(group);
        self.flights.borrow().values().any(|flight| matches!(flight, Flight::Group(group) if path(group) == wanted))
    }

    /// A callout for all of these is on its way, or could not even begin.
    fn flies(&self, token: Option<u32>, group: Vec<(Callout, Waiter)>) {
        match token {
            Some(token) => drop(self.flights.borrow_mut().insert(token, Flight::Group(group))),
            None => group.iter().for_each(|(_, waiter)| self.with(waiter, |request| request.replied(Reply::Failed(Failure::Connect)))),
        }
    }

    /// An answer came to the root context; `false`: nobody here waits for it.
    pub fn landed(&self, config: &Config, token: u32, num_headers: usize, body_size: usize) -> bool {
        let flight = self.flights.borrow_mut().remove(&token);
        let group = match flight {
            None => return false,
            Some(Flight::PassedOn(waiter)) => {
                self.with(&waiter, |request| request.landed(token, num_headers, body_size));
                return true;
            }
            Some(Flight::Group(group)) => group,
        };
        let replies = apart(host::control_plane_reply(num_headers, body_size), group.len());
        for ((callout, waiter), reply) in group.into_iter().zip(replies) {
            match reply {
                Some(reply) => self.with(&waiter, |request| request.replied(reply)),
                None => {
                    self.with(&waiter, Request::asked_again);
                    self.flies(host::dispatch(&callout), vec![(callout, waiter)]);
                }
            }
        }
        self.send(config, false);
        true
    }

    /// Acts for a request from the root context.
    fn with(&self, waiter: &Waiter, act: impl FnOnce(&mut Request)) {
        let Some(request) = waiter.request.upgrade() else { return };
        if !host::act_for(waiter.context_id) {
            return;
        }
        let mut request = request.borrow_mut();
        act(&mut request);
        if let Some(token) = request.awaits() {
            self.flights.borrow_mut().insert(token, Flight::PassedOn(waiter.clone()));
        }
    }
}
