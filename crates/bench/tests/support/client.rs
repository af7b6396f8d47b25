//! A real client of memcached as a load.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Has all that a client needs made ready, before anybody waits for what it stores: a registry may
/// take minutes. False if it cannot run here.
pub fn is_ready(name: &str) -> bool {
    match end(spawn(&[name, "prepare"])) {
        None => false,
        Some((0, _)) => true,
        Some((code, words)) => panic!("{name} is not made ready, code {code}: {words}"),
    }
}

/// Starts a client that writes until its standard input is closed.
pub fn start(name: &str, servers: &[SocketAddr]) -> Child {
    let servers: Vec<_> = servers.iter().map(SocketAddr::to_string).collect();
    let servers = servers.iter().map(String::as_str);
    spawn(&[name, "-"].into_iter().chain(servers).collect::<Vec<_>>())
}

/// Starts tests/clients/run.sh.
fn spawn(arguments: &[&str]) -> Child {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(workspace.join("tests/clients/run.sh"));
    command
        .args(arguments)
        .env(
            "CARGO_TARGET_DIR",
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(".."),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("tests/clients/run.sh can be run")
}

/// Ends it; its exit code and all of its words. `None` if it cannot run here.
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
