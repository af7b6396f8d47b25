//! Configurations run on a real transport: client threads of this process, and a host in another.
//!
//! Each number of server threads has a host of its own, which costs nothing while it is idle. So
//! measurements of one configuration can be spread over the time that all take, and what the
//! machine does besides is in more than one.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cache::closed_loop::{Plan, RunError, run};
use cenote_cache::path::Path;
use cenote_cache::tuner::{Measurement, Measurer, Transport};
use cenote_cache::{Configuration, Space, Writes};
use cenote_cli::failure::Failure;
use cenote_fabric::calls::Spin;
use cenote_fabric::rdma::{Support, Tuning, support};
use cenote_fabric::{Address, RemoteWindow};

use crate::Effort;
use crate::peer::{Args, Peer};

/// Measures over `shm`, `tcp` or `rdma`.
pub struct Live {
    places: Places,
    effort: Effort,
    writes: Writes,
    seed: u64,
    /// By their server threads.
    hosts: BTreeMap<u32, Peer>,
    runs: u64,
}

impl Live {
    /// Nothing is started before the first measurement.
    ///
    /// # Errors
    /// There is no place for a temporary folder, or no device for `rdma`.
    pub fn new(transport: Transport, writes: Writes, seed: u64, effort: Effort) -> Result<Self> {
        Ok(Self {
            places: Places::new(transport)?,
            effort,
            writes,
            seed,
            hosts: BTreeMap::new(),
            runs: 0,
        })
    }

    fn host(&mut self, server_threads: u32) -> Result<&Peer> {
        if !self.hosts.contains_key(&server_threads) {
            let address = self.places.next_address()?;
            let args = Args::new(address, server_threads as usize);
            let host = Peer::start(&args, Tuning::default())?;
            self.hosts.insert(server_threads, host);
        }
        Ok(&self.hosts[&server_threads])
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
        let (seed, writes) = (self.seed ^ self.runs << 32 ^ u64::from(c), self.writes);
        self.runs += 1;
        let host = self.host(s)?;
        let mut paths = host.paths(configuration)?;
        let mut worst: Option<Measurement> = None;
        for round in 0..rounds {
            let plan = Plan {
                writes,
                record_bytes,
                under_way: b as usize * q as usize,
                warm_up: Duration::from_millis(20),
                span,
                spin: Spin::default(),
                seed: seed ^ round << 48,
            };
            let measured = run_patiently(&mut paths, &host.window, plan)
                .with_context(|| format!("measure {configuration}"))?;
            worst = Some(worst.map_or(measured, |worst| worst.worse(measured)));
        }
        Ok(worst.expect("at least one round"))
    }
}

/// Runs a closed loop; again and longer where nothing ended: on a busy machine a thread may have no
/// turn in a short time.
pub fn run_patiently(
    paths: &mut [Box<dyn Path>],
    window: &RemoteWindow,
    mut plan: Plan,
) -> std::result::Result<Measurement, RunError> {
    loop {
        match run(paths, std::slice::from_ref(window), &plan) {
            Err(RunError::Nothing) if plan.span < SPAN_MAX => plan.span *= 2,
            ended => return ended,
        }
    }
}

/// How long a run is repeated for at most until something ends.
const SPAN_MAX: Duration = Duration::from_secs(2);

/// Addresses for hosts on this machine.
pub struct Places {
    transport: Transport,
    /// For sockets of hosts on `shm`.
    directory: tempfile::TempDir,
    given: u32,
    device: Option<IpAddr>,
}

impl Places {
    /// # Errors
    /// There is no place for a temporary folder, or no device for `rdma`.
    pub fn new(transport: Transport) -> Result<Self> {
        let device = match transport {
            Transport::Rdma => Some(device()?),
            Transport::Sim | Transport::Shm | Transport::Tcp => None,
        };
        Ok(Self {
            transport,
            directory: tempfile::tempdir().context("make a temporary folder")?,
            given: 0,
            device,
        })
    }

    /// One that no other host has.
    pub fn next_address(&mut self) -> Result<Address> {
        self.given += 1;
        if let Some(ip) = self.device {
            return Ok(Address::Rdma(SocketAddr::from((ip, 0)).into()));
        }
        Ok(match self.transport {
            Transport::Shm => Address::Shm(self.directory.path().join(self.given.to_string())),
            _ => "tcp:127.0.0.1:0".parse()?,
        })
    }
}

/// The address of the first RDMA device.
fn device() -> Result<IpAddr> {
    let support = support();
    let found = match &support {
        Support::Devices(devices) => devices.iter().find_map(|one| one.addresses.first()),
        _ => None,
    };
    let none = || Failure::new(format!("no rdma: {support}"), "--transport sim, shm or tcp");
    Ok(*found.ok_or_else(none)?)
}

/// The configurations that are worth measuring where both ends are on this machine: each end has half
/// of its processors. With more threads than that, it is the scheduler that is measured.
pub fn space() -> Space {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let half = u32::try_from(processors / 2).unwrap_or(u32::MAX);
    let threads = half.clamp(1, Space::PAPER.c_max());
    let (b_max, q_max) = (Space::PAPER.b_max(), Space::PAPER.q_max());
    Space::new(threads, threads, b_max, q_max).expect("within the paper's space")
}
