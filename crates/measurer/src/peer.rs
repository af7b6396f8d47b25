//! The host that is measured: a process of its own, so that its threads share nothing with those of
//! clients but the machine.
//!
//! It says where it listens and its key by one line on its standard output, which this program alone
//! reads, and ends with its standard input.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cenote_cache::Configuration;
use cenote_cache::path::{Batched, OneSided, Path};
use cenote_cli::child::Signal;
use cenote_cli::failure::DONE;
use cenote_cli::program;
use cenote_cli::span::Span;
use cenote_fabric::calls::Spin;
use cenote_fabric::rdma::Tuning;
use cenote_fabric::{
    Address, ClientId, ClusterKey, Connector, Hello, Incoming, RemoteWindow, Session,
    WireProtection, connector_tuned, wait,
};
use cenote_host::{Config, Daemon, LockMemory};
use cenote_pool::control::{Reply, Request};

/// Records are drawn from as much memory: more than the caches of a core hold.
const MEMORY_BYTES: u64 = 64 << 20;
/// How long anything may take that takes no time unless something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the process is started with.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Where it listens
    #[arg(long)]
    address: Address,
    /// Threads that answer batches
    #[arg(long)]
    server_threads: usize,
    /// How long they look for work before they block
    #[arg(long)]
    spin: Span,
    /// The processor that all its threads run on
    #[arg(long)]
    processor: Option<usize>,
}

impl Args {
    /// A host at `address`, as others of this program are.
    pub fn new(address: Address, server_threads: usize) -> Self {
        Self {
            address,
            server_threads,
            spin: Spin::default().0.into(),
            processor: None,
        }
    }

    /// One whose server threads look for work for so long.
    pub fn spinning(self, spin: Spin) -> Self {
        let spin = spin.0.into();
        Self { spin, ..self }
    }

    /// One that stays on a processor.
    pub fn pinned(self, processor: Option<usize>) -> Self {
        Self { processor, ..self }
    }
}

/// The process itself.
pub fn serve(args: &Args) -> Result<u8> {
    std::thread::spawn(|| {
        // Nothing is ever said there: whatever ends the wait, nobody is left to serve.
        let ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(i32::from(ended.is_err()))
    });
    if let Some(processor) = args.processor {
        cenote_cli::pin::this_thread(&[processor])?;
    }
    let key = ClusterKey::generate()?;
    let config = Config {
        name: "measured".into(),
        domain: "measured".into(),
        addresses: vec![args.address.clone()],
        memory_bytes: MEMORY_BYTES,
        slab_bytes: MEMORY_BYTES,
        key: key.clone(),
        huge_pages: true,
        lock_memory: LockMemory::Never,
        clients_max: 1,
        headroom: None,
        page_traffic: WireProtection::default(),
        cache_threads: args.server_threads,
        modules: None,
    };
    let spin = Spin(args.spin.into());
    let mut daemon = Daemon::start_spinning(config, spin)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} {}", daemon.addresses()[0], key.to_hex())?;
    out.flush()?;
    daemon.run(&AtomicBool::new(false))?;
    Ok(DONE)
}

/// A running host, and a client's session with it; ended when dropped.
pub struct Peer {
    process: Child,
    session: Box<dyn Session>,
    /// All that the host lends.
    pub window: RemoteWindow,
}

impl Peer {
    /// Starts one, and connects to it.
    ///
    /// # Errors
    /// It does not start, or lends nothing.
    pub fn start(args: &Args, tuning: Tuning) -> Result<Self> {
        let mut command = Command::new(program::cenote()?);
        command
            .args(["cache", "measured", "--address"])
            .arg(args.address.to_string())
            .args(["--server-threads", &args.server_threads.to_string()])
            .args(["--spin", &args.spin.to_string()]);
        if let Some(processor) = args.processor {
            command.args(["--processor", &processor.to_string()]);
        }
        let process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the host that is measured")?;
        // From here on it ends with this value.
        let mut process = Ended(Some(process));
        let child = process.0.as_mut().expect("just put there");
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said)?;
        ensure!(
            said.ends_with('\n'),
            "the host to be measured did not start"
        );
        let (address, key) = said.trim_end().split_once(' ').context("no key")?;
        let key = ClusterKey::from_hex(key)?;
        let (session, window) = reach(key, &address.parse()?, tuning)?;
        Ok(Self {
            process: process.0.take().expect("put there above"),
            session,
            window,
        })
    }

    /// A path for each client thread.
    pub fn paths(&self, configuration: Configuration) -> Result<Vec<Box<dyn Path>>> {
        let Configuration { c, s, b, q } = configuration;
        (0..c)
            .map(|_| -> Result<Box<dyn Path>> {
                if s == 0 {
                    let endpoint = self.session.endpoint(PATIENCE)?;
                    return Ok(Box::new(OneSided::new(endpoint, q as usize)));
                }
                let caller = self.session.caller_opener()(PATIENCE)?;
                Ok(Box::new(Batched::new(caller, b as usize, q as usize)))
            })
            .collect::<Result<_>>()
            .context("connect client threads")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        cenote_cli::child::end(&mut self.process, Signal::KILL);
    }
}

/// A process on its way to being a peer.
struct Ended(Option<Child>);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            cenote_cli::child::end(process, Signal::KILL);
        }
    }
}

/// A session with the host, and a window on all that it lends.
fn reach(
    key: ClusterKey,
    address: &Address,
    tuning: Tuning,
) -> Result<(Box<dyn Session>, RemoteWindow)> {
    let hello = Hello {
        client: ClientId(1),
        name: "cache model".into(),
    };
    let connector = connector_tuned(key, WireProtection::default(), tuning);
    let mut session = connector.connect(address, &hello, PATIENCE)?;
    let mut bytes = Vec::new();
    let map = Request::Map {
        request: 1,
        volume: 1,
        extent: 0,
        member: 0,
    };
    map.encode(&mut bytes);
    session.send(&bytes)?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match session.receive()? {
            Some(Incoming::Message(bytes)) => match Reply::decode(&bytes)? {
                Reply::Mapped { window, .. } => session.attach(window.into())?,
                Reply::Refused { reason, .. } => bail!("the host lends no memory: {reason:?}"),
                _ => {}
            },
            Some(Incoming::Attached(_, window)) => return Ok((session, window?)),
            Some(_) => {}
            None => {
                wait(session.fd().as_slice(), Some(Duration::from_millis(100)))?;
            }
        }
    }
    bail!("the host that is to be measured does not answer")
}
