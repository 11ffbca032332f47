//! Ports that nobody else takes.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

/// Below the range from which the kernel takes ports of outgoing connections (32768 on Linux): a port stays free while its server is
/// down.
const RANGE: std::ops::Range<u16> = 15_000..32_000;

/// A loopback port of ours for as long as this lives: a lock file keeps it from all other test processes of the machine.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Unlocked when closed, so also when the process is killed.
    _lock: File,
}

impl Port {
    /// Takes a free one.
    ///
    /// # Panics
    /// No port is free.
    #[must_use]
    pub fn take() -> Self {
        Self::take_row(1).pop().expect("one")
    }

    /// Takes free ones, one after the other in number.
    ///
    /// # Panics
    /// There is no such row.
    #[must_use]
    pub fn take_row(count: u16) -> Vec<Self> {
        let locks = std::env::temp_dir().join("proxium-e2e-ports");
        std::fs::create_dir_all(&locks).expect("a directory for lock files");
        let width = RANGE.end - RANGE.start;
        // Seeds of hash maps are random: test processes begin at different ports.
        let start = RandomState::new().hash_one(std::process::id()) % u64::from(width);
        (0..width)
            .find_map(|step| {
                let first = RANGE.start + u16::try_from((start + u64::from(step)) % u64::from(width)).ok()?;
                (first..first + count).map(|number| Self::lock(&locks, number)).collect()
            })
            .expect("free ports")
    }

    fn lock(locks: &Path, number: u16) -> Option<Self> {
        let lock = File::create(locks.join(number.to_string())).ok()?;
        lock.try_lock().ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _lock: lock })
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Loopback and the number.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_port_is_taken_twice() {
        let ports: Vec<Port> = (0..100).map(|_| Port::take()).collect();
        assert_eq!(ports.iter().map(Port::number).collect::<HashSet<_>>().len(), 100);
    }
}
