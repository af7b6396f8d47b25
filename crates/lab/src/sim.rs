//! A whole cluster in one process and in virtual time: `cenote lab sim`.
//!
//! Hosts, pool and volumes are the real code over the simulated fabric. Clients write and read
//! at random while faults are drawn; a model knows what every sector may hold. Time passes in
//! epochs: work under faults, then everything is healed, every volume must become whole, and
//! every byte is read back.
//!
//! Checked: each read (at once); that no request fails and nothing is lost while no stripe lost
//! more than r; that lent memory is zero; each host's book; members of a stripe on distinct
//! hosts; that volumes heal. The same options give the same trace on every machine.

mod client;
mod dialer;
mod estate;
mod faults;
mod host;
mod model;
mod random;
mod world;

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use cenote_fabric::Time;
use cenote_fabric::sim::planted::Planted as PlantedFabric;
use cenote_fabric::sim::{Config, Late, LinkModel, Stragglers};
use cenote_volume::Scheme;
use serde::Serialize;

use faults::Faults;
use world::{Actor, World, seconds};

/// What to simulate. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides everything that chance decides.
    pub seed: u64,
    /// Virtual time to simulate.
    pub duration: Duration,
    /// Real time after which no further epoch begins.
    pub limit: Option<Duration>,
    /// Hosts of the cluster.
    pub hosts: usize,
    /// Clients, each with a volume of its own.
    pub clients: usize,
    /// Workers of each client.
    pub workers: usize,
    /// Redundancy of every volume.
    pub scheme: Scheme,
    /// Size of a slab.
    pub slab_bytes: u64,
    /// Slabs that each host lends; `None`: just enough for all volumes, the orphans of as many
    /// again as two thirds of them, and r hosts away.
    pub slabs_per_host: Option<u32>,
    /// Size of each volume.
    pub volume_bytes: u64,
    /// Requests per virtual second and worker.
    pub rate: u64,
    /// Mean virtual time between two faults.
    pub fault_pause: Duration,
    /// A mistake to plant, by name; only in builds made for it.
    pub plant: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            duration: Duration::from_secs(3600),
            limit: None,
            hosts: 16,
            clients: 3,
            workers: 2,
            scheme: "rs:4+2".parse().expect("a valid scheme"),
            slab_bytes: 64 << 10,
            slabs_per_host: None,
            volume_bytes: 1 << 20,
            rate: 200,
            fault_pause: Duration::from_secs(1),
            plant: None,
        }
    }
}

/// What a simulation found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// As asked for.
    pub seed: u64,
    /// As asked for.
    pub hosts: usize,
    /// Virtual time that passed.
    pub simulated_seconds: u64,
    /// Pages read and written.
    pub page_ops: u64,
    /// Faults injected.
    pub faults: u64,
    /// Of everything that happened, in hex; the same for the same options.
    pub trace_hash: String,
    /// Promises broken; the simulation ends with the first.
    pub violations: Vec<Violation>,
}

/// A broken promise.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// Virtual time.
    pub at_ns: u64,
    /// Which, and how.
    pub what: String,
    /// The last things that happened before it.
    #[serde(skip)]
    pub log: Vec<String>,
}

/// Virtual time of one epoch, and of its healing at most.
const EPOCH: Duration = Duration::from_secs(60);
const HEALING_MAX: Duration = Duration::from_secs(120);
/// Writes whose connection breaks: half land, some torn, after the slab may be another's.
const LATE: Late = Late {
    chance_ppm: 500_000,
    torn_ppm: 300_000,
    delay_ns_max: 3_000_000_000,
};
/// Grain of faults and of the checks between events.
const TICK: Duration = Duration::from_millis(100);

/// Every mistake that can be planted, by name.
#[must_use]
pub fn plants() -> Vec<&'static str> {
    let fabric = FABRIC_PLANTS.iter().map(|(name, _)| *name);
    let others = cenote_pool::planted::ALL.iter().map(|(name, _)| *name);
    others.chain(fabric).collect()
}

/// A planted mistake of the fabric.
type FabricPlant = fn(&mut PlantedFabric);

const FABRIC_PLANTS: [(&str, FabricPlant); 4] = [
    ("lose-order", |planted| {
        planted.loses_order = true;
    }),
    ("land-after-revoke", |planted| {
        planted.lands_after_revoke = true;
    }),
    ("old-generation", |planted| {
        planted.accepts_old_generations = true;
    }),
    ("fabric-error-as-ack", |planted| {
        planted.errors_count_as_acknowledged = true;
    }),
];

/// Runs a simulation to its end or to the first violation.
///
/// # Errors
/// Options that do not fit together.
pub fn run(options: &Options, mut progress: impl FnMut(&Report)) -> Result<Report> {
    let members = options.scheme.members();
    ensure!(
        options.hosts > members,
        "{} hosts: {} needs {members}, and one to regenerate on",
        options.hosts,
        options.scheme
    );
    ensure!(
        options.clients > 0 && options.workers > 0,
        "nobody does anything"
    );
    ensure!(options.rate > 0, "rate 0: nothing would happen");
    let started = Instant::now();
    let mut world = World::new(options);
    plant(options, &world)?;
    let mut report = summary(options, &world);
    while world.violations.is_empty() && world.net.now() < Time(0).after(options.duration) {
        if options
            .limit
            .is_some_and(|limit| started.elapsed() >= limit)
        {
            break;
        }
        epoch(&mut world, options);
        report = summary(options, &world);
        progress(&report);
    }
    unplant();
    Ok(report)
}

