//! A real client of memcached as a load.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Starts tests/clients/run.sh, which writes until its standard input is closed.
pub fn start(name: &str, servers: &[SocketAddr]) -> Child {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(workspace.join("tests/clients/run.sh"));
    command
        .args([name, "-"])
        .args(servers.iter().map(SocketAddr::to_string))
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
