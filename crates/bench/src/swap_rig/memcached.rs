//! Debian's memcached as a child in a memory cgroup.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use cenote_block::swap::cgroup::MemoryCgroup;

use super::child::{Killed, confine};

/// A running memcached; dropping it kills it.
pub(crate) struct Memcached {
    process: Killed,
    socket: PathBuf,
}

impl Memcached {
    /// Starts it inside `group`, with room for `memory_mib` of items, and waits until it listens.
    pub(crate) fn start(
        socket: &Path,
        memory_mib: u64,
        group: &MemoryCgroup,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new("memcached");
        command.args(["-u", "root", "-m", &memory_mib.to_string(), "-s"]);
        command
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        confine(&mut command, group)?;
        let child = command.spawn().context("start memcached")?;
        let mut server = Self {
            process: Killed::new(child, "memcached"),
            socket: socket.to_owned(),
        };
        let patience = Instant::now() + START_TIMEOUT;
        while UnixStream::connect(&server.socket).is_err() {
            if let Some(status) = server.process.child().try_wait()? {
                bail!("memcached ended at once: {status}");
            }
            if Instant::now() > patience {
                bail!("memcached does not listen");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

const START_TIMEOUT: Duration = Duration::from_secs(10);
