//! Ends the child processes of a test process that could not do so itself (SIGKILL, ctrl-C): drops do not run then.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Keeps a list of pids; its standard input ends when the test process does, however that happens.
const WATCHER: &str = r#"
while read -r sign pid; do
    kept=
    for known in $pids; do [ "$known" = "$pid" ] || kept="$kept $known"; done
    pids=$kept
    [ "$sign" = - ] || pids="$pids $pid"
done
[ -z "$pids" ] || kill -9 $pids
"#;

static INPUT: LazyLock<Mutex<ChildStdin>> = LazyLock::new(|| {
    // A group of its own, out of reach of ctrl-C.
    let watcher = Command::new("sh").args(["-c", WATCHER]).stdin(Stdio::piped()).process_group(0).spawn();
    Mutex::new(watcher.expect("sh").stdin.take().expect("a pipe"))
});

fn tell(sign: char, child: &Child) {
    let mut input = INPUT.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(input, "{sign} {}", child.id()).ok();
}

/// From now on this child does not outlive the test process.
pub(crate) fn adopt(child: &Child) {
    tell('+', child);
}

/// The child is gone: its pid may soon be someone else's.
pub(crate) fn release(child: &Child) {
    tell('-', child);
}

#[cfg(test)]
mod tests {
    use crate::{BOUND, Dir, Process, eventually};
    use std::path::Path;

    /// Not a test of its own: what the test below runs in another process and kills.
    #[tokio::test]
    #[ignore = "run by another test"]
    async fn a_process_that_is_killed() {
        let dir = Dir::fresh();
        let mut process = Process::new("sleep", Path::new("/bin/sh"), ["-c", "echo $$ > $PID_FILE; exec sleep 600"], &[], dir.path());
        process.start();
        // Only now is the child adopted; its parent may be killed.
        std::fs::write(format!("{}.adopted", std::env::var("PID_FILE").unwrap()), "").unwrap();
        std::future::pending::<()>().await;
    }

    #[tokio::test]
    async fn children_of_a_killed_test_process_are_ended() {
        let dir = Dir::fresh();
        let pid_file = dir.path().join("pid");
        let binary = std::env::current_exe().unwrap();
        let env = [("PID_FILE", pid_file.to_str().unwrap())];
        let args = ["--ignored", "--exact", "orphans::tests::a_process_that_is_killed"];
        let mut tests = Process::new("tests", &binary, args, &env, dir.path());
        tests.start();
        let pid = || std::fs::read_to_string(&pid_file).ok().and_then(|pid| pid.trim().parse::<u32>().ok());
        let pid = eventually("the child runs", BOUND, || std::future::ready(pid())).await;
        eventually("it is adopted", BOUND, || std::future::ready(dir.path().join("pid.adopted").exists())).await;
        tests.kill();
        // Gone, or a zombie where nobody reaps.
        let gone = || std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
        eventually("the child is gone", BOUND, || std::future::ready(gone())).await;
    }
}
