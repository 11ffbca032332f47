//! The only user of host calls. Nothing here panics: a trap kills every call of the VM.
//!
//! The string variants of the SDK's map calls panic on header bytes that are not UTF-8, and some on a callout without headers, so only the
//! bytes variants are used, after a look at the number of headers (`shared/envoy-facts.md` A).

use proxium_flow::RawHead;
use proxium_flow::message::{Answer, Callout, Failure, Headers, Reply, Response};
use proxy_wasm::hostcalls;
use proxy_wasm::types::{BufferType, MapType, MetricType, Status};
use std::time::{Duration, UNIX_EPOCH};

/// Milliseconds since 1970, Envoy's wall clock.
pub fn now_ms() -> u64 {
    let since = hostcalls::get_current_time().ok().and_then(|now| now.duration_since(UNIX_EPOCH).ok());
    since.and_then(|span| u64::try_from(span.as_millis()).ok()).unwrap_or_default()
}

/// 32 random hexadecimal digits.
pub fn random_id() -> String {
    let mut bytes = [0u8; 16];
    if let Err(error) = getrandom::fill(&mut bytes) {
        log::error!("no randomness: {error}");
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The head of the request.
pub fn request_head() -> RawHead {
    let mut head = RawHead { method: String::new(), path: String::new(), headers: Headers::new() };
    for (name, value) in hostcalls::get_map_bytes(MapType::HttpRequestHeaders).unwrap_or_default() {
        let value = String::from_utf8_lossy(&value).into_owned();
        match name.as_str() {
            ":method" => head.method = value,
            ":path" => head.path = value,
            _ if name.starts_with(':') => {}
            _ => head.headers.add(name, value),
        }
    }
    head
}

/// The first `size` bytes of the buffered request body.
pub fn request_body(size: usize) -> Vec<u8> {
    hostcalls::get_buffer(BufferType::HttpRequestBody, 0, size).ok().flatten().unwrap_or_default()
}

/// Throws the buffered request body away.
pub fn discard_request_body(size: usize) {
    let _ = hostcalls::set_buffer(BufferType::HttpRequestBody, 0, size, &[]);
}

/// Sends a call; its token, or nothing if it could not even be begun.
pub fn dispatch(callout: &Callout) -> Option<u32> {
    let headers = callout.headers.iter().collect();
    let body = (!callout.body.is_empty()).then_some(callout.body.as_slice());
    hostcalls::dispatch_http_call(&callout.cluster, headers, body, Vec::new(), Duration::from_millis(callout.timeout_ms)).ok()
}

/// How the callout that is just being answered ended.
pub fn reply(num_headers: usize, body_size: usize) -> Reply {
    if num_headers == 0 {
        return Reply::Failed(Failure::Reset);
    }
    let mut answer = Answer { status: 0, headers: Headers::new(), body: Vec::new() };
    for (name, value) in hostcalls::get_map_bytes(MapType::HttpCallResponseHeaders).unwrap_or_default() {
        let value = String::from_utf8_lossy(&value).into_owned();
        match name.as_str() {
            ":status" => answer.status = value.parse().unwrap_or_default(),
            _ => answer.headers.add(name, value),
        }
    }
    answer.body = hostcalls::get_buffer(BufferType::HttpCallResponseBody, 0, body_size).ok().flatten().unwrap_or_default();
    made_by_envoy(&answer).map_or(Reply::Answer(answer), Reply::Failed)
}

/// Envoy answers a callout itself when nobody else does; such an answer lacks the header that marks an upstream's.
fn made_by_envoy(answer: &Answer) -> Option<Failure> {
    if answer.headers.get("x-envoy-upstream-service-time").is_some() {
        return None;
    }
    match answer.status {
        504 => Some(Failure::Timeout),
        503 => {
            let text = String::from_utf8_lossy(&answer.body);
            let broke = ["connection termination", "remote reset", "protocol error"].iter().any(|reason| text.contains(reason));
            Some(if broke { Failure::Reset } else { Failure::Connect })
        }
        _ => None,
    }
}

/// Answers the client.
pub fn respond(response: &Response) {
    let headers = response.headers.iter().collect();
    if let Err(status) = hostcalls::send_http_response(u32::from(response.status), headers, Some(&response.body)) {
        log::error!("an answer could not be sent: {status:?}");
    }
}

/// The plugin configuration's bytes.
pub fn plugin_configuration() -> Vec<u8> {
    hostcalls::get_buffer(BufferType::PluginConfiguration, 0, usize::MAX).ok().flatten().unwrap_or_default()
}

/// Asks for a tick each `period_ms`.
pub fn set_tick_period(period_ms: u64) {
    let _ = hostcalls::set_tick_period(Duration::from_millis(period_ms));
}

/// Reads, changes and writes a value of the memory that all workers share, until no other worker came between. `change` says whether
/// there is anything to write.
pub fn update_shared<T>(key: &str, mut change: impl FnMut(Option<&[u8]>) -> (T, Option<Vec<u8>>)) -> T {
    const TRIES: usize = 64;
    let mut tries = 0;
    loop {
        let (bytes, cas) = hostcalls::get_shared_data(key).unwrap_or_default();
        let (outcome, write) = change(bytes.as_deref());
        let Some(write) = write else { return outcome };
        tries += 1;
        match hostcalls::set_shared_data(key, Some(&write), cas) {
            Err(Status::CasMismatch) if tries < TRIES => {}
            _ => return outcome,
        }
    }
}

/// A counter or gauge of Envoy's statistics.
pub struct Metric(Option<u32>);

impl Metric {
    /// A counter of this name.
    pub fn counter(name: &str) -> Self {
        Self(hostcalls::define_metric(MetricType::Counter, name).ok())
    }

    /// A gauge of this name.
    pub fn gauge(name: &str) -> Self {
        Self(hostcalls::define_metric(MetricType::Gauge, name).ok())
    }

    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds so many; to a gauge also fewer than none.
    pub fn add(&self, more: i64) {
        if let (Some(id), true) = (self.0, more != 0) {
            let _ = hostcalls::increment_metric(id, more);
        }
    }
}
