//! Real clients of memcached as loads.
//!
//! `tmpdir` is the test's `CARGO_TARGET_TMPDIR`, beside which clients are built and kept.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Has all that a client needs made ready, before anybody waits for what it stores: a registry may
/// take minutes. False if it cannot run here.
///
/// # Panics
/// If it is not made ready.
#[must_use]
pub fn is_ready(name: &str, tmpdir: &str) -> bool {
    match end(spawn(&[name, "prepare"], tmpdir)) {
        None => false,
        Some((0, _)) => true,
        Some((code, words)) => panic!("{name} is not made ready, code {code}: {words}"),
    }
}

/// Starts a client that writes until its standard input is closed.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn start(name: &str, servers: &[SocketAddr], tmpdir: &str) -> Child {
    let servers: Vec<_> = servers.iter().map(SocketAddr::to_string).collect();
    let servers = servers.iter().map(String::as_str);
    let arguments: Vec<&str> = [name, "-"].into_iter().chain(servers).collect();
    spawn(&arguments, tmpdir)
}

/// Starts tests/clients/run.sh.
fn spawn(arguments: &[&str], tmpdir: &str) -> Child {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(workspace.join("tests/clients/run.sh"));
    command
        .args(arguments)
        .env("CARGO_TARGET_DIR", Path::new(tmpdir).join(".."))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("tests/clients/run.sh can be run")
}

/// Ends it; its exit code and all of its words. `None` if it cannot run here.
///
/// # Panics
/// If somebody killed it.
pub fn end(mut client: Child) -> Option<(i32, String)> {
    drop(client.stdin.take());
    let output = client.wait_with_output().expect("it can be waited for");
    let mut words = String::from_utf8_lossy(&output.stdout).into_owned();
    words += &String::from_utf8_lossy(&output.stderr);
    let code = output.status.code().expect("nobody kills it");
    if code == SKIPPED {
        println!("{}", words.trim());
        return None;
    }
    Some((code, words))
}

const SKIPPED: i32 = 77;
