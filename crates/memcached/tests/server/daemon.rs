//! `-d`: the process that stays, in another working directory.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use super::process::{ask, read_to, run, run_in, signal, stats, until};

/// One that was started in a folder of its own, with the socket `socket` there.
struct Daemon {
    folder: tempfile::TempDir,
    process: u32,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended where its test is through.
        let mut kill = Command::new("kill");
        let kill = kill.args(["-KILL", &self.process.to_string()]);
        kill.stderr(Stdio::null())
            .status()
            .expect("there is a kill");
    }
}

impl Daemon {
    /// Files have been put there, and arguments name them as they are seen from there.
    fn start(folder: tempfile::TempDir, arguments: &[&str]) -> Self {
        let all = [&["-d", "-u", "root", "-t", "1", "-s", "socket"], arguments].concat();
        let (status, said) = run_in(folder.path(), &all);
        assert_eq!((status, said.as_str()), (Some(0), ""));
        let mut daemon = Self { folder, process: 0 };
        until("it serves", || daemon.try_connect().is_some());
        let stream = daemon.connect();
        daemon.process = rustix::net::sockopt::socket_peercred(&stream)
            .map(|who| who.pid.as_raw_nonzero().get().unsigned_abs())
            .expect("a socket of this machine");
        daemon
    }

    fn try_connect(&self) -> Option<UnixStream> {
        UnixStream::connect(self.folder.path().join("socket")).ok()
    }

    fn connect(&self) -> UnixStream {
        self.try_connect().expect("it listens")
    }

    /// Ends it by SIGTERM.
    fn stop(&self) {
        signal(self.process, "TERM");
        let socket = self.folder.path().join("socket");
        until("it has gone", || !socket.exists());
    }
}

#[test]
fn a_daemon_leaves_its_number_where_it_was_started() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder, &["-P", "pid"]);
    let file = daemon.folder.path().join("pid");
    until("its number is there", || {
        fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'))
    });
    let number = fs::read_to_string(&file).unwrap();
    assert_eq!(number.trim().parse(), Ok(daemon.process));
    assert_eq!(
        stats(&mut daemon.connect())["pid"],
        u64::from(daemon.process)
    );
    daemon.stop();
    until("it has taken that away", || !file.exists());
}

#[test]
fn a_daemon_serves_though_it_cannot_leave_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder, &["-P", "nowhere/pid"]);
    assert_eq!(ask(&mut daemon.connect(), "mn\r\n"), "MN\r\n");
    daemon.stop();
}

#[test]
fn a_daemon_reads_its_users_again_where_it_was_started() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("users"), "ada:secret\n").unwrap();
    let daemon = Daemon::start(folder, &["-Y", "users"]);
    let is_known = |said: &str| {
        let mut stream = daemon.connect();
        stream.write_all(said.as_bytes()).unwrap();
        read_to(&mut stream, "\r\n") == "STORED\r\n"
    };
    let (ada, bob) = (
        "set x 0 0 10\r\nada secret\r\n",
        "set x 0 0 9\r\nbob other\r\n",
    );
    assert!(is_known(ada) && !is_known(bob));
    fs::write(daemon.folder.path().join("users"), "bob:other\n").unwrap();
    signal(daemon.process, "HUP");
    until("the new user is known", || is_known(bob));
    assert!(!is_known(ada), "its password was taken back");
    daemon.stop();
}

#[test]
fn the_memory_of_a_daemon_is_locked() {
    // It is asked for what it cannot listen on: only what it says of its locks counts.
    let (_, said) = run(&["-k", "-u", "root", "-s", "/nowhere/socket"]);
    if said.contains("mlockall() failed") {
        println!("skipped: memory cannot be locked here: {said}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder, &["-k", "-m", "16"]);
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.process)).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmLck:"));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    let kib: u64 = word.and_then(|word| word.parse().ok()).expect("a number");
    assert!(kib > 0, "nothing is locked");
    daemon.stop();
}
