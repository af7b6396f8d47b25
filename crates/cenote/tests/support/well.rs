//! A cluster of key-value nodes, each a process of its own.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Ended, cenote, signal};

/// How long what must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Five nodes of as many groups: two of them may be lost.
pub const FIVE: [&str; 8] = [
    "--nodes", "5", "--groups", "5", "--code", "3+2", "--memory", "256M",
];

/// A folder for a cluster of nodes; whatever runs in it is ended when it is dropped.
pub struct Well(tempfile::TempDir);

impl Well {
    /// Starts nodes; `None` where there is no etcd.
    pub fn up(arguments: &[&str]) -> Option<Self> {
        let well = Self::empty();
        let ended = well.run(&[&["up"], arguments].concat());
        if ended.code == 1 && ended.stderr.contains("etcd-server") {
            eprintln!("skipped: {}", ended.stderr);
            return None;
        }
        ended.expect(0);
        Some(well)
    }

    /// A folder in which nothing runs yet.
    pub fn empty() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.run_by(cenote(), arguments)
    }

    /// The same, by the binary wherever it is to run.
    pub fn run_by(&self, mut program: Command, arguments: &[&str]) -> Ended {
        let output = program
            .arg("kv")
            .args(arguments)
            .arg("--dir")
            .arg(self.0.path())
            .output();
        Ended::from(output.expect("the binary runs"))
    }

    pub fn path(&self, of: &str) -> std::path::PathBuf {
        self.0.path().join(of)
    }

    pub fn pid(&self, of: &str) -> u32 {
        let text = fs::read_to_string(self.0.path().join(of).join("pid")).expect("a pid file");
        text.trim().parse().expect("a number")
    }

    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.0.path().join("nodes").join(name).join("log")).expect("a log")
    }

    pub fn status(&self) -> Value {
        self.until("a status is told", |_| true)
    }

    /// What the command says that tells the status.
    fn ask(&self) -> Ended {
        self.run(&["status", "--json", "--timeout", "500ms"])
    }

    /// Where clients connect, in the order of the nodes.
    pub fn clients(&self) -> Vec<SocketAddr> {
        let status = self.status();
        let nodes = status["nodes"].as_array().expect("nodes").iter();
        let address = |node: &Value| {
            let address = node["registration"]["clients"][0].as_str();
            address
                .expect("it is registered")
                .parse()
                .expect("an address")
        };
        nodes.map(address).collect()
    }

    pub fn kill(&self, names: [&str; 2]) {
        let pids = names.map(|name| self.pid(&format!("nodes/{name}")));
        pids.into_iter().for_each(|pid| signal(pid, "KILL"));
    }

    /// Waits until every group could lose two nodes.
    pub fn until_whole(&self) {
        self.until("whole", |status| status["whole"] == true);
    }

    /// The status as people see it, once etcd has answered the command.
    pub fn shown(&self) -> Ended {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ended = self.run(&["status"]);
            if !is_unknown(&ended) {
                return ended;
            }
            assert!(Instant::now() < deadline, "etcd is silent: {ended:#?}");
        }
    }

    /// Asks until the status is as wanted.
    pub fn until(&self, what: &str, wanted: impl FnMut(&Value) -> bool) -> Value {
        until(what, || self.ask(), wanted)
    }
}

/// While etcd cannot be reached the command has nothing to say, and ends with 1.
fn is_unknown(ended: &Ended) -> bool {
    ended.code == 1 && ended.stdout.is_empty()
}

/// Asks by `ask` until what it says is as wanted.
pub fn until(what: &str, ask: impl Fn() -> Ended, mut wanted: impl FnMut(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ended = ask();
        if !is_unknown(&ended)
            && let status = ended.json()
            && wanted(&status)
        {
            return status;
        }
        assert!(Instant::now() < deadline, "{what}: {ended:#?}");
    }
}

impl Drop for Well {
    fn drop(&mut self) {
        let ended = self.run(&["down"]);
        if ended.code != 0 && !std::thread::panicking() {
            panic!("{ended:#?}");
        }
    }
}

/// The places that a node has in any group.
pub fn places(status: &Value, name: &str) -> usize {
    let groups = status["by_group"].as_array().expect("groups").iter();
    let slots = groups.flat_map(|group| {
        let slots = |of: &str| group[of].as_array().expect("slots").clone();
        [slots("data"), slots("parity")].concat()
    });
    slots.filter(|slot| slot["name"] == name).count()
}
