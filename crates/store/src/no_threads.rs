//! Tests in a process that can start no threads.

use std::process::Command;

/// A stack that no process has addresses for.
const STACK: (&str, &str) = ("RUST_MIN_STACK", "140737488355328");

/// Runs the test of this name in a process of its own in which `act` can start no thread.
pub fn without_threads(test: &str, act: impl FnOnce()) {
    let (variable, bytes) = STACK;
    if std::env::var(variable).is_ok_and(|value| value == bytes) {
        let refused = std::thread::Builder::new().spawn(|| ());
        assert!(refused.is_err(), "a thread with a stack of {bytes} bytes");
        return act();
    }
    let program = std::env::current_exe().unwrap();
    let ended = Command::new(program)
        .args(["--exact", test, "--test-threads=1"])
        .env(variable, bytes)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success() && said.contains("1 passed"),
        "{}\n{said}{errors}",
        ended.status
    );
}
