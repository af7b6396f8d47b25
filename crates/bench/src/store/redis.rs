//! Debian's Redis with an append-only file, over its Unix socket and over TCP on loopback.
//!
//! `everysec` answers before the file is synced and syncs once a second; `always` syncs before it
//! answers, once for all requests of a turn of its loop. All other settings are Redis's own.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use mio::{Events, Poll, Token};
use tempfile::TempDir;

use super::super::kv::connection::{Connection, Pending, ServerAddress, State};
use super::super::kv::processes::free_address;
use super::super::kv::tally::Kind;
use super::super::kv::wire::{Protocol, Reply};
use super::contender::{Client, Promise, Request, Role, Store, Way};
use crate::swap_rig::child::{Killed, detach};
use crate::swap_rig::interrupt;

/// When the append-only file is synced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sync {
    EverySecond,
    Always,
}

/// A server. Dropped in this order.
pub(super) struct Redis {
    ways: Vec<Way>,
    process: Killed,
    tcp: SocketAddr,
    unix: PathBuf,
    /// Has the socket, whose path has to be short.
    _sockets: TempDir,
}

/// How long it may take to listen.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long what it does in the background may take.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How long a client waits for answers at a time.
const WAIT: Duration = Duration::from_millis(10);

impl Sync {
    fn setting(self) -> &'static str {
        match self {
            Self::EverySecond => "everysec",
            Self::Always => "always",
        }
    }

    pub(super) fn scheme(self) -> &'static str {
        match self {
            Self::EverySecond => "redis-everysec",
            Self::Always => "redis-always",
        }
    }

    fn promise(self) -> Promise {
        match self {
            Self::EverySecond => Promise::Later,
            Self::Always => Promise::Durable,
        }
    }
}

