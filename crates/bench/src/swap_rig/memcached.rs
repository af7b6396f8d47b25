//! Debian's memcached as a child: in a memory cgroup, or with its heap in a cluster's memory.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use cenote_block::swap::cgroup::MemoryCgroup;
use cenote_cli::program;
use cenote_pager::Handlers;

use super::child::{Killed, confine, detach};

/// A running memcached; dropping it kills it.
pub(crate) struct Memcached {
    process: Killed,
    socket: PathBuf,
}

/// Where a memcached's memory is that does not fit into this machine's.
pub(crate) struct Heap<'a> {
    /// The folder of the cluster.
    pub(crate) dir: &'a Path,
    /// As `cenote run` takes them.
    pub(crate) scheme: &'a str,
    pub(crate) size_bytes: u64,
    pub(crate) local_bytes: u64,
    pub(crate) handlers: Handlers,
}

impl Memcached {
    /// Starts it inside `group`, with room for `memory_mib` of items, and waits until it listens.
    pub(crate) fn start(
        socket: &Path,
        memory_mib: u64,
        group: &MemoryCgroup,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new("memcached");
        arguments(&mut command, socket, memory_mib);
        confine(&mut command, group)?;
        Self::spawn(command, socket)
    }

    /// Starts it by `cenote run`, with its heap in the cluster's memory.
    pub(crate) fn start_on(
        socket: &Path,
        memory_mib: u64,
        heap: &Heap<'_>,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(program::cenote()?);
        command.args(["run", "--verbose", "--scheme", heap.scheme]);
        command.args(["--size", &heap.size_bytes.to_string()]);
        command.args(["--local", &heap.local_bytes.to_string()]);
        command.args(["--handlers", &heap.handlers.to_string()]);
        command.arg("--dir").arg(heap.dir).args(["--", "memcached"]);
        arguments(&mut command, socket, memory_mib);
        detach(&mut command);
        Self::spawn(command, socket)
    }

    fn spawn(mut command: Command, socket: &Path) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
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

    /// Ends it, so that whoever serves its memory tells what happened.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        let pid = libc::pid_t::try_from(self.process.pid()).context("a pid")?;
        // SAFETY: a child that was not waited for; no memory.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        self.process.child().wait().context("wait for memcached")?;
        Ok(())
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

fn arguments(command: &mut Command, socket: &Path, memory_mib: u64) {
    command.args(["-u", "root", "-m", &memory_mib.to_string(), "-s"]);
    command.arg(socket);
}

const START_TIMEOUT: Duration = Duration::from_secs(10);
