//! A real client of memcached as a load.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// tests/clients/run.sh, to be run.
pub fn client(name: &str, seconds: u32, servers: &[SocketAddr]) -> Command {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(workspace.join("tests/clients/run.sh"));
    command
        .args([name, &seconds.to_string()])
        .args(servers.iter().map(SocketAddr::to_string))
        .env(
            "CARGO_TARGET_DIR",
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(".."),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Its exit code and all of its words; `None` if it cannot run here.
pub fn ended(output: &Output) -> Option<(i32, String)> {
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
