//! `Admit` alone over HTTP/2, and its bare script over one connection of Redis, with as many under way.

use super::counts::{Monitor, quoted};
use super::servers::Servers;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use proxium_e2e::INTERNAL_SECRET;
use proxium_wire::{AdmitReply, AdmitRequest, Alternative, Call, Endpoint, Hold, SECRET_HEADER, admit_reply::Outcome, path};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{ExitCode, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::process::Command;

/// So many under way at once.
const PIPELINED: usize = 64;

/// Rates a second, one of each round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Admit {
    pub admit: Vec<f64>,
    pub bare: Vec<f64>,
}

/// What the other process is told.
#[derive(Serialize, Deserialize)]
pub struct Order {
    control_plane: SocketAddr,
    redis: SocketAddr,
    project: String,
    key_id: String,
    seconds: f64,
    /// The script's call as the control plane makes it; none: measure the control plane.
    bare: Option<Vec<Vec<u8>>>,
}

impl Order {
    /// Of a script alone.
    pub const fn bare(redis: SocketAddr, call: Vec<Vec<u8>>, seconds: f64) -> Self {
        Self { control_plane: redis, redis, project: String::new(), key_id: String::new(), seconds, bare: Some(call) }
    }
}

/// An admission that holds little.
pub fn request(project: &str, key_id: &str, id: String) -> AdmitRequest {
    AdmitRequest {
        id,
        project: project.into(),
        key_id: key_id.into(),
        call: Call {
            endpoint: Endpoint::Chat.into(),
            requested_model: "gpt-4o-mini".into(),
            resolved_model: "gpt-4o-mini".into(),
            ..Call::default()
        },
        normal: Alternative {
            hold: Hold { input_tokens: 300, output_tokens: 256, nano_usd: 200_000 },
            providers: vec!["mock".into()],
            ..Alternative::default()
        },
        hold_ms: 600_000,
        ..AdmitRequest::default()
    }
}

/// Measures both, interleaved.
pub async fn measure(servers: &Servers, seconds: f64, rounds: usize) -> Admit {
    let control_plane = &servers.stack.control_planes[0];
    let (project, key_id) = (&servers.metered.project, &servers.metered.id);
    let monitor = Monitor::start(servers.redis());
    let reply: AdmitReply = control_plane.tell(path::ADMIT, &request(project, key_id, PLACE_OF_ID.into())).await.expect("an admission");
    assert!(matches!(reply.outcome, Some(Outcome::Admitted(_))), "{reply:?}");
    let lines = monitor.lines(project);
    let call = script_call(&lines);
    let mut admit = Admit::default();
    for _ in 0..rounds {
        for bare in [None, Some(call.clone())] {
            let rates = if bare.is_some() { &mut admit.bare } else { &mut admit.admit };
            let order = Order {
                control_plane: control_plane.internal().addr(),
                redis: servers.redis(),
                project: project.clone(),
                key_id: key_id.clone(),
                seconds,
                bare,
            };
            rates.push(rate(&order).await);
        }
    }
    admit
}

/// The script's call among what Redis was seen to run: `+<time> [0 <address>] "FCALL" "<function>" …`
pub fn script_call(lines: &[String]) -> Vec<Vec<u8>> {
    let of_script = |line: &&String| line.contains("\"FCALL\"") && line.contains(PLACE_OF_ID);
    // The first try may have had to load the library.
    let line = lines.iter().rfind(of_script).expect("the script's call");
    quoted(line)
}

/// What the other process measures.
pub async fn rate(order: &Order) -> f64 {
    let this = std::env::current_exe().expect("this program");
    let order = serde_json::to_string(order).expect("JSON");
    let output = Command::new(this).args(["admit", &order]).stdin(Stdio::null()).stderr(Stdio::inherit()).output().await.expect("it runs");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a rate")
}

/// The other process: prints a rate.
pub async fn run() -> ExitCode {
    let order: Rc<Order> = Rc::new(serde_json::from_str(&std::env::args().nth(2).expect("an order")).expect("an order"));
    let until = Instant::now() + Duration::from_secs_f64(order.seconds);
    let done = match &order.bare {
        Some(call) => bare(&order, call, until),
        None => admit(&order, until).await,
    };
    println!("{}", done as f64 / order.seconds);
    ExitCode::SUCCESS
}

/// Stands where an id is put, and is as long.
pub const PLACE_OF_ID: &str = "req_bench_0000000_000000000";

/// Ids that no other run has.
fn id(number: u64) -> String {
    format!("req_bench_{:07}_{number:09}", std::process::id())
}

async fn admit(order: &Rc<Order>, until: Instant) -> u64 {
    let socket = tokio::net::TcpStream::connect(order.control_plane).await.expect("the control plane");
    socket.set_nodelay(true).ok();
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.expect("HTTP/2");
    tokio::spawn(connection);
    let done = Rc::new(Cell::new(0));
    let one = |order: Rc<Order>, mut sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>, done: Rc<Cell<u64>>| async move {
        while Instant::now() < until {
            let number = done.replace(done.get() + 1);
            let body: Bytes = request(&order.project, &order.key_id, id(number)).encode_to_vec().into();
            let call = Request::post(format!("http://proxium{}", path::ADMIT)).header(SECRET_HEADER, INTERNAL_SECRET).body(Full::new(body));
            let response = sender.send_request(call.expect("a request")).await.expect("an answer");
            assert_eq!(response.status(), 200);
            response.into_body().collect().await.expect("an answer");
        }
    };
    let clients: Vec<_> = (0..PIPELINED).map(|_| tokio::task::spawn_local(one(order.clone(), sender.clone(), done.clone()))).collect();
    for client in clients {
        client.await.expect("no panic");
    }
    done.get()
}

/// As `redis-benchmark -P 64`: so many commands, then so many answers.
fn bare(order: &Order, call: &[Vec<u8>], until: Instant) -> u64 {
    let mut socket = super::cells::connect(order.redis);
    let mut answers = BufReader::new(socket.try_clone().expect("a second handle"));
    let mut command = format!("*{}\r\n", call.len()).into_bytes();
    for part in call {
        write!(command, "${}\r\n", part.len()).expect("memory");
        command.extend([part, &b"\r\n"[..]].concat());
    }
    let is_place = |at: &usize| command[*at..].starts_with(PLACE_OF_ID.as_bytes());
    let places: Vec<_> = (0..command.len()).filter(is_place).collect();
    let mut done = 0;
    while Instant::now() < until {
        let mut commands = Vec::new();
        for _ in 0..PIPELINED {
            places.iter().for_each(|&at| command[at..at + PLACE_OF_ID.len()].copy_from_slice(id(done).as_bytes()));
            commands.extend_from_slice(&command);
            done += 1;
        }
        socket.write_all(&commands).expect("Redis listens");
        (0..PIPELINED).for_each(|_| skip_answer(&mut answers));
    }
    done
}

fn skip_answer(answers: &mut BufReader<std::net::TcpStream>) {
    let mut line = String::new();
    answers.read_line(&mut line).expect("an answer");
    let number = || line[1..].trim().parse::<i64>().expect("a number");
    match line.as_bytes()[0] {
        b'*' => (0..number()).for_each(|_| skip_answer(answers)),
        b'$' if number() >= 0 => {
            let mut text = vec![0; number() as usize + 2];
            answers.read_exact(&mut text).expect("a text");
        }
        b'-' => panic!("{line}"),
        _ => {}
    }
}
