//! A program under `cenote run`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Stdio};

use super::support::{Folder, cenote, words};

/// A program under `cenote run`.
pub struct Program {
    pub child: Child,
    pub lines: BufReader<ChildStdout>,
}

impl Program {
    pub fn start(folder: &Folder, local: &str, size: &str, program: &[&str]) -> Self {
        let mut child = cenote()
            .args(words(&format!(
                "run --dir {} --local {local} --size {size}",
                folder.str()
            )))
            .args(["--scheme", "rs:8+2", "--handlers", "2", "--json", "--"])
            .args(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines }
    }

    pub fn expect_line(&mut self, wanted: &str) {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        if line.trim_end() != wanted {
            self.child.kill().ok();
            let mut said = String::new();
            let stderr = self.child.stderr.as_mut().expect("piped");
            stderr.read_to_string(&mut said).ok();
            panic!("{line:?} and not {wanted:?}: {said}");
        }
    }

    pub fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("piped");
        writeln!(input, "{line}").expect("it listens");
    }

    /// Waits for its end: the exit code, and the figures.
    pub fn end(self) -> (i32, serde_json::Value) {
        let output = self.child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Warnings of lost hosts may follow.
        let figures = said.lines().rev().find_map(|line| {
            line.starts_with('{')
                .then(|| serde_json::from_str(line).ok())
                .flatten()
        });
        let code = output.status.code().expect("no signal ended it");
        (code, figures.unwrap_or_else(|| panic!("{code}: {said}")))
    }

    /// It ends well, and most of its memory was elsewhere.
    pub fn ends_well(self, local_bytes: u64) -> serde_json::Value {
        let (code, figures) = self.end();
        assert_eq!(code, 0, "{figures}");
        assert_eq!(figures["lost"], 0, "{figures}");
        let count = |name: &str| figures[name].as_u64().expect("a number");
        assert!(count("evicted") > 1_000, "{figures}");
        assert!(count("reads") + count("prefetched") > 1_000, "{figures}");
        assert!(count("resident_max_bytes") <= local_bytes, "{figures}");
        figures
    }
}
