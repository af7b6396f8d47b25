//! Debian's memcached as a child in a memory cgroup, and a client of its text protocol.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use cenote_block::swap::cgroup::MemoryCgroup;

/// A running memcached; dropping it kills it.
pub(super) struct Memcached {
    child: Child,
    socket: PathBuf,
}

impl Memcached {
    /// Starts it inside `group`, with room for `memory_mib` of items, and waits until it answers.
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
        while server.connect().is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("memcached ended at once: {status}");
            }
            if Instant::now() > patience {
                bail!("memcached does not answer");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    pub(super) fn connect(&self) -> io::Result<Client> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Client {
            input: BufReader::with_capacity(64 << 10, stream.try_clone()?),
            stream,
            line: Vec::with_capacity(256),
            out: Vec::with_capacity(64 << 10),
        })
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

/// One connection. The protocol: memcached's own doc/protocol.txt.
pub(super) struct Client {
    stream: UnixStream,
    input: BufReader<UnixStream>,
    line: Vec<u8>,
    out: Vec<u8>,
}

impl Client {
    /// Appends a `set` to the batch that [`flush`](Self::flush) sends.
    pub(super) fn queue_set(&mut self, key: usize, value: &[u8]) {
        let head = format!("set key:{key:08} 0 0 {}\r\n", value.len());
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Sends the batch of `count` sets and waits until each is stored.
    pub(super) fn flush(&mut self, count: usize) -> io::Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        for _ in 0..count {
            self.read_line()?;
            if self.line != b"STORED" {
                return Err(self.unexpected());
            }
        }
        Ok(())
    }

    pub(super) fn set(&mut self, key: usize, value: &[u8]) -> io::Result<()> {
        self.queue_set(key, value);
        self.flush(1)
    }

    /// Reads a value into `value`; false when memcached does not have the key.
    pub(super) fn get(&mut self, key: usize, value: &mut Vec<u8>) -> io::Result<bool> {
        self.out
            .extend_from_slice(format!("get key:{key:08}\r\n").as_bytes());
        self.stream.write_all(&self.out)?;
        self.out.clear();
        self.read_line()?;
        if self.line == b"END" {
            return Ok(false);
        }
        let text = std::str::from_utf8(&self.line).ok();
        let len = text
            .and_then(|text| text.strip_prefix("VALUE "))
            .and_then(|text| text.split(' ').nth(2)?.parse::<usize>().ok())
            .filter(|len| *len <= VALUE_BYTES_MAX);
        let Some(len) = len else {
            return Err(self.unexpected());
        };
        value.resize(len + 2, 0);
        self.input.read_exact(value)?;
        value.truncate(len);
        self.read_line()?;
        if self.line != b"END" {
            return Err(self.unexpected());
        }
        Ok(true)
    }

    fn read_line(&mut self) -> io::Result<()> {
        self.line.clear();
        self.input.read_until(b'\n', &mut self.line)?;
        if self.line.ends_with(b"\r\n") {
            self.line.truncate(self.line.len() - 2);
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "memcached closed the connection",
        ))
    }

    fn unexpected(&self) -> io::Error {
        let line = String::from_utf8_lossy(&self.line);
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("memcached answered {line:?}"),
        )
    }
}

/// A page that is lost is an error at once; this only bounds a machine that stands still.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// memcached's own default limit of an item.
const VALUE_BYTES_MAX: usize = 1 << 20;