impl Redis {
    /// Starts one whose file is in `dir`, which is there, with these transports.
    ///
    /// # Errors
    /// It is not installed, or ended at once.
    pub(super) fn start(sync: Sync, dir: &Path, transports: &[&'static str]) -> Result<Self> {
        let sockets = tempfile::tempdir().context("make a folder for a socket")?;
        let unix = sockets.path().join("redis");
        let tcp = free_address()?;
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &tcp.port().to_string()])
            .arg("--unixsocket")
            .arg(&unix)
            .arg("--dir")
            .arg(dir)
            .args(["--appendonly", "yes", "--appendfsync", sync.setting()])
            .args(["--loglevel", "warning", "--save", ""])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        detach(&mut command);
        let process = Killed::new(
            command.spawn().context("start redis-server")?,
            "redis-server",
        );
        let version = version()?;
        let way = |transport: &&'static str| Way {
            scheme: sync.scheme(),
            label: format!("{version} appendfsync {}, {transport}", sync.setting()),
            transport,
            promise: sync.promise(),
            role: Role::Peer,
            reads_like_another: false,
        };
        let mut redis = Self {
            ways: transports.iter().map(way).collect(),
            process,
            tcp,
            unix,
            _sockets: sockets,
        };
        redis.await_listening()?;
        Ok(redis)
    }

    fn await_listening(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while UnixStream::connect(&self.unix).is_err() {
            interrupt::check()?;
            if let Some(status) = self.process.child().try_wait()? {
                bail!("redis-server ended at once: {status}");
            }
            ensure!(Instant::now() < deadline, "redis-server does not listen");
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// What it tells of its append-only file.
    fn persistence(&self) -> Result<String> {
        let mut stream = UnixStream::connect(&self.unix).context("ask redis")?;
        stream.set_read_timeout(Some(START_LIMIT))?;
        stream.write_all(b"INFO persistence\r\n")?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let length = line
            .trim_end()
            .strip_prefix('$')
            .and_then(|it| it.parse::<u16>().ok());
        let mut text = vec![
            0;
            length
                .with_context(|| format!("a length, not {line:?}"))?
                .into()
        ];
        stream.read_exact(&mut text)?;
        String::from_utf8(text).context("it is no text")
    }
}

/// Whether Redis writes or syncs in the background, by its `INFO persistence`.
fn is_busy(persistence: &str) -> bool {
    let fields = [
        "aof_rewrite_in_progress",
        "aof_rewrite_scheduled",
        "aof_pending_bio_fsync",
    ];
    persistence.lines().any(|line| {
        let field = line.trim_end().split_once(':');
        field.is_some_and(|(name, value)| fields.contains(&name) && value != "0")
    })
}

/// As in `redis 7.0.15`.
fn version() -> Result<String> {
    let output = Command::new("redis-server").arg("--version").output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = said
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="));
    Ok(format!(
        "redis {}",
        version.with_context(|| format!("a version in {said:?}"))?
    ))
}

impl Store for Redis {
    fn ways(&self) -> &[Way] {
        &self.ways
    }

    fn connect(&self, way: &Way, loops: usize) -> Result<Vec<Box<dyn Client>>> {
        let place = match way.transport {
            "unix" => ServerAddress::Unix(self.unix.clone()),
            _ => ServerAddress::Tcp(self.tcp),
        };
        Ok(vec![Box::new(Sockets::connect(&place, loops)?)])
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.process.pid()]
    }

    fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + SETTLE_LIMIT;
        while is_busy(&self.persistence()?) {
            interrupt::check()?;
            ensure!(Instant::now() < deadline, "redis stays busy");
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// Connections of one thread, each a closed loop.
struct Sockets {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    /// Connections with bytes to send.
    unsent: Vec<usize>,
}

impl Sockets {
    fn connect(place: &ServerAddress, loops: usize) -> Result<Self> {
        let mut poll = Poll::new().context("make a poll")?;
        let mut events = Events::with_capacity(256);
        let mut connections: Vec<_> = (0..loops).map(|at| Connection::new(Token(at))).collect();
        let deadline = Instant::now() + START_LIMIT;
        for connection in &mut connections {
            connection
                .open(place, poll.registry())
                .context("connect to redis")?;
            while connection.state == State::Connecting && !connection.is_connected()? {
                poll_once(&mut poll, &mut events)?;
                ensure!(Instant::now() < deadline, "redis does not answer");
            }
        }
        Ok(Self {
            poll,
            events,
            connections,
            unsent: Vec::new(),
        })
    }
}

fn poll_once(poll: &mut Poll, events: &mut Events) -> Result<()> {
    match poll.poll(events, Some(WAIT)) {
        Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
            Err(error).context("wait for sockets")
        }
        _ => Ok(()),
    }
}

impl Client for Sockets {
    fn loops(&self) -> usize {
        self.connections.len()
    }

    fn submit(&mut self, at: usize, request: Request<'_>) -> Result<()> {
        let connection = &mut self.connections[at];
        let kind = match request {
            Request::Get { key } => {
                Protocol::Redis.push_get(key, &mut connection.output);
                Kind::Get
            }
            Request::Put { key, value } => {
                let push = |out: &mut Vec<u8>| out.extend_from_slice(value);
                Protocol::Redis.push_set(key, value.len(), &mut connection.output, push);
                Kind::Set
            }
        };
        // The load keeps what was asked; here it counts.
        connection.pending.push_back(Pending {
            kind,
            item: 0,
            version: 0,
            began_ns: 0,
        });
        self.unsent.push(at);
        Ok(())
    }

    fn wait(&mut self, take: &mut dyn FnMut(usize, Reply<'_>)) -> Result<()> {
        while let Some(at) = self.unsent.pop() {
            self.connections[at].flush()?;
        }
        poll_once(&mut self.poll, &mut self.events)?;
        for event in &self.events {
            let at = event.token().0;
            let connection = &mut self.connections[at];
            if event.is_writable() {
                connection.flush()?;
            }
            loop {
                let has_more = connection.read().context("read from redis")?;
                connection.take_replies(Protocol::Redis, |_, reply| take(at, reply))?;
                if !has_more {
                    break;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewrite_and_a_pending_sync_are_seen_in_what_redis_tells() {
        let idle = "# Persistence\r\naof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0\r\n\
                    aof_pending_bio_fsync:0\r\n";
        assert!(!is_busy(idle));
        for field in ["aof_rewrite_in_progress", "aof_pending_bio_fsync"] {
            assert!(is_busy(
                &idle.replace(&format!("{field}:0"), &format!("{field}:1"))
            ));
        }
    }
}
