//! A cache in one process and in virtual time: `cenote lab cache`.
//!
//! Owner, clients and hosts are the real code over the simulated fabric. Clients read and write while machines
//! are taken back, die, fall silent and stop, owners are replaced and clients come and go; a model knows
//! what every word may hold.
//!
//! Checked: each word that is read (no acknowledged write is lost or older than it may be, none is of
//! another address); that a region which lost its bytes is told as such; that with two copies the death of a
//! domain loses nothing; that requests end; that once faults end everything is whole, and every byte is read
//! back, with two copies once more after a domain went. The owner's audit (R1, R2) runs after each event.

mod member;
mod model;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use cenote_cache::planted::{ALL, Planted};
use serde::Serialize;

use world::World;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of everything that is drawn.
    pub seed: u64,
    /// Virtual time under faults.
    pub duration: Duration,
    /// Hosts; with two copies two of them share a failure domain.
    pub hosts: usize,
    /// Clients.
    pub clients: usize,
    /// Regions of two slabs of 16 KiB.
    pub regions: u32,
    /// Copies of each region; `None`: drawn.
    pub copies: Option<usize>,
    /// What goes wrong.
    pub faults: Faults,
    /// A mistake to be found.
    pub planted: Option<Planted>,
}

/// What goes wrong while a cache is simulated.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Faults {
    /// Everything that can, drawn from the seed.
    #[default]
    Any,
    /// Regions move all the time, and every write is under way for longer than a copy takes to begin.
    SlowWrites,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            duration: Duration::from_secs(20),
            hosts: 6,
            clients: 3,
            regions: 4,
            copies: None,
            faults: Faults::Any,
            planted: None,
        }
    }
}

impl Options {
    /// A cache on which a mistake shows.
    #[must_use]
    pub fn suited(planted: Planted, seed: u64) -> Self {
        let copies = match planted {
            Planted::AckFirstCopy | Planted::SameDomain => Some(2),
            _ => Some(1),
        };
        let faults = match planted {
            // Its writes have to be under way when a region moves, and to land while it is copied.
            Planted::NoDrain => Faults::SlowWrites,
            _ => Faults::Any,
        };
        Self {
            seed,
            copies,
            faults,
            planted: Some(planted),
            ..Self::default()
        }
    }
}

/// What a simulation found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// As asked for.
    pub seed: u64,
    /// As asked for, or drawn.
    pub copies: usize,
    /// Requests that ended.
    pub requests: u64,
    /// Of those, the ones that failed.
    pub failed: u64,
    /// Faults.
    pub faults: u64,
    /// Regions that were copied from one host to another.
    pub moves: u64,
    /// Times that a region lost its bytes.
    pub losses: u64,
    /// Of everything that happened on the network, in hex; the same for the same options.
    pub trace_hash: String,
    /// The first promise that was broken.
    pub violation: Option<String>,
    /// The last things that happened before it.
    pub log: Vec<String>,
}

/// Runs one simulation.
#[must_use]
pub fn run(options: &Options) -> Report {
    #[cfg(feature = "planted")]
    cenote_cache::planted::plant(options.planted);
    let run = || World::new(options).run();
    let report = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Report {
        seed: options.seed,
        violation: Some(format!("it panics: {}", said(panic.as_ref()))),
        ..Report::default()
    });
    #[cfg(feature = "planted")]
    cenote_cache::planted::plant(None);
    report
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("")
}

/// The names of all mistakes.
pub fn plants() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// A mistake by its name.
#[must_use]
pub fn planted(name: &str) -> Option<Planted> {
    let known = ALL.iter().find(|(known, _)| *known == name);
    known.map(|(_, planted)| *planted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_keeps_every_promise_under_faults() {
        for seed in 1..=12 {
            let report = run(&Options {
                seed,
                ..Options::default()
            });
            assert_eq!(report.violation, None, "seed {seed}: {:#?}", report.log);
            assert!(report.requests > 1000 && report.faults > 5, "{report:?}");
        }
    }

    #[test]
    fn a_cache_keeps_every_promise_while_writes_outlast_the_begin_of_moves() {
        for seed in 1..=12 {
            let report = run(&Options {
                planted: None,
                ..Options::suited(Planted::NoDrain, seed)
            });
            assert_eq!(report.violation, None, "seed {seed}: {:#?}", report.log);
            assert!(report.requests > 1000 && report.moves > 3, "{report:?}");
        }
    }

    #[test]
    fn the_same_seed_is_the_same_run() {
        let options = Options::default();
        let (one, other) = (run(&options), run(&options));
        assert_eq!(one.trace_hash, other.trace_hash);
        assert_eq!(one.requests, other.requests);
    }

    #[test]
    fn every_planted_mistake_is_found() {
        let finds = |planted| {
            (1..=150).find(|&seed| run(&Options::suited(planted, seed)).violation.is_some())
        };
        let mut missed = Vec::new();
        for (name, planted) in ALL {
            match finds(planted) {
                Some(seed) => println!("{name}: found with seed {seed}"),
                None => missed.push(name),
            }
        }
        assert!(missed.is_empty(), "not found: {missed:?}");
    }
}
