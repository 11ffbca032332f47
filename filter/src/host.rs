//! The only user of host calls. Nothing here panics: a trap kills every call of the VM.
//!
//! The string variants of the SDK's map calls panic on header bytes that are not UTF-8, and some on a callout without headers, so only the
//! bytes variants are used, after a look at the number of headers (`shared/envoy-facts.md` A).

use proxium_flow::RawHead;
use proxium_flow::message::{Answer, Callout, Failure, Headers, Reply, Response};
use proxy_wasm::hostcalls;
use proxy_wasm::types::{BufferType, MapType, MetricType, Status};
use std::cell::Cell;
use std::time::{Duration, UNIX_EPOCH};

thread_local! {
    /// The clock as this callback of Envoy found it.
    static NOW_MS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// A callback of Envoy begins: the clock has gone on since the last.
pub fn awake() {
    NOW_MS.set(None);
}

/// Milliseconds since 1970, Envoy's wall clock; read once in a callback.
pub fn now_ms() -> u64 {
    if let Some(now_ms) = NOW_MS.get() {
        return now_ms;
    }
    let since = hostcalls::get_current_time().ok().and_then(|now| now.duration_since(UNIX_EPOCH).ok());
    let now_ms = since.and_then(|span| u64::try_from(span.as_millis()).ok()).unwrap_or_default();
    NOW_MS.set(Some(now_ms));
    now_ms
}

/// 32 random hexadecimal digits.
pub fn random_id() -> String {
    let mut bytes = [0u8; 16];
    if let Err(error) = getrandom::fill(&mut bytes) {
        log::error!("no randomness: {error}");
    }
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// The bytes as they are if they are UTF-8.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The head of the request.
pub fn request_head() -> RawHead {
    let mut head = RawHead { method: String::new(), path: String::new(), headers: Headers::new() };
    for (name, value) in hostcalls::get_map_bytes(MapType::HttpRequestHeaders).unwrap_or_default() {
        let value = text(value);
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

/// Puts this in the place of the `size` bytes of request body that are buffered.
pub fn replace_request_body(size: usize, body: &[u8]) {
    let _ = hostcalls::set_buffer(BufferType::HttpRequestBody, 0, size, body);
}

/// Throws the buffered request body away.
pub fn discard_request_body(size: usize) {
    replace_request_body(size, &[]);
}

/// Lets a held request on.
pub fn resume_request() {
    let _ = hostcalls::resume_http_request();
}

/// Sets one line of the request's head, or removes it.
pub fn set_request_header(name: &str, value: Option<&str>) {
    let _ = hostcalls::set_map_value(MapType::HttpRequestHeaders, name, value);
}

/// Lines of the request's head that Envoy itself needs: framing, and without `x-forwarded-proto` it finds no route.
const ENVOYS_OWN: [&str; 5] = ["content-length", "transfer-encoding", "host", "x-forwarded-proto", "x-request-id"];

/// Puts these lines in the place of all of the request's but pseudo-headers and Envoy's own.
pub fn replace_request_headers(headers: &Headers) {
    request_lines().replace(|name| !name.starts_with(':') && !ENVOYS_OWN.contains(&name), headers.iter());
}

/// The lines of the request's head, pseudo-headers included.
pub struct RequestLines(Vec<(String, Vec<u8>)>);

/// The request's head, to be read and replaced as a whole: a call for each line costs more than the line.
pub fn request_lines() -> RequestLines {
    RequestLines(hostcalls::get_map_bytes(MapType::HttpRequestHeaders).unwrap_or_default())
}

impl RequestLines {
    /// The first line of this name, if it is text.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(line, _)| line == name).and_then(|(_, value)| std::str::from_utf8(value).ok())
    }

    /// Puts lines in the place of those whose name `goes`.
    pub fn replace<'a>(&'a self, goes: impl Fn(&str) -> bool, lines: impl Iterator<Item = (&'a str, &'a str)>) {
        let stays = self.0.iter().map(|(name, value)| (name.as_str(), value.as_slice())).filter(|(name, _)| !goes(name));
        let all = stays.chain(lines.map(|(name, value)| (name, value.as_bytes()))).collect();
        let _ = hostcalls::set_map_bytes(MapType::HttpRequestHeaders, all);
    }
}

/// The head of the response on its way; its body is empty.
pub fn response_head() -> Answer {
    head_of(MapType::HttpResponseHeaders)
}

/// The first `size` bytes of the response body that are here.
pub fn response_body(size: usize) -> Vec<u8> {
    hostcalls::get_buffer(BufferType::HttpResponseBody, 0, size).ok().flatten().unwrap_or_default()
}

/// Puts this in the place of the `size` bytes of response body that are here.
pub fn replace_response_body(size: usize, body: &[u8]) {
    let _ = hostcalls::set_buffer(BufferType::HttpResponseBody, 0, size, body);
}

/// Puts these lines in the place of all of the response's.
pub fn replace_response_headers(status: u16, headers: &Headers) {
    let status = status.to_string();
    let lines = std::iter::once((":status", status.as_str())).chain(headers.iter()).collect();
    let _ = hostcalls::set_map(MapType::HttpResponseHeaders, lines);
}

/// Sets the response's status.
pub fn set_response_status(status: u16) {
    let _ = hostcalls::set_map_value(MapType::HttpResponseHeaders, ":status", Some(&status.to_string()));
}

/// A value of filter state: `wasm.<key>` for everybody else.
pub fn state(key: &str) -> Option<String> {
    let value = hostcalls::get_property(vec![key]).ok().flatten()?;
    String::from_utf8(value).ok()
}

/// Sets a value of filter state, seen by the filters of this request downstream and upstream.
pub fn set_state(key: &str, value: &str) {
    let _ = hostcalls::set_property(vec![key], Some(value.as_bytes()));
}

/// Which of the two filters this root context is, as Envoy's configuration names it.
pub fn root_id() -> String {
    state("plugin_root_id").unwrap_or_default()
}

/// Whether the stream ended because the client left: closed its connection, or reset its stream.
pub fn client_left() -> bool {
    let details = hostcalls::get_property(vec!["response", "code_details"]).ok().flatten().unwrap_or_default();
    let details = String::from_utf8_lossy(&details);
    ["downstream", "http1.", "http2.", "http3."].iter().any(|side| details.starts_with(side))
}

/// Sends a call; its token, or nothing if it could not even be begun.
pub fn dispatch(callout: &Callout) -> Option<u32> {
    let headers = callout.headers.iter().collect();
    let body = (!callout.body.is_empty()).then_some(callout.body.as_slice());
    hostcalls::dispatch_http_call(&callout.cluster, headers, body, Vec::new(), Duration::from_millis(callout.timeout_ms)).ok()
}

/// From now on, host calls are about this context; `false` when it is gone.
pub fn act_for(context_id: u32) -> bool {
    hostcalls::set_effective_context(context_id).is_ok()
}

/// A queue whose entries wake the root context that is current.
pub fn make_queue(name: &str) -> Option<u32> {
    hostcalls::register_shared_queue(name).ok()
}

/// Puts an entry into a queue.
pub fn ring(queue: u32) {
    let _ = hostcalls::enqueue_shared_queue(queue, None);
}

/// Takes an entry out of a queue.
pub fn empty(queue: u32) {
    let _ = hostcalls::dequeue_shared_queue(queue);
}

/// How the callout that is just being answered ended.
pub fn reply(num_headers: usize, body_size: usize) -> Reply {
    if num_headers == 0 {
        return Reply::Failed(Failure::Reset);
    }
    let mut answer = head_of(MapType::HttpCallResponseHeaders);
    answer.body = reply_body(body_size);
    made_by_envoy(&answer).map_or(Reply::Answer(answer), Reply::Failed)
}

/// The same of a callout to the control plane, whose answers are their bodies: the head of one that is well is not read.
pub fn control_plane_reply(num_headers: usize, body_size: usize) -> Reply {
    // Without a head the SDK would panic.
    if num_headers == 0 {
        return Reply::Failed(Failure::Reset);
    }
    match hostcalls::get_map_value_bytes(MapType::HttpCallResponseHeaders, ":status") {
        Ok(Some(status)) if status == b"200" => Reply::Answer(Answer { status: 200, headers: Headers::new(), body: reply_body(body_size) }),
        _ => reply(num_headers, body_size),
    }
}

fn reply_body(size: usize) -> Vec<u8> {
    hostcalls::get_buffer(BufferType::HttpCallResponseBody, 0, size).ok().flatten().unwrap_or_default()
}

fn head_of(map: MapType) -> Answer {
    let mut answer = Answer { status: 0, headers: Headers::new(), body: Vec::new() };
    for (name, value) in hostcalls::get_map_bytes(map).unwrap_or_default() {
        let value = text(value);
        match name.as_str() {
            ":status" => answer.status = value.parse().unwrap_or_default(),
            _ => answer.headers.add(name, value),
        }
    }
    answer
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

    /// A histogram of this name.
    pub fn histogram(name: &str) -> Self {
        Self(hostcalls::define_metric(MetricType::Histogram, name).ok())
    }

    /// Records a value of a histogram; sets a gauge.
    pub fn record(&self, value: u64) {
        if let Some(id) = self.0 {
            let _ = hostcalls::record_metric(id, value);
        }
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
