//! A whole cluster in one process and in virtual time: `cenote lab sim`.
//!
//! Hosts, pool and volumes are the real code over the simulated fabric. Clients write and read
//! at random while faults are drawn (`faults`, `ambush`); a model knows what every sector may hold.
//! Time passes in epochs (`epoch`): work under faults, then everything is healed, every volume must
//! become whole, and every byte is read back, once more with r hosts gone.
//!
//! Checked, each by books of its own: each read (`model`); what hosts lend and take back
//! (`watched`); that hosts, directories and journals agree on who holds which slab (`books`); that
//! nothing is lost that no trouble explains (`client::losses`); every verb that takes effect and the
//! order of every connection (the fabric's witness); where slabs are (`world`); that no request fails while no stripe lost more than r, and
//! that all end. Which invariant is upheld by what: decision 11. The same options give the same
//! trace on every machine.

mod ambush;
mod books;
mod client;
pub mod dialer;
pub mod disk;
mod epoch;
mod estate;
mod faults;
pub mod host;
mod injection;
mod model;
pub mod observer;
mod options;
mod troubles;
mod world;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cenote_fabric::Time;
use serde::Serialize;

use world::World;

pub use injection::{fault_names, injected};
pub use options::{Options, Weights, seal_key};

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
    /// Where splits rot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rot: Option<Rot>,
    /// Of everything that happened, in hex; the same for the same options.
    pub trace_hash: String,
    /// Promises broken; the simulation ends with the first.
    pub violations: Vec<Violation>,
    /// Of the faults, changes of k.
    #[serde(skip)]
    pub restripes: u64,
    /// Pages that volumes brought to another cut, as far as their owners lived to tell.
    #[serde(skip)]
    pub pages_moved: u64,
    /// Crashes at the arrows of a relocation, to FENCED, DRAINED, FILLED, PUBLISHED and RETIRED.
    #[serde(skip)]
    pub arrows_hit: [u64; 5],
    /// Slabs that were out of reach, and were taken back as they were.
    #[serde(skip)]
    pub slabs_returned: u64,
    /// Writes that an owner did not end, and the next one did.
    #[serde(skip)]
    pub writes_redone: u64,
    /// Transfers that disks refused.
    #[serde(skip)]
    pub disk_refusals: u64,
    /// Pages that were read from disks and given to hosts.
    #[serde(skip)]
    pub pages_promoted: u64,
    /// Real time that it took.
    #[serde(skip)]
    pub elapsed: Duration,
}

/// Splits that rotted, and what became of them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rot {
    /// Faults that were one.
    pub rotten_splits: u64,
    /// Splits that clients found wrong.
    pub wrong_splits: u64,
    /// Of those, splits that were written again.
    pub healed_splits: u64,
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
    let _injected = injection::inject(options, &world)?;
    let mut report = summary(options, &world, started);
    while world.violations.is_empty() && world.net.now() < Time(0).after(options.duration) {
        if options
            .limit
            .is_some_and(|limit| started.elapsed() >= limit)
        {
            break;
        }
        epoch::epoch(&mut world, options);
        report = summary(options, &world, started);
        progress(&report);
    }
    Ok(report)
}

fn summary(options: &Options, world: &World, started: Instant) -> Report {
    let mut rot = Rot {
        rotten_splits: world.rotten_splits,
        ..Rot::default()
    };
    for (wrong, healed) in world.clients.iter().map(client::Client::errors) {
        rot.wrong_splits += wrong;
        rot.healed_splits += healed;
    }
    let sum = |count: fn(&client::Client) -> u64| world.clients.iter().map(count).sum();
    Report {
        seed: options.seed,
        hosts: options.hosts,
        simulated_seconds: world.net.now().0 / 1_000_000_000,
        page_ops: sum(|client| client.page_ops),
        faults: world.faults,
        rot: (options.weights.rot > 0).then_some(rot),
        trace_hash: format!("{:016x}", world.trace_hash()),
        violations: world.violations.clone(),
        restripes: world.restripes,
        pages_moved: sum(client::Client::pages_moved),
        arrows_hit: world.arrows_hit,
        slabs_returned: sum(|client| client.tally.slabs_returned),
        writes_redone: sum(|client| client.tally.writes_redone),
        disk_refusals: sum(client::Client::disk_refusals),
        pages_promoted: sum(client::Client::pages_promoted),
        elapsed: started.elapsed(),
    }
}
