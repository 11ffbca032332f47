//! A closed loop of clients: each sends its next request when it has its answer.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::io::Read;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// In a body: another number each time.
pub const NUMBER: &str = "{number}";

/// What to send, as JSON on standard input.
#[derive(Clone, Serialize, Deserialize)]
pub struct Order {
    pub addr: SocketAddr,
    pub path: String,
    pub key: String,
    pub body: String,
    pub status: u16,
    pub stream: bool,
    pub clients: usize,
    pub seconds: f64,
    /// Each client opens one stream, and all stay open until standard output is closed.
    pub hold: bool,
}

/// What came of it, as JSON on standard output.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    pub seconds: f64,
    pub requests: u64,
    pub errors: u64,
    pub first_error: String,
    pub events: u64,
    pub p50_us: u32,
    pub p99_us: u32,
    pub first_byte_p50_us: u32,
    pub first_byte_p99_us: u32,
}

impl Load {
    fn failed(&mut self, why: String) {
        if self.errors == 0 {
            self.first_error = why;
        }
        self.errors += 1;
    }
}

#[derive(Default)]
struct Sums {
    load: Load,
    whole: Vec<u32>,
    first_byte: Vec<u32>,
}

/// Takes its order, carries it out, tells.
pub async fn run() -> ExitCode {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).expect("an order");
    let order: Rc<Order> = Rc::new(serde_json::from_str(&text).expect("an order"));
    if order.hold {
        return hold(&order).await;
    }
    let sums = Rc::new(RefCell::new(Sums::default()));
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(order.seconds);
    let clients: Vec<_> =
        (0..order.clients).map(|number| tokio::task::spawn_local(client(number, order.clone(), until, sums.clone()))).collect();
    for client in clients {
        client.await.expect("no panic");
    }
    let mut sums = sums.take();
    sums.load.seconds = began.elapsed().as_secs_f64();
    sums.load.requests = sums.whole.len() as u64;
    (sums.load.p50_us, sums.load.p99_us) = percentiles(&mut sums.whole);
    (sums.load.first_byte_p50_us, sums.load.first_byte_p99_us) = percentiles(&mut sums.first_byte);
    println!("{}", serde_json::to_string(&sums.load).expect("JSON"));
    ExitCode::SUCCESS
}

fn percentiles(all: &mut [u32]) -> (u32, u32) {
    all.sort_unstable();
    let at = |share: f64| all.get(((all.len() as f64 * share).ceil() as usize).saturating_sub(1)).copied().unwrap_or_default();
    (at(0.5), at(0.99))
}

type Sender = SendRequest<Full<Bytes>>;

async fn connect(order: &Order) -> Result<Sender, String> {
    let socket = tokio::net::TcpStream::connect(order.addr).await.map_err(|error| error.to_string())?;
    socket.set_nodelay(true).ok();
    let (sender, connection) = handshake(TokioIo::new(socket)).await.map_err(|error| error.to_string())?;
    tokio::task::spawn_local(connection);
    Ok(sender)
}

fn request(order: &Order, number: u64) -> Request<Full<Bytes>> {
    let request = Request::post(&order.path).header("host", "bench").header("content-type", "application/json");
    let body = order.body.replacen(NUMBER, &format!("{number:020}"), 1);
    request.header("authorization", format!("Bearer {}", order.key)).body(body.into()).expect("a request")
}

async fn client(number: usize, order: Rc<Order>, until: Instant, sums: Rc<RefCell<Sums>>) {
    // Numbers never come twice, in this run or in another.
    let mut count = (u64::from(std::process::id()) << 40) + ((number as u64) << 28);
    let mut sender = None;
    while Instant::now() < until {
        count += 1;
        let outcome = async {
            if sender.as_ref().is_none_or(Sender::is_closed) {
                sender = Some(connect(&order).await?);
            }
            one(sender.as_mut().expect("a connection"), &order, count, &sums).await
        };
        if let Err(why) = outcome.await {
            sender = None;
            sums.borrow_mut().load.failed(why);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn one(sender: &mut Sender, order: &Order, number: u64, sums: &RefCell<Sums>) -> Result<(), String> {
    let request = request(order, number);
    sender.ready().await.map_err(|error| error.to_string())?;
    let began = Instant::now();
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let (mut first_byte, mut events, mut end, mut head) = (None, 0, Vec::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| error.to_string())?;
        let Some(bytes) = frame.data_ref() else { continue };
        first_byte.get_or_insert_with(|| began.elapsed());
        if order.stream {
            events += bytes.windows(6).filter(|bytes| *bytes == b"data: ").count() as u64;
        } else if head.is_empty() {
            head.extend_from_slice(bytes);
        }
        // The last word may come in two pieces.
        end.extend_from_slice(bytes);
        end.drain(..end.len().saturating_sub(16));
    }
    let whole = began.elapsed();
    if status != order.status {
        return Err(format!("status {status}: {}", String::from_utf8_lossy(&head)));
    }
    // A chunk cut inside the word `data: ` counts as none; those are few.
    if order.stream && !(end.ends_with(b"[DONE]\n\n") && events >= super::mock::CHUNKS as u64) {
        return Err(format!("a stream of {events} events ended with {}", String::from_utf8_lossy(&end)));
    }
    let mut sums = sums.borrow_mut();
    sums.load.events += events;
    sums.whole.push(whole.as_micros() as u32);
    sums.first_byte.push(first_byte.unwrap_or(whole).as_micros() as u32);
    Ok(())
}

/// Opens the streams, tells that they are open, and keeps them until it is killed.
async fn hold(order: &Order) -> ExitCode {
    let mut open = Vec::new();
    for number in 0..order.clients {
        let mut sender = connect(order).await.expect("a connection");
        let response = sender.send_request(request(order, number as u64)).await.expect("an answer");
        assert_eq!(response.status(), 200, "stream {number}");
        let mut body = response.into_body();
        body.frame().await.expect("a first event").expect("a first event");
        open.push((sender, body));
    }
    println!("{}", serde_json::to_string(&Load { requests: open.len() as u64, ..Load::default() }).expect("JSON"));
    std::future::pending().await
}
