//! What a request costs on any machine: commands that Redis runs, and calls of the control plane.

use super::servers::Servers;
use proxium_e2e::{Call, Key, chat};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Of one request.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Count {
    /// Commands that came over the wire.
    pub sent: usize,
    /// Commands that scripts ran.
    pub in_scripts: usize,
}

/// Of each kind of request.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    pub hit: Count,
    pub miss: Count,
    pub kept: Count,
    pub refusal: Count,
}

/// By then a request and its settlement are over.
const SETTLED: Duration = Duration::from_millis(500);

/// Reads what Redis runs.
pub struct Monitor(BufReader<std::net::TcpStream>);

impl Monitor {
    /// Begins.
    pub fn start(redis: SocketAddr) -> Self {
        let mut socket = super::cells::connect(redis);
        socket.set_read_timeout(Some(SETTLED)).expect("a timeout");
        socket.write_all(b"MONITOR\r\n").expect("Redis listens");
        let mut monitor = Self(BufReader::new(socket));
        let mut line = String::new();
        monitor.0.read_line(&mut line).expect("+OK");
        monitor
    }

    /// The lines of a project, but for what a sweep does.
    pub fn lines(self, project: &str) -> Vec<String> {
        self.all_lines().into_iter().filter(|line| line.contains(project) && !line.contains("\"ZCOUNT\"")).collect()
    }

    /// All lines.
    pub fn all_lines(mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let until = Instant::now() + SETTLED;
        // What else the control plane asks goes on for ever.
        while Instant::now() < until {
            let mut line = String::new();
            match self.0.read_line(&mut line) {
                Ok(1..) => lines.push(line),
                Ok(0) | Err(_) => break,
            }
        }
        lines
    }
}

/// The parts of the command on a line, as Redis quotes them: `"text\x00\n\""`.
pub fn quoted(line: &str) -> Vec<Vec<u8>> {
    let (mut parts, mut open) = (Vec::new(), None::<Vec<u8>>);
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match (byte, &mut open) {
            (b'"', None) => open = Some(Vec::new()),
            (b'"', Some(_)) => parts.extend(open.take()),
            (b'\\', Some(part)) => part.push(match bytes.next().expect("an escape") {
                b'x' => {
                    let digits = [bytes.next().expect("a digit"), bytes.next().expect("a digit")];
                    u8::from_str_radix(str::from_utf8(&digits).expect("digits"), 16).expect("digits")
                }
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'a' => 7,
                b'b' => 8,
                other => other,
            }),
            (_, Some(part)) => part.push(byte),
            (_, None) => {}
        }
    }
    parts
}

/// Counts each kind once.
pub async fn count(servers: &Servers) -> Counts {
    let stack = &servers.stack;
    let one = async |key: &Key, text: &str, status: u16| {
        let monitor = Monitor::start(servers.redis());
        let _ = stack.call(&Call::chat(key, &chat("gpt-4o-mini", text))).await.expect(status);
        let lines = tokio::task::spawn_blocking({
            let project = key.project.clone();
            move || monitor.lines(&project)
        });
        let (in_scripts, sent): (Vec<String>, Vec<String>) =
            lines.await.expect("lines").into_iter().partition(|line| line.contains(" lua]"));
        // The clock has no project in it.
        Count { sent: sent.len(), in_scripts: in_scripts.len() }
    };
    // So that each key is known, and the one call an hour is made.
    one(&servers.metered, "warm", 200).await;
    one(&servers.cached, "warm", 200).await;
    one(&servers.refused, "warm", 200).await;
    Counts {
        miss: one(&servers.metered, "a miss", 200).await,
        kept: one(&servers.cached, "kept", 200).await,
        hit: one(&servers.cached, "kept", 200).await,
        refusal: one(&servers.refused, "refused", 429).await,
    }
}
