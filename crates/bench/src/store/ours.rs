//! Our own server, `cenote store serve` in a process of its own, by one of its schemes.
//!
//! Connections over tcp are not encrypted here, as those of the peers are not.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cenote_cli::program;
use cenote_fabric::{Address, ClientId, ClusterKey, Time, WireProtection, connector_with};
use cenote_store::Condition;
use cenote_store::client::{self, Outcome};
use cenote_store::schemes::{Durable, Scheme, by_name};
use tempfile::TempDir;

use super::super::kv::wire::Reply;
use super::Transport;
use super::contender::{Client, Promise, Request, Role, Store, Way};
use crate::swap_rig::child::{Killed, detach};

/// A server. Dropped in this order.
pub(super) struct Ours {
    ways: Vec<Way>,
    process: Killed,
    addresses: Vec<Address>,
    key: ClusterKey,
    /// Has the key and the socket, whose path has to be short.
    _folder: TempDir,
}

/// How long it may take to answer.
pub(super) const LIMIT: Duration = Duration::from_secs(20);
/// How long a client waits for answers at a time.
pub(super) const WAIT: Duration = Duration::from_millis(10);
/// How often a client looks before it waits, and for how long at least: a wake of a thread on a processor
/// that sleeps takes longer.
const LOOKS: (u32, Duration) = (64, Duration::from_micros(30));

/// What a client does not find at once it looks for some more.
pub(super) struct Looks {
    left: u32,
    until: Time,
}

impl Looks {
    pub(super) fn begin() -> Self {
        let (left, least) = LOOKS;
        let until = Time::now().after(least);
        Self { left, until }
    }

    /// Nothing was there: whether to look again.
    pub(super) fn go_on(&mut self, now: Time) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0 || now < self.until
    }
}

/// PUTs that are durable one after the other: so many groups take along what waits.
const SETTLING_PUTS: u32 = 30;

/// What a scheme's PUT promises.
fn promise(scheme: &dyn Scheme) -> Promise {
    match scheme.durable() {
        Durable::BeforeAck => Promise::Durable,
        _ => Promise::Later,
    }
}

