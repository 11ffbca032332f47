//! A Redis of one's own.

use crate::{BOUND, Port, Process, binaries, eventually};
use fred::prelude::*;
use std::path::Path;

/// A Redis with an append-only file, synced at each write, as `deploy/redis.conf` has it.
#[derive(Debug)]
pub struct Redis {
    port: Port,
    process: Process,
}

impl Redis {
    /// Starts it and waits until it answers.
    pub async fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[]).await
    }

    /// The same with these words more on its command line.
    pub async fn start_with(dir: &Path, settings: &[&str]) -> Self {
        let mut redis = Self::stopped_with(dir, settings);
        redis.resume_service().await;
        redis
    }

    /// Has a port, does not run yet.
    #[must_use]
    pub fn stopped(dir: &Path) -> Self {
        Self::stopped_with(dir, &[])
    }

    fn stopped_with(dir: &Path, settings: &[&str]) -> Self {
        let port = Port::take();
        let data = dir.join("redis");
        std::fs::create_dir_all(&data).expect("a directory for Redis");
        let mut args = Vec::new();
        let conf = binaries::in_repo("deploy/redis.conf");
        if conf.exists() {
            args.push(conf.display().to_string());
        }
        args.extend(["--port".into(), port.number().to_string(), "--dir".into(), data.display().to_string()]);
        for (name, value) in [
            ("--bind", "127.0.0.1"),
            ("--save", ""),
            ("--appendonly", "yes"),
            ("--appendfsync", "always"),
            ("--maxmemory-policy", "noeviction"),
            ("--daemonize", "no"),
        ] {
            args.extend([name.into(), value.into()]);
        }
        args.extend(settings.iter().map(|word| (*word).into()));
        let process = Process::new("redis", &binaries::redis_server(), args, &[], dir);
        Self { port, process }
    }

    /// As the control plane takes it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.port.addr())
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// SIGKILL. What was acknowledged is in the append-only file.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGKILL, start, wait until it has loaded its data.
    pub async fn restart(&mut self) {
        self.kill();
        self.resume_service().await;
    }

    /// Starts it after [`Redis::kill`] or [`Redis::stopped`], and waits until it answers.
    pub async fn resume_service(&mut self) {
        self.process.start();
        let client = self.client();
        eventually("Redis answers", BOUND, || {
            let ended = self.process.check();
            let client = &client;
            async move {
                if let Err(why) = ended {
                    panic!("{why}");
                }
                client.ping::<String>(None).await
            }
        })
        .await;
        client.quit().await.ok();
    }

    /// SIGSTOP: connections stay, nothing answers; [`Process::resume`] ends it.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// A client that reconnects by itself.
    ///
    /// # Panics
    /// Never: the URL is a good one.
    #[must_use]
    pub fn client(&self) -> Client {
        proxium::store::connect(&self.url()).expect("a good URL")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dir;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_written_is_there_after_a_kill() {
        let dir = Dir::fresh();
        let mut redis = Redis::start(dir.path()).await;
        let client = redis.client();
        client.wait_for_connect().await.unwrap();
        client.set::<(), _, _>("name", "value", None, None, false).await.unwrap();
        redis.restart().await;
        let value = eventually("the client is back", BOUND, || client.get::<Option<String>, _>("name")).await;
        assert_eq!(value.as_deref(), Some("value"));
    }
}
