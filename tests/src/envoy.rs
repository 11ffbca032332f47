//! An Envoy process with the filter, configured by `proxium render envoy`.

use crate::client::unpooled;
use crate::control_plane::INTERNAL_SECRET;
use crate::{BOUND, Call, Port, Process, Response, binaries, eventually};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// How to render; the flags of `proxium render envoy`.
#[derive(Clone, Debug)]
pub(crate) struct Render {
    pub catalog: PathBuf,
    pub wasm: PathBuf,
    pub control_planes: Vec<String>,
    pub more: Vec<String>,
}

/// An Envoy and its files.
#[derive(Debug)]
pub struct Envoy {
    listen: Port,
    admin: Port,
    files: PathBuf,
    render: Render,
    process: Process,
    client: reqwest::Client,
}

/// Makes calls on an Envoy, each on a connection of its own.
#[derive(Clone, Debug)]
pub struct Caller {
    pub(crate) client: reqwest::Client,
    pub(crate) base: String,
}

impl Caller {
    /// A call.
    ///
    /// # Errors
    /// No whole answer came.
    pub async fn call(&self, call: &Call) -> Result<Response, reqwest::Error> {
        call.send(&self.client, &self.base).await
    }
}

impl Envoy {
    /// Renders its files and starts it.
    pub(crate) fn start(name: &str, render: &Render, concurrency: u32, dir: &Path) -> Self {
        let (listen, admin) = (Port::take(), Port::take());
        let files = dir.join(name);
        let args = [
            "-c".into(),
            files.join("bootstrap.yaml").display().to_string(),
            "--concurrency".into(),
            concurrency.to_string(),
            "--disable-hot-restart".into(),
            "--log-level".into(),
            std::env::var("PROXIUM_ENVOY_LOG").unwrap_or_else(|_| "warning".into()),
        ];
        let process = Process::new(name, &binaries::envoy(), args, &[], dir);
        let mut envoy = Self { listen, admin, files, render: render.clone(), process, client: unpooled() };
        envoy.render();
        envoy.process.start();
        envoy
    }

    /// Renders its files again, from the catalog as it is now; a running Envoy takes them up by itself.
    ///
    /// # Panics
    /// The catalog is refused.
    pub fn render(&self) {
        let output = Command::new(binaries::proxium())
            .args(["render", "envoy", "--catalog"])
            .arg(&self.render.catalog)
            .arg("--out")
            .arg(&self.files)
            .arg("--wasm")
            .arg(&self.render.wasm)
            .args(["--envoy-listen", &self.listen.addr().to_string(), "--envoy-admin", &self.admin.addr().to_string()])
            .args(self.render.control_planes.iter().flat_map(|addr| ["--control-plane", addr]))
            .args(&self.render.more)
            .env("PROXIUM_INTERNAL_SECRET", INTERNAL_SECRET)
            .envs(crate::catalog::CREDENTIALS)
            .output()
            .expect("proxium runs");
        assert!(output.status.success(), "proxium render: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// From the next [`Envoy::render`] on: this filter.
    pub fn set_wasm(&mut self, wasm: &Path) {
        self.render.wasm = wasm.into();
    }

    /// From the next [`Envoy::render`] on: these flags in place of the builder's.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.render.more = flags.iter().map(|flag| (*flag).into()).collect();
    }

    /// Waits until every worker's filter knows the catalog: a valid key and an unknown model is `model_not_found`, on 16 connections in
    /// a row.
    pub async fn ready(&mut self, key: &str) {
        let probe = Call::chat(key, &crate::chat("no-such-model", "ready?"));
        let base = self.base();
        eventually("every worker's filter knows the catalog", BOUND, || {
            let ended = self.process.check();
            let (probe, client, base) = (&probe, self.client.clone(), &base);
            async move {
                if let Err(why) = ended {
                    panic!("{why}");
                }
                for _ in 0..16 {
                    match probe.send(&client, base).await {
                        Ok(response) if response.text().contains("model_not_found") => {}
                        Ok(response) => return Err(format!("{} {}", response.status, response.text())),
                        Err(error) => return Err(error.to_string()),
                    }
                }
                Ok(())
            }
        })
        .await;
    }

    fn base(&self) -> String {
        format!("http://{}", self.listen.addr())
    }

    /// Makes a call on a connection of its own.
    ///
    /// # Panics
    /// No whole answer came.
    pub async fn call(&self, call: &Call) -> Response {
        self.try_call(call).await.expect("an answer of Envoy")
    }

    /// The same where the answer may fail to come.
    ///
    /// # Errors
    /// No whole answer came.
    pub async fn try_call(&self, call: &Call) -> Result<Response, reqwest::Error> {
        call.send(&self.client, &self.base()).await
    }

    /// Makes a call in the background, on a connection of its own; aborting the handle hangs up.
    #[must_use]
    pub fn spawn(&self, call: Call) -> JoinHandle<Result<Response, reqwest::Error>> {
        let (client, base) = (self.client.clone(), self.base());
        tokio::spawn(async move { call.send(&client, &base).await })
    }

    /// For tasks of one's own, which outlive this borrow.
    #[must_use]
    pub fn caller(&self) -> Caller {
        Caller { client: self.client.clone(), base: self.base() }
    }

    /// Sends these bytes on a connection of its own and reads until Envoy closes it or is silent for a second after its first byte.
    ///
    /// # Panics
    /// No connection, or no byte within the bound.
    pub async fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut socket = self.connect().await;
        // Envoy may answer and close before it has read all.
        socket.write_all(bytes).await.ok();
        let (mut answer, mut chunk, mut bound) = (Vec::new(), [0; 16_384], BOUND);
        loop {
            match tokio::time::timeout(bound, socket.read(&mut chunk)).await {
                Ok(Ok(read)) if read > 0 => answer.extend_from_slice(&chunk[..read]),
                Err(_) if answer.is_empty() => panic!("no byte within {bound:?}"),
                _ => return answer,
            }
            bound = Duration::from_secs(1);
        }
    }

    /// A raw connection; dropping it is a hang-up.
    ///
    /// # Panics
    /// It is refused.
    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.listen.addr()).await.expect("a connection to Envoy")
    }

    /// A path of Envoy's own admin port (`/stats`, `/config_dump`, …).
    ///
    /// # Panics
    /// No answer.
    pub async fn admin(&self, path: &str) -> String {
        let call = Call::new("GET", path);
        call.send(&self.client, &format!("http://{}", self.admin.addr())).await.expect("an answer of Envoy's admin port").text()
    }

    /// Where that port is.
    #[must_use]
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin.addr()
    }

    /// One counter or gauge of `/stats`; 0 if it is not there.
    pub async fn stat(&self, name: &str) -> u64 {
        let stats = self.admin(&format!("/stats?filter={name}")).await;
        stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok()).unwrap_or(0)
    }

    /// The directory that it watches.
    #[must_use]
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// The port for clients.
    #[must_use]
    pub const fn listen(&self) -> &Port {
        &self.listen
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same port; [`Envoy::ready`] waits.
    pub fn restart(&mut self) {
        self.kill();
        self.process.start();
    }

    /// To pause it or read its log.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }
}
