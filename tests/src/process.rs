//! A child process that does not outlive its test.

use crate::orphans;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// How to start a process, and the process while it runs. Dropping it kills it, and prints the end of its log if the test is failing.
#[derive(Debug)]
pub struct Process {
    name: String,
    binary: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Does not start yet. The log goes to `<dir>/<name>.log`.
    pub fn new<A: Into<OsString>>(name: &str, binary: &Path, args: impl IntoIterator<Item = A>, env: &[(&str, &str)], dir: &Path) -> Self {
        Self {
            name: name.into(),
            binary: binary.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            log: dir.join(format!("{name}.log")),
            child: None,
        }
    }

    fn open_log(&self) -> File {
        OpenOptions::new().create(true).append(true).open(&self.log).expect("a log file")
    }

    /// Starts it (again).
    ///
    /// # Panics
    /// It runs already, or cannot be started.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let child = Command::new(&self.binary)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            // Out of reach of ctrl-C; `orphans` ends it then.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(self.open_log())
            .stderr(self.open_log())
            .spawn();
        let child =
            child.unwrap_or_else(|error| panic!("{} cannot be started: {error}; have you run `make build`?", self.binary.display()));
        orphans::adopt(&child);
        self.child = Some(child);
    }

    /// Its id.
    ///
    /// # Panics
    /// It does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Its resident memory.
    ///
    /// # Panics
    /// It is not running.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
    }

    /// SIGKILL, and waits until it is gone. Nothing if it does not run.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            orphans::release(&child);
            child.wait().ok();
        }
    }

    /// SIGTERM, and waits until it is gone.
    pub fn terminate(&mut self) {
        self.signal("TERM");
        if let Some(mut child) = self.child.take() {
            child.wait().ok();
            orphans::release(&child);
        }
    }

    /// SIGSTOP: its connections stay and nothing answers.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// SIGCONT after [`Process::pause`].
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// By the shell's own `kill`, since std knows SIGKILL only.
    fn signal(&self, signal: &str) {
        if let Some(child) = &self.child {
            Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status().expect("sh");
        }
    }

    /// Its process id while it runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        let status = child.try_wait().ok().flatten()?;
        orphans::release(child);
        Some(status)
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.child.is_some() && self.ended().is_none()
    }

    /// `Err` with the end of the log once it has ended by itself.
    ///
    /// # Errors
    /// See above.
    pub fn check(&mut self) -> Result<(), String> {
        self.ended().map_or(Ok(()), |status| Err(format!("{} ended with {status}:\n{}", self.name, self.log_end())))
    }

    /// All it has logged so far, over all its starts.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("---- {} (end of its log) ----\n{}\n", self.name, self.log_end());
        } else if let Some(leak) = crate::private::leak(&self.log()) {
            panic!("the log of {} holds what it must not: {leak}", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BOUND, Dir, eventually};

    fn shell(dir: &Dir, script: &str) -> Process {
        Process::new("shell", Path::new("/bin/sh"), ["-c", script], &[("GREETING", "hello")], dir.path())
    }

    #[tokio::test]
    async fn a_process_logs_and_is_gone_when_dropped() {
        let dir = Dir::fresh();
        let mut process = shell(&dir, "echo $GREETING $$; exec sleep 600");
        process.start();
        eventually("a greeting", BOUND, || std::future::ready(process.log().starts_with("hello "))).await;
        let pid: u32 = process.log().trim().rsplit(' ').next().unwrap().parse().unwrap();
        assert!(process.is_running());
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[tokio::test]
    async fn a_process_that_ends_by_itself_tells_why() {
        let dir = Dir::fresh();
        let mut process = shell(&dir, "echo no such catalog; exit 3");
        process.start();
        let why = eventually("its end", BOUND, || std::future::ready(process.check().err())).await;
        assert!(why.contains("no such catalog") && why.contains('3'), "{why}");
    }
}
