//! The flow as a value: a stage, stepped by events, wishing for effects.

use crate::message::{Answer, Callout, Headers, Reply, Response, Route};
use crate::refusal::Refusal;
use crate::stage::side;
use crate::stage::{
    attempt::Attempting, authenticate, authenticate::Opening, call::Call, call::Opened, classify, rank, recall, reserve, route::Routing,
    side::Side, stream::Streaming,
};
use crate::world::World;
use proxium_wire::{Dialect, Settlement};

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The whole request body, after [`Effect::ReadBody`]; the whole answer, after [`Effect::ReadAnswer`].
    Body(Vec<u8>),
    /// The body is larger than [`Effect::ReadBody`] allows.
    TooLarge,
    /// The VM holds too many bodies and answers to take this one.
    Overloaded,
    /// What [`Effect::Call`] asks is asked once more: what was asked first may still be done, even later.
    AskedAgain,
    /// The end of [`Effect::Call`] or [`Effect::Settle`].
    Reply(Reply),
    /// After [`Effect::Route`]: the head of what the router has for the client.
    Head(Answer),
    /// After [`Effect::StreamHead`]: some bytes of the stream, and whether they are the last.
    Chunk(Vec<u8>, bool),
    /// The stream is over: the client was answered, or left, or the other side broke off.
    Closed {
        /// The client left.
        by_client: bool,
    },
}

/// What the flow wants done.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Let the request through untouched: it is not proxium's.
    Pass,
    /// Deliver the body once it is whole.
    ReadBody {
        /// A larger one is [`Event::TooLarge`].
        max_bytes: u64,
    },
    /// Make this call; its end comes as [`Event::Reply`], even if it could not be made at all.
    Call(Callout),
    /// Let the request on to Envoy's router.
    Route(Route),
    /// Deliver the body of the router's answer once it is whole, and hold its head.
    ReadAnswer,
    /// Let the head of the router's stream on with these header lines, and deliver its bytes.
    StreamHead(Headers),
    /// Replace the chunk just delivered; without this it goes as it came.
    Forward(Vec<u8>),
    /// Answer the client.
    Respond(Response),
    /// Deliver this settlement for certain. The first try's end, acknowledged or not, comes as [`Event::Reply`] within 50 ms.
    Settle(Settlement),
    /// Deliver this settlement for certain; nobody waits.
    Post(Settlement),
    /// The same for a side call, which is no end of the call itself.
    PostSide(Settlement),
    /// A provider refused a credential (401, 403): tell the operator loudly, by its lane's name.
    CredentialRefused {
        /// [`crate::breaker::Lane::credential`].
        credential: String,
        /// The provider's status.
        status: u16,
    },
}

/// A step's outcome.
#[derive(Debug)]
pub struct Turn {
    /// Where the call is now.
    pub stage: Stage,
    /// What to do now, in this order.
    pub effects: Vec<Effect>,
}

/// Where a call is. Each variant owns exactly what is known by then.
#[derive(Debug, Default)]
pub enum Stage {
    /// Waiting for the catalog or for the key's record.
    Authenticating(Box<Opening>),
    /// The key is good; waiting for the body.
    Reading(Box<Opened>),
    /// Waiting for what is remembered.
    Recalling(Box<Call>),
    /// Waiting for the money of memories' vectors, or for the question's as it was.
    Ranking(Box<Call>),
    /// Waiting for the memories that are nearest.
    Sorting(Box<Call>),
    /// Waiting for the money of a classification, or for the tier as it was.
    Classifying(Box<Call>),
    /// Waiting for the provider of a side call.
    Siding(Box<Side>),
    /// Waiting for the admission.
    Reserving(Box<Call>),
    /// Waiting for a provider.
    Attempting(Box<Attempting>),
    /// Waiting for the router.
    Routing(Box<Routing>),
    /// The stream is passing.
    Streaming(Box<Streaming>),
    /// The settlement is on its way; the answer waits for its acknowledgement.
    Recording(Box<Response>),
    /// Nothing is owed any more.
    #[default]
    Done,
}

/// A request's head as the host has it.
#[derive(Debug)]
pub struct RawHead {
    /// `:method`
    pub method: String,
    /// `:path`, query included.
    pub path: String,
    /// The other lines, names in lower case.
    pub headers: Headers,
}

impl Stage {
    /// The first step of every request.
    pub fn open(head: RawHead, world: &impl World) -> Turn {
        authenticate::open(head, world)
    }

