//! Configurations run on a real transport, between threads of this process.
//!
//! A host with as many server threads as the configuration wants serves a slab in this process;
//! client threads reach it over the transport as they would from elsewhere. The host stays until
//! a configuration wants another number of server threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_cache::Configuration;
use cenote_cache::closed_loop::{Kind, Plan, Waiting, run};
use cenote_cache::path::{Batched, OneSided, Path};
use cenote_cache::tuner::{Measurement, Measurer, Transport};
use cenote_fabric::{
    Address, ClientId, ClusterKey, Connector, Generation, Hello, Incoming, RemoteWindow, Rights,
    Session, Waker, WindowDescriptor, WindowId, connector, wait,
};
use cenote_host::{Config, Daemon, LockMemory};
use cenote_pool::control::{Reply, Request};

use super::Effort;

/// Records are drawn from as much memory: more than the caches of a core hold.
const MEMORY_BYTES: u64 = 64 << 20;
/// How long anything may take that takes no time unless something is broken.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures over `shm` or `tcp`.
pub struct Live {
    transport: Transport,
    effort: Effort,
    seed: u64,
    /// For the socket of a host on `shm`.
    directory: tempfile::TempDir,
    site: Option<Site>,
}

impl Live {
    /// Nothing is started before the first measurement.
    ///
    /// # Errors
    /// There is no place for a temporary folder.
    pub fn new(transport: Transport, seed: u64, effort: Effort) -> Result<Self> {
        Ok(Self {
            transport,
            effort,
            seed,
            directory: tempfile::tempdir().context("make a temporary folder")?,
            site: None,
        })
    }

    /// The host with `server_threads`.
    fn site(&mut self, server_threads: usize) -> Result<&mut Site> {
        let fits = |site: &Site| site.server_threads == server_threads;
        if !self.site.as_ref().is_some_and(fits) {
            // The old one first: it has the address.
            self.site = None;
            let address = match self.transport {
                Transport::Shm => Address::Shm(self.directory.path().join("host")),
                _ => "tcp:127.0.0.1:0".parse()?,
            };
            self.site = Some(Site::start(address, server_threads)?);
        }
        Ok(self.site.as_mut().expect("made above if it was not there"))
    }
}

impl Measurer for Live {
    type Error = anyhow::Error;

    fn measure(&mut self, record_bytes: u32, configuration: Configuration) -> Result<Measurement> {
        let Configuration { c, s, b, q } = configuration;
        let (rounds, span) = match self.effort {
            Effort::Survey => (3, Duration::from_millis(60)),
            Effort::Use => (1, Duration::from_millis(500)),
        };
        let seed = self.seed;
        let site = self.site(s as usize)?;
        let mut paths = site.paths(configuration)?;
        let mut worst: Option<Measurement> = None;
        for round in 0..rounds {
            let plan = Plan {
                kind: Kind::Read,
                record_bytes,
                under_way: b as usize * q as usize,
                warm_up: Duration::from_millis(20),
                span,
                waiting: Waiting::default(),
                seed: seed ^ round << 48 ^ u64::from(c),
            };
            let measured = run(&mut paths, std::slice::from_ref(&site.window), &plan)
                .with_context(|| format!("measure {configuration}"))?;
            worst = Some(worst.map_or(measured, |worst| worst.worse(measured)));
        }
        Ok(worst.expect("at least one round"))
    }
}

/// A host on threads of this process, and a client's session with it.
struct Site {
    server_threads: usize,
    session: Box<dyn Session>,
    window: RemoteWindow,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Site {
    fn start(address: Address, server_threads: usize) -> Result<Self> {
        let key = ClusterKey::generate()?;
        let mut daemon = Daemon::start(Config {
            name: "measured".into(),
            domain: "measured".into(),
            addresses: vec![address],
            memory_bytes: MEMORY_BYTES,
            slab_bytes: MEMORY_BYTES,
            key: key.clone(),
            huge_pages: true,
            lock_memory: LockMemory::Never,
            clients_max: 1,
            headroom: None,
            page_traffic: cenote_fabric::WireProtection::default(),
            cache_threads: server_threads,
        })?;
        let (address, waker) = (daemon.addresses()[0].clone(), daemon.waker());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let serve = move || {
            if let Err(error) = daemon.run(&stopped) {
                panic!("the host that is measured: {error}");
            }
        };
        let thread = std::thread::Builder::new()
            .name("host".into())
            .spawn(serve)
            .context("start a thread")?;
        let reached = reach(&key, &address);
        let mut site = match reached {
            Ok((session, window)) => Self {
                server_threads,
                session,
                window,
                stop,
                waker,
                thread: None,
            },
            Err(error) => {
                stop.store(true, Ordering::Relaxed);
                waker.wake();
                drop(thread.join());
                return Err(error);
            }
        };
        site.thread = Some(thread);
        Ok(site)
    }

    /// A path for each client thread.
    fn paths(&self, configuration: Configuration) -> Result<Vec<Box<dyn Path>>> {
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

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the host that was measured panicked");
        }
    }
}

/// A session with the host, and a window on all that it lends.
fn reach(key: &ClusterKey, address: &Address) -> Result<(Box<dyn Session>, RemoteWindow)> {
    let hello = Hello {
        client: ClientId(1),
        name: "cache model".into(),
    };
    let mut session = connector(key.clone()).connect(address, &hello, PATIENCE)?;
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
                Reply::Mapped { window, .. } => session.attach(WindowDescriptor {
                    id: WindowId(window.id),
                    generation: Generation(window.generation),
                    len_bytes: window.len_bytes,
                    rights: Rights(window.rights),
                })?,
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
