//! Runs the real binary.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod adder;
pub mod apart;
pub mod cache_load;
pub mod etc_hosts;
pub mod gate;
pub mod kept;
pub mod lab;
pub mod machines;
pub mod market;
pub mod memcached;
pub mod nbd;
pub mod net;
pub mod prometheus;
pub mod sectors;
pub mod server;
pub mod small_disk;
pub mod well;
pub mod writer;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

/// The binary under test, blind to the caller's environment.
pub fn cenote() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
    command
        .env_remove("CENOTE_DIR")
        .env_remove("CENOTE_LOG")
        .env("NO_COLOR", "1");
    // Tests that nohup or a script's `&` runs would hand down what those have ignored.
    set_hangups(&mut command, libc::SIG_DFL);
    command
}

/// The same, run by somebody who ignores SIGHUP and SIGINT.
pub fn cenote_that_ignores_hangups() -> Command {
    let mut command = cenote();
    // The last one counts.
    set_hangups(&mut command, libc::SIG_IGN);
    command
}

fn set_hangups(command: &mut Command, how: libc::sighandler_t) {
    let set = move || {
        for signal in [libc::SIGHUP, libc::SIGINT] {
            // SAFETY: no handler is installed, and both are signals that may be set.
            unsafe { libc::signal(signal, how) };
        }
        Ok(())
    };
    // SAFETY: signal(2) is async-signal-safe, and the closure allocates nothing.
    unsafe { command.pre_exec(set) };
}

/// The words of a line, such as a command's: none of them has a blank in it, nor have the paths of
/// temporary folders.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Whether all these programs are there; says which is not.
pub fn has(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&str| std::env::split_paths(&path).any(|at| at.join(program).exists());
    let missing = programs.iter().find(|program| !is_there(program));
    if let Some(program) = missing {
        println!("skipped: {program} is not installed (scripts/install-packages.sh installs it)");
    }
    missing.is_none()
}

/// Runs to the end.
pub fn run(arguments: &[&str]) -> Ended {
    Ended::from(cenote().args(arguments).output().expect("the binary runs"))
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("no signal ended it"),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }
}

impl Ended {
    /// Asserts the exit code, showing everything otherwise.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:#?}"))
    }
}

/// A folder for a cluster; whatever runs in it is ended when it is dropped.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    /// One with the key of a cluster that is not there yet.
    pub fn with_key() -> Self {
        let folder = Self::new();
        let key = folder.path().join("cluster.key");
        run(&["key", "new", "--out", key.to_str().expect("UTF-8")]).expect(0);
        folder
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn str(&self) -> &str {
        self.path().to_str().expect("UTF-8")
    }

    pub fn host(&self, name: &str) -> PathBuf {
        self.path().join("hosts").join(name)
    }

    pub fn pid(&self, name: &str) -> u32 {
        let text = std::fs::read_to_string(self.host(name).join("pid")).expect("a pid file");
        text.trim().parse().expect("a number")
    }

    /// Runs a command on this folder.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        Ended::from(
            cenote()
                .args(arguments)
                .args(["--dir", self.str()])
                .output()
                .expect("the binary runs"),
        )
    }

    /// `cenote status` where all are up, and answer as soon as the machine lets them.
    pub fn look(&self, flags: &[&str]) -> Ended {
        self.run(&[&["status", "--timeout", "60s"], flags].concat())
    }

    /// What a host says of itself. On a busy machine it may be silent for as long as a command
    /// waits.
    pub fn status_of(&self, host: &str) -> Value {
        let ask = || self.run(&["status", "--json"]);
        host_status(ask, host)
    }

    /// Bytes that hosts have lent, when all that run have said how many.
    pub fn lent_bytes(&self) -> u64 {
        let ask = || self.run(&["status", "--json"]);
        let status = well::until("all hosts answer", ask, |status| {
            let mut hosts = status["hosts"].as_array().expect("hosts").iter();
            hosts.all(|host| host["state"] != "silent")
        });
        status["lent_bytes"].as_u64().expect("a number")
    }

    pub fn create_volume(&self, name: &str, size: &str, scheme: &str) {
        self.run(&["volume", "create", name, "--size", size, "--scheme", scheme])
            .expect(0);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Servers in the background are nobody's children, and outlive their cluster.
        let servers = std::fs::read_dir(self.path().join("servers"));
        for server in servers.into_iter().flatten().flatten() {
            if let Some(name) = server.file_name().to_str() {
                self.run(&["volume", "stop", name, "--timeout", "10s"]);
            }
        }
        let mut ended = self.run(&["down", "--force"]);
        if ended.code != 0 && ended.stderr.contains("cluster.toml") {
            // A test that wrote the file itself ends its hosts; managers of caches are ended here.
            let removed = std::fs::remove_file(self.path().join("cluster.toml"));
            removed.expect("it is there");
            ended = self.run(&["down", "--force"]);
        }
        if ended.code != 0 && !std::thread::panicking() {
            panic!("{ended:#?}");
        }
    }
}

/// What a host says of itself, by a command that asks all hosts until this one answers.
pub fn host_status(ask: impl Fn() -> Ended, host: &str) -> Value {
    let of = |status: &Value| {
        let mut hosts = status["hosts"].as_array().expect("hosts").iter();
        let found = hosts.find(|entry| entry["name"] == host);
        found.expect("a host of the cluster")["status"].clone()
    };
    let what = format!("{host} answers");
    of(&well::until(&what, ask, |status| !of(status).is_null()))
}

/// Whether a process of this number runs: any thread of it. Its state would not tell, for that is the first
/// thread's, and others may still hold its sockets and its memory.
pub fn runs(pid: u32) -> bool {
    let pid = Pid::from_raw(pid.try_into().expect("a process number")).expect("not 0");
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    let mut fds = [PollFd::new(&process, PollFlags::IN)];
    let now = Timespec::default();
    let ended = retry_on_intr(|| poll(&mut fds, Some(&now))).expect("poll");
    ended == 0
}

/// Waits until no thread of a process runs.
pub fn wait_ended(pid: u32) {
    let deadline = Instant::now() + PATIENCE;
    while runs(pid) {
        assert!(Instant::now() < deadline, "{pid} is still there");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How long the end of a process may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends a signal by number.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .status()
        .expect("kill runs");
    assert!(status.success(), "kill -s {name} {pid}");
}