fn epoch(world: &mut World, options: &Options) {
    let r = options.scheme.members() - options.scheme.k();
    world.is_gentle = world.random.percent(80);
    let mut faults = Faults::default();
    world.net.set_late(Some(LATE));
    let pause_ns = u64::try_from(options.fault_pause.as_nanos())
        .unwrap_or(u64::MAX)
        .max(1);
    let end = world.net.now().after(EPOCH);
    while world.net.now() < end && world.violations.is_empty() {
        world.run_until(world.net.now().after(TICK));
        faults.tick(world, r, pause_ns);
        for client in 0..world.clients.len() {
            if let Some(what) = world.clients[client].misplaced() {
                world.violate(format!("c{client}: {what}"));
            }
        }
    }
    faults.heal(world);
    heal(world);
    read_back(world);
    if !world.is_gentle {
        // What was lost for good stays lost: its owner starts again.
        for client in 0..world.clients.len() {
            if world.clients[client].has_lost() {
                world.replace_client(client, true);
            }
        }
    }
}

/// Lets requests end and volumes become whole.
fn heal(world: &mut World) {
    world.net.set_late(None);
    world
        .clients
        .iter_mut()
        .for_each(|client| client.rest(true));
    let end = world.net.now().after(HEALING_MAX);
    while world.violations.is_empty() {
        world.run_until(world.net.now().after(TICK));
        let is_quiet = |client: &mut client::Client| client.running() == 0 && client.is_settled();
        if world.clients.iter_mut().all(is_quiet) {
            return;
        }
        if world.net.now() >= end {
            let stuck: Vec<String> = world
                .clients
                .iter_mut()
                .map(client::Client::state)
                .collect();
            world.violate(format!(
                "does not heal in {HEALING_MAX:?}: {}",
                stuck.join("; ")
            ));
        }
    }
}

/// Every acknowledged byte is readable while no stripe has lost more than r.
fn read_back(world: &mut World) {
    for client in 0..world.clients.len() {
        let mut at = 0;
        while world.violations.is_empty() {
            let mut steps = world.steps;
            let done = world.clients[client].read_back(&mut at, &mut steps);
            world.steps = steps;
            if done {
                break;
            }
            let node = world.node(Actor::Client(client));
            world.wake(node, world.net.now());
            world.run_until(world.net.now().after(Duration::from_millis(1)));
        }
    }
    world
        .clients
        .iter_mut()
        .for_each(|client| client.rest(false));
    for client in 0..world.clients.len() {
        let node = world.node(Actor::Client(client));
        world.wake(node, world.net.now());
    }
}

fn summary(options: &Options, world: &World) -> Report {
    Report {
        seed: options.seed,
        hosts: options.hosts,
        simulated_seconds: world.net.now().0 / 1_000_000_000,
        page_ops: world.clients.iter().map(|client| client.page_ops).sum(),
        faults: world.faults,
        trace_hash: format!("{:016x}", world.trace_hash()),
        violations: world.violations.clone(),
    }
}

fn plant(options: &Options, world: &World) -> Result<()> {
    let Some(name) = options.plant.as_deref() else {
        return Ok(());
    };
    if let Some((_, change)) = FABRIC_PLANTS.iter().find(|(known, _)| *known == name) {
        let mut planted = PlantedFabric::default();
        change(&mut planted);
        world.net.plant(planted);
        return Ok(());
    }
    let known = cenote_pool::planted::ALL
        .iter()
        .find(|(known, _)| *known == name);
    let Some(&(_, fault)) = known else {
        bail!("plant {name:?}: known are {}", plants().join(", "));
    };
    #[cfg(feature = "planted")]
    cenote_pool::planted::plant(Some(fault));
    #[cfg(not(feature = "planted"))]
    {
        let _ = fault;
        bail!("plant {name:?}: this build has no planted faults (feature `planted`)");
    }
    #[cfg(feature = "planted")]
    Ok(())
}

fn unplant() {
    #[cfg(feature = "planted")]
    cenote_pool::planted::plant(None);
}

impl Options {
    /// The papers' latencies, with stragglers: messages of one operation meet others between them.
    fn network(&self) -> Config {
        let stragglers = Stragglers {
            chance_ppm: 5000,
            scale_ns: 20_000,
            doublings_max: 8,
        };
        let link = LinkModel {
            stragglers,
            ..LinkModel::default()
        };
        Config {
            link,
            ..Config::default()
        }
    }

    fn slabs_per_host(&self) -> u32 {
        let extent_bytes = self.slab_bytes * self.scheme.k() as u64;
        let members = self.scheme.members();
        let slabs = self.volume_bytes.div_ceil(extent_bytes) * (members * self.clients) as u64;
        let hosts = self.hosts - (members - self.scheme.k());
        let enough = u32::try_from((slabs * 5 / 3).div_ceil(hosts as u64)).unwrap_or(u32::MAX);
        self.slabs_per_host.unwrap_or(enough)
    }

    /// Mean pause of a worker between two requests.
    fn pause_ns(&self) -> u64 {
        1_000_000_000 / self.rate
    }

    /// The command that repeats the simulation.
    #[must_use]
    pub fn command(&self) -> String {
        let mut command = format!(
            "cenote lab sim --seed {} --hours {} --hosts {} --clients {} --workers {} --scheme {} --rate {}",
            self.seed,
            seconds(u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX)) / 3600.0,
            self.hosts,
            self.clients,
            self.workers,
            self.scheme,
            self.rate
        );
        if let Some(plant) = &self.plant {
            command.push_str(&format!(" --plant {plant}"));
        }
        command
    }
}
