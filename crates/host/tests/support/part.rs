//! Parts of a test that are played by processes: this test program again, told by the environment what to do.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use super::support::Lab;

/// Starts the test `part` of this program alone, with `role` and the lab's key in the environment; what it says
/// first is returned.
pub fn play(part: &str, variable: &str, role: &str, lab: &Lab) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", part, "--nocapture"])
        .env(variable, format!("{role} {}", lab.key.to_hex()))
        // A killed child leaves its files; the lab's end removes them.
        .env("TMPDIR", lab.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines
        .map(Result::unwrap)
        .find_map(|line| line.split_once("SAYS ").map(|(_, said)| said.to_owned()));
    (
        child,
        said.expect("the child says something before it ends"),
    )
}

/// Says it to who has started this part, which then stays until it is killed, or its parent is gone.
pub fn say(text: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "SAYS {text}").unwrap();
    out.flush().unwrap();
    std::io::stdin().lines().for_each(drop);
}