    /// The next step.
    #[must_use]
    pub fn step(self, event: Event, world: &impl World) -> Turn {
        match (self, event) {
            (stage, Event::Closed { by_client }) => Turn { effects: stage.owed(by_client, world), stage: Self::Done },
            (Self::Authenticating(opening), Event::Reply(reply)) => authenticate::reply(*opening, &reply, world),
            (Self::Reading(opened), Event::Body(body)) => Call::begin(*opened, body, world),
            (Self::Reading(opened), Event::TooLarge) => {
                Turn::refuse(&Refusal::RequestTooLarge(opened.max_body_bytes()), opened.head.route.dialect, &opened.head.request_id)
            }
            (Self::Reading(opened), Event::Overloaded) => {
                Turn::refuse(&Refusal::Overloaded, opened.head.route.dialect, &opened.head.request_id)
            }
            (Self::Recalling(call), Event::Reply(reply)) => recall::reply(call, &reply, world),
            (Self::Ranking(call), Event::Reply(reply)) => rank::reply(call, &reply, world),
            (Self::Sorting(call), Event::Reply(reply)) => rank::sorted(call, &reply, world),
            (Self::Recalling(call) | Self::Classifying(call) | Self::Ranking(call) | Self::Sorting(call), Event::Overloaded) => {
                call.refuse(&Refusal::Overloaded)
            }
            (Self::Classifying(call), Event::Reply(reply)) => classify::reply(call, &reply, world),
            (Self::Siding(side), Event::Reply(reply)) => side.reply(reply, world),
            (Self::Siding(side), Event::Overloaded) => side.overloaded(world),
            (Self::Reserving(mut call), Event::AskedAgain) => {
                call.asked_again = true;
                Turn { stage: Self::Reserving(call), effects: Vec::new() }
            }
            (Self::Reserving(call), Event::Reply(reply)) => reserve::reply(call, &reply, world),
            (Self::Attempting(attempting), Event::Reply(reply)) => attempting.reply(reply, world),
            (Self::Attempting(attempting), Event::Overloaded) => attempting.overloaded(world),
            (Self::Routing(routing), Event::Head(answer)) => routing.head(answer, world),
            (Self::Routing(routing), Event::Body(body)) => routing.body(body, world),
            (Self::Routing(routing), Event::Overloaded) => routing.overloaded(world),
            (Self::Streaming(mut streaming), Event::Chunk(bytes, end)) => {
                let effects = streaming.chunk(&bytes, end).map(Effect::Forward).into_iter().collect();
                Turn { stage: Self::Streaming(streaming), effects }
            }
            (Self::Authenticating(opening), Event::Overloaded) => authenticate::overloaded(&opening),
            (Self::Reserving(call), Event::Overloaded) => call.refuse_after(&Refusal::Overloaded, call.release()),
            (Self::Recording(response), Event::Reply(_) | Event::Overloaded) => Turn::done(vec![Effect::Respond(*response)]),
            (stage, _) => Turn { stage, effects: Vec::new() },
        }
    }

    /// What must still be posted when the stream ends here. No wildcard: a new stage says what it owes, or does not compile.
    fn owed(self, by_client: bool, world: &impl World) -> Vec<Effect> {
        let owed = match self {
            Self::Authenticating(_) | Self::Reading(_) | Self::Recalling(_) | Self::Recording(_) | Self::Done => None,
            Self::Classifying(mut call) => {
                let release = Effect::PostSide(side::release(&call, side::Purpose::Classify));
                return call.record_side_calls().into_iter().chain([release]).collect();
            }
            Self::Ranking(call) => return vec![Effect::PostSide(side::release(&call, side::Purpose::Rank))],
            Self::Sorting(mut call) => return call.record_side_calls(),
            Self::Siding(side) => return side.abandon(world).into_iter().map(Effect::PostSide).collect(),
            Self::Reserving(mut call) => {
                let (release, beside) = (call.release(), call.record_side_calls());
                return release.into_iter().map(Effect::Post).chain(beside).collect();
            }
            Self::Attempting(attempting) => attempting.abandon(world),
            Self::Routing(routing) => routing.abandon(world),
            Self::Streaming(streaming) => streaming.settle(by_client, world),
        };
        owed.into_iter().map(Effect::Post).collect()
    }
}

impl Turn {
    pub(crate) fn wait(stage: Stage, effect: Effect) -> Self {
        Self { stage, effects: vec![effect] }
    }

    /// And this.
    #[must_use]
    pub(crate) fn and(mut self, effect: Effect) -> Self {
        self.effects.push(effect);
        self
    }

    pub(crate) fn done(effects: Vec<Effect>) -> Self {
        Self { stage: Stage::Done, effects }
    }

    pub(crate) fn refuse(refusal: &Refusal, dialect: Dialect, request_id: &str) -> Self {
        Self::done(vec![Effect::Respond(refusal.response(dialect, request_id))])
    }
}
