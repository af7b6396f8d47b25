//! Names of hosts that a process resolves by a file of the test's, mounted over `/etc/hosts` for it alone.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::cenote;

/// The file. What is written to it holds for processes that run already.
pub struct EtcHosts {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl EtcHosts {
    /// `None`, with the reason printed, where nothing can be mounted.
    pub fn new() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("hosts");
        let hosts = Self {
            _folder: folder,
            path,
        };
        hosts.write(&[]);
        let tried = hosts.command("true").stderr(Stdio::piped()).output();
        let tried = tried.expect("util-linux is installed");
        if !tried.status.success() {
            let reason = String::from_utf8_lossy(&tried.stderr);
            println!("skipped: mount namespaces (root is needed): {reason}");
            return None;
        }
        Some(hosts)
    }

    /// From now on these names have these addresses, and no others.
    pub fn write(&self, entries: &[(&str, &str)]) {
        let line = |(name, address): &(&str, &str)| format!("{address} {name}\n");
        let lines: String = entries.iter().map(line).collect();
        // In place: it is the file that is mounted.
        std::fs::write(&self.path, format!("127.0.0.1 localhost\n{lines}")).expect("a file");
    }

    /// The binary under test. Its process is the one that is spawned.
    pub fn cenote(&self) -> Command {
        let program = cenote();
        let mut command = self.command(program.get_program().to_str().expect("UTF-8"));
        for (key, value) in program.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        command
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c"]);
        command.arg("mount --bind \"$0\" /etc/hosts && exec \"$@\"");
        command.arg(&self.path).arg(program);
        command
    }
}
