//! A server of a volume over NBD, as a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::{Folder, cenote, signal};

/// `cenote nbd` on a folder; killed when dropped.
pub struct Server {
    pub child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    /// On a unix socket in the folder.
    pub fn start(folder: &Folder, arguments: &[&str]) -> Self {
        let mut program = cenote();
        program
            .args(["nbd", "--dir", folder.str()])
            .args(arguments)
            .arg("--socket")
            .arg(folder.path().join("nbd"))
            .stderr(Stdio::null());
        Self::spawn(program)
    }

    /// Any such command.
    pub fn spawn(mut program: Command) -> Self {
        let mut child = program
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Self { child, stdout }
    }

    /// The line by which it says that it serves; empty when it does not.
    pub fn ready(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line
    }

    /// Asks it to end; its exit code.
    pub fn end(&mut self) -> Option<i32> {
        signal(self.child.id(), "TERM");
        self.child.wait().expect("a child of ours").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            self.child.wait().expect("a child of ours");
        }
    }
}

/// Four hosts, of 16 MiB each.
pub fn up(folder: &Folder) {
    folder
        .run(&["up", "--hosts", "4", "--memory", "16M"])
        .expect(0);
}
