//! A control plane process.

use crate::client::unpooled;
use crate::{Admin, BOUND, Call, Port, Process, binaries, eventually};
use prost::Message;
use proxium_wire::SECRET_HEADER;
use std::net::SocketAddr;
use std::path::Path;

/// Shared by all processes of a stack.
pub const INTERNAL_SECRET: &str = "internal-secret-of-the-tests-0123456789";
/// Of the role admin.
pub(crate) const ADMIN_TOKEN: &str = "admin-token-of-the-tests-0123456789";
pub(crate) const SEAL_KEY: &str = "k1:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// `proxium serve`.
#[derive(Debug)]
pub struct ControlPlane {
    internal: Port,
    admin: Port,
    process: Process,
}

impl ControlPlane {
    /// Starts it; [`ControlPlane::ready`] waits.
    #[must_use]
    pub fn start(name: &str, catalog: &Path, redis_url: &str, env: &[(&str, &str)], dir: &Path) -> Self {
        let (internal, admin) = (Port::take(), Port::take());
        let args = [
            "serve".into(),
            "--catalog".into(),
            catalog.display().to_string(),
            "--redis-url".into(),
            redis_url.into(),
            "--internal-listen".into(),
            internal.addr().to_string(),
            "--admin-listen".into(),
            admin.addr().to_string(),
        ];
        let mut all =
            vec![("PROXIUM_INTERNAL_SECRET", INTERNAL_SECRET), ("PROXIUM_ADMIN_TOKEN", ADMIN_TOKEN), ("PROXIUM_SEAL_KEY", SEAL_KEY)];
        all.extend(crate::catalog::CREDENTIALS);
        all.extend(env);
        let mut process = Process::new(name, &binaries::proxium(), args, &all, dir);
        process.start();
        Self { internal, admin, process }
    }

    /// Waits until `/readyz` says so.
    pub async fn ready(&mut self) {
        let admin = self.admin();
        eventually("the control plane is ready", BOUND, || {
            let ended = self.process.check();
            let admin = admin.clone();
            async move {
                if let Err(why) = ended {
                    panic!("{why}");
                }
                match admin.try_send(&Call::new("GET", "/readyz")).await {
                    Ok(response) if response.status == 200 => Ok(()),
                    Ok(response) => Err(format!("{} {}", response.status, response.text())),
                    Err(error) => Err(error.to_string()),
                }
            }
        })
        .await;
    }

    /// Where filters call it.
    #[must_use]
    pub const fn internal(&self) -> &Port {
        &self.internal
    }

    /// Tells it something on its internal port, as a filter would.
    ///
    /// # Errors
    /// What it answered instead of 200, or why nothing.
    ///
    /// # Panics
    /// The answer is not the message.
    pub async fn tell<M: Message + Default>(&self, path: &str, message: &impl Message) -> Result<M, String> {
        let call = Call::new("POST", path).header(SECRET_HEADER, INTERNAL_SECRET).body(message.encode_to_vec());
        let answer = call.send(&unpooled(), &format!("http://{}", self.internal.addr())).await.map_err(|error| error.to_string())?;
        if answer.status != 200 {
            return Err(format!("{} {}", answer.status, answer.text()));
        }
        Ok(M::decode(answer.body.as_slice()).expect("the message"))
    }

    /// Where its admin port is.
    #[must_use]
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin.addr()
    }

    /// Its admin port, as the administrator.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(format!("http://{}", self.admin.addr()), ADMIN_TOKEN)
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again after [`ControlPlane::kill`], on the same ports, and waits until it is ready.
    pub async fn restart(&mut self) {
        self.restart_unready();
        self.ready().await;
    }

    /// The same without waiting: Redis may be down.
    pub fn restart_unready(&mut self) {
        self.kill();
        self.process.start();
    }

    /// To pause it or read its log.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }
}
