//! How an event stream is sent: event by event, at a pace, to an end of one's choice.

use super::socket::Reset;
use axum::body::{Body, Bytes};
use axum::http::{Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::watch;

/// Long enough that what was sent is read before the RST comes, which would otherwise discard it.
pub(super) const BEFORE_THE_RESET: Duration = Duration::from_millis(50);

/// How a stream ends after its last event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// As HTTP wants it, with the last chunk.
    #[default]
    Whole,
    /// The body has neither length nor chunks: the closed connection is its end.
    Closed,
    /// RST in the middle of a chunked body.
    Cut,
    /// It stays open and silent.
    Never,
}

/// How the events of a stream go out.
#[derive(Clone, Debug, Default)]
pub(super) struct Delivery {
    /// No more events than this.
    pub first: Option<usize>,
    pub steps: Option<Steps>,
    /// A pause before each event.
    pub every: Duration,
    pub end: End,
}

/// Lets streams go on event by event: each stream sends its event number n, from 1, once n were released.
#[derive(Clone, Debug)]
pub struct Steps {
    released: watch::Sender<usize>,
    sent: Arc<AtomicUsize>,
}

impl Default for Steps {
    fn default() -> Self {
        Self { released: watch::Sender::new(0), sent: Arc::default() }
    }
}

impl Steps {
    /// Nothing is released.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Releases this many events more, for every stream.
    pub fn release(&self, events: usize) {
        self.released.send_modify(|released| *released = released.saturating_add(events));
    }

    /// Releases all events.
    pub fn open(&self) {
        self.released.send_replace(usize::MAX);
    }

    /// How many events went out, over all streams.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.sent.load(SeqCst)
    }

    async fn pass(&self, number: usize) {
        // Fails only when the sender is gone; it is here.
        self.released.subscribe().wait_for(|released| *released > number).await.ok();
        self.sent.fetch_add(1, SeqCst);
    }
}

/// Each event is a chunk of its own.
pub(super) fn respond(events: Vec<Bytes>, delivery: Delivery, reset: Reset) -> Response {
    let end = delivery.end;
    let count = delivery.first.unwrap_or(events.len());
    let events = events.into_iter().take(count).enumerate();
    let body = stream::unfold((events, delivery, reset), |(mut events, delivery, reset)| async move {
        let Some((number, event)) = events.next() else {
            return match delivery.end {
                End::Whole | End::Closed => None,
                End::Never => std::future::pending().await,
                End::Cut => {
                    tokio::time::sleep(BEFORE_THE_RESET).await;
                    reset.pull();
                    Some((Err(io::Error::from(io::ErrorKind::ConnectionReset)), (events, delivery, reset)))
                }
            };
        };
        if let Some(steps) = &delivery.steps {
            steps.pass(number).await;
        }
        if !delivery.every.is_zero() {
            tokio::time::sleep(delivery.every).await;
        }
        Some((Ok(event), (events, delivery, reset)))
    });
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    let mut response = (head, Body::from_stream(body)).into_response();
    if end == End::Closed {
        *response.version_mut() = Version::HTTP_10;
    }
    response
}