impl Ours {
    /// Makes a store for so many items in `dir`, which is there, and serves it.
    ///
    /// # Errors
    /// There is no such scheme; this program is not `cenote`, or the server ended at once.
    pub(super) fn start(
        scheme: &str,
        (items, value_bytes): (u32, u32),
        dir: &Path,
        (transports, landing_bytes): (&[Transport], u64),
    ) -> Result<Self> {
        let scheme = by_name(scheme).with_context(|| format!("there is no scheme {scheme}"))?;
        let folder = tempfile::tempdir().context("make a folder for a socket")?;
        let key = ClusterKey::generate().context("make a key")?;
        let key_file = folder.path().join("key");
        key.save(&key_file).context("keep a key")?;
        let program = program::cenote()?;
        let objects = dir.join("objects");
        // Of both halves of the log a quarter is used, and a good deal comes before it is cleaned.
        let size = (u64::from(items) * (u64::from(value_bytes) + 128) * 8).max(64 << 20);
        let made = Command::new(&program)
            .args(["store", "create"])
            .arg(&objects)
            .args(["--size", &size.to_string(), "--keys", &items.to_string()])
            .output()
            .context("make a store")?;
        ensure!(
            made.status.success(),
            "cenote store create: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let mut command = Command::new(&program);
        command
            .args(["store", "serve"])
            .arg(&objects)
            .args(["--scheme", scheme.name(), "--page-traffic", "plain"])
            .args(["--landing", &landing_bytes.to_string(), "--key"])
            .arg(&key_file);
        for transport in transports {
            match transport {
                Transport::Shm => {
                    let socket = folder.path().join("socket");
                    command.arg("--listen");
                    command.arg(format!("shm:{}", socket.display()));
                }
                Transport::Tcp => {
                    command.args(["--listen", "tcp:127.0.0.1:0"]);
                }
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        detach(&mut command);
        let mut process = Killed::new(command.spawn().context("serve a store")?, "cenote store");
        let out = process.child().stdout.take().context("its output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        ensure!(line.starts_with("ready"), "cenote store serve: {line:?}");
        let words = line.split_whitespace();
        let found = words.map(|word| word.trim_end_matches(':'));
        let found = found.filter(|word| word.starts_with("tcp:") || word.starts_with("shm:"));
        let addresses: Vec<Address> = found
            .map(|word| word.parse().context("an announced address"))
            .collect::<Result<_>>()?;
        ensure!(
            addresses.len() == transports.len(),
            "cenote store serve: {line:?}"
        );
        Ok(Self {
            ways: ways(&*scheme, transports),
            process,
            addresses,
            key,
            _folder: folder,
        })
    }

    pub(super) fn client(&self, transport: &str) -> Result<client::Client> {
        let is_wanted = |address: &&Address| match address {
            Address::Shm(_) => transport == "shm",
            _ => transport == "tcp",
        };
        let address = self.addresses.iter().find(is_wanted);
        let address = address.context("a transport that is not served")?;
        let connector = connector_with(self.key.clone(), WireProtection::Plain);
        let mut id = [0; 16];
        id.copy_from_slice(&ClusterKey::generate()?.derive("a client of a benchmark")[..16]);
        let id = ClientId(u128::from_le_bytes(id));
        client::Client::connect(&connector, address, id, LIMIT).context("connect to our store")
    }
}

/// For each transport the scheme's own PUT, and of eFactory the one that is durable.
fn ways(scheme: &dyn Scheme, transports: &[Transport]) -> Vec<Way> {
    let is_ours = scheme.name() == "efactory";
    let mut ways = Vec::new();
    for transport in transports {
        let transport = match transport {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        };
        let way = |name: &'static str, promise, reads_like_another| Way {
            scheme: name,
            label: format!("{name}, {transport}"),
            transport,
            promise,
            role: if is_ours { Role::Ours } else { Role::Rival },
            reads_like_another,
        };
        ways.push(way(scheme.name(), promise(scheme), false));
        if is_ours {
            ways.push(way("efactory-durable", Promise::Durable, true));
        }
    }
    ways
}

impl Store for Ours {
    fn ways(&self) -> &[Way] {
        &self.ways
    }

    fn connect(&self, way: &Way, loops: usize) -> Result<Vec<Box<dyn Client>>> {
        Ok(vec![Box::new(Connected {
            client: self.client(way.transport)?,
            loops,
            is_durable: way.scheme == "efactory-durable",
        })])
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.process.pid()]
    }

    fn settle(&self) -> Result<()> {
        let transport = self.ways[0].transport;
        let mut client = self.client(transport)?;
        for _ in 0..SETTLING_PUTS {
            let command = client::Command::Put {
                key: b"-settle".to_vec(),
                value: vec![0; 8],
                condition: Condition::Always,
                is_durable: true,
            };
            client.call(command, LIMIT)?;
        }
        Ok(())
    }
}

/// A thread's connection, with many requests under way.
struct Connected {
    client: client::Client,
    loops: usize,
    is_durable: bool,
}

impl Client for Connected {
    fn loops(&self) -> usize {
        self.loops
    }

    fn submit(&mut self, at: usize, request: Request<'_>) -> Result<()> {
        let command = match request {
            Request::Get { key } => client::Command::Get { key: key.to_vec() },
            Request::Put { key, value } => client::Command::Put {
                key: key.to_vec(),
                value: value.to_vec(),
                condition: Condition::Always,
                is_durable: self.is_durable,
            },
        };
        self.client.submit(command, at as u64, Time::now());
        Ok(())
    }

    fn wait(&mut self, take: &mut dyn FnMut(usize, Reply<'_>)) -> Result<()> {
        let mut looks = Looks::begin();
        loop {
            let now = Time::now();
            let mut any = false;
            while let Some((token, end)) = self.client.poll(now) {
                any = true;
                let at = usize::try_from(token).context("a loop")?;
                match &end {
                    Ok(Outcome::Done { .. }) => take(at, Reply::Stored),
                    Ok(Outcome::Value { value, .. }) => take(at, Reply::Value(value)),
                    Ok(Outcome::Absent) => take(at, Reply::Miss),
                    Ok(other) => bail!("an answer to something else: {other:?}"),
                    Err(error) => take(at, Reply::Refused(&error.to_string())),
                }
            }
            if any {
                return Ok(());
            }
            if !looks.go_on(now) {
                return self.client.wait(WAIT).context("wait for our store");
            }
        }
    }
}
