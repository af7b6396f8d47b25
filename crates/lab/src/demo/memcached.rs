//! Debian's memcached as a child in a memory cgroup, and connections to it.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use cenote_block::swap::cgroup::MemoryCgroup;
use memcache::{ConnectionManager, MemcacheError, Pool, Url};

/// A running memcached; dropping it kills it.
pub(super) struct Memcached {
    child: Child,
    socket: PathBuf,
}

impl Memcached {
    /// Starts it inside `group`, with room for `memory_mib` of items, and waits until it listens.
    pub(super) fn start(
        socket: &Path,
        memory_mib: u64,
        group: &MemoryCgroup,
    ) -> anyhow::Result<Self> {
        let procs = File::options()
            .write(true)
            .open(group.procs_path())
            .context("open the memory cgroup")?;
        let mut command = Command::new("memcached");
        command.args(["-u", "root", "-m", &memory_mib.to_string(), "-s"]);
        command
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        // A group of its own: Ctrl-C is for the demonstration, which ends it in its turn.
        command.process_group(0);
        // SAFETY: between fork and exec only async-signal-safe calls: prctl and a write of one
        // byte. "0" stands for the writing process.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                (&procs).write_all(b"0")
            });
        }
        let child = command.spawn().context("start memcached")?;
        let mut server = Self {
            child,
            socket: socket.to_owned(),
        };
        let patience = Instant::now() + START_TIMEOUT;
        while UnixStream::connect(&server.socket).is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("memcached ended at once: {status}");
            }
            if Instant::now() > patience {
                bail!("memcached does not listen");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Opens a connection of its own for each client.
    pub(super) fn connect(&self) -> anyhow::Result<Client> {
        let path = self.socket.display();
        let url = Url::parse(&format!("memcache+unix://{path}?protocol=ascii"))?;
        // The client opens the URL's path as it stands there, escapes and all.
        if Path::new(url.path()) != self.socket {
            bail!("a path for memcached's socket without special characters, not {path}");
        }
        let pool = Pool::builder()
            .max_size(1)
            .connection_timeout(START_TIMEOUT)
            // A connection that breaks ends the run; it is neither probed before each operation,
            // which would be a second round trip in the time of the first, nor replaced.
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .build(ConnectionManager::new(url))
            .context("connect to memcached")?;
        let client = memcache::Client::with_pool(pool)?;
        client.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        client.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Client(client))
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // Both fail only for a child that has ended already.
        if self.child.kill().is_err() || self.child.wait().is_err() {
            eprintln!("memcached had ended by itself");
        }
    }
}

/// One connection.
pub(super) struct Client(memcache::Client);

impl Client {
    /// Returns once memcached has stored `value`.
    pub(super) fn set(&self, key: usize, value: &[u8]) -> Result<(), MemcacheError> {
        self.0.set(&name(key), value, NEVER_EXPIRES)
    }

    /// `None` when memcached does not have the key.
    pub(super) fn get(&self, key: usize) -> Result<Option<Vec<u8>>, MemcacheError> {
        self.0.get(&name(key))
    }
}

fn name(key: usize) -> String {
    format!("key:{key:08}")
}

/// A page that is lost is an error at once; this only bounds a machine that stands still.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const START_TIMEOUT: Duration = Duration::from_secs(10);
const NEVER_EXPIRES: u32 = 0;
