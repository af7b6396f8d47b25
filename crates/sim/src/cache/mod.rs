//! A cache in one process and in virtual time: `cenote lab cache`.
//!
//! Owner, clients and hosts are the real code over the simulated fabric. Clients read and write
//! while machines are taken back, die, fall silent and stop, hosts do not reach each other, owners
//! are replaced and clients come and go; a model knows what every word may hold.
//!
//! Checked: each word that is read (no acknowledged write is lost or older than it may be, none is
//! of another address); that a region which lost its bytes is told as such; that with two copies
//! the death of a domain loses nothing, and that both are the same when nothing is under way; that
//! requests end; that once faults end everything is whole, and every byte is read back, with two
//! copies once more after a domain went; that it is whole in time also while links between hosts
//! are cut and a third host is within reach. The owner's audit (R1, R2) runs after each event.

mod member;
mod model;
mod muffles;
mod world;

use std::time::Duration;

pub use cenote_cache::injected_faults::{ALL as FAULTS, InjectedFault};
use serde::Serialize;

#[cfg(feature = "injected-faults")]
use crate::report::Injection;
use crate::report::Report;
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
    /// Clients reach server threads of hosts, with batches, in place of memory alone.
    pub is_batched: bool,
    /// What goes wrong.
    pub faults: Faults,
    /// A mistake to be found.
    pub injected: Option<InjectedFault>,
}

/// What goes wrong while a cache is simulated.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Faults {
    /// Everything that can, drawn from the seed.
    #[default]
    Any,
    /// Regions move all the time, and every write is under way for longer than a copy takes to
    /// begin.
    SlowWrites,
    /// Regions move all the time, and one host answers all but what it is to lend and to copy.
    HungHost,
    /// An owner is stopped until another has followed, and then goes on.
    TwoOwners,
    /// The owner reaches neither one host nor one client for longer than it waits for them; the two
    /// reach each other.
    OwnerCutOff,
    /// Every write is under way for long, and connections to hosts break all the time: what was
    /// under way lands late.
    BrokenLinks,
    /// Every write is under way for long, and clients die in the middle of theirs, all of them at
    /// the end.
    DyingClients,
    /// Links between hosts are cut, and stay so for long, while regions have to be copied.
    HostsApart,
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
            is_batched: false,
            faults: Faults::Any,
            injected: None,
        }
    }
}

impl Options {
    /// A cache on which a mistake shows.
    #[must_use]
    pub fn suited(injected: InjectedFault, seed: u64) -> Self {
        let copies = match injected {
            InjectedFault::AckFirstCopy
            | InjectedFault::SameDomain
            | InjectedFault::CopiesDiverge
            | InjectedFault::ApartForgotten
            | InjectedFault::ApartTakenForEqual
            | InjectedFault::SureTooSoon
            | InjectedFault::PartedFromFirst
            | InjectedFault::LeavingFirst => Some(2),
            _ => Some(1),
        };
        let faults = match injected {
            // Its writes have to be under way when a region moves, and to land while it is copied.
            InjectedFault::NoDrain => Faults::SlowWrites,
            InjectedFault::WaitForEver => Faults::HungHost,
            InjectedFault::SupersededGoesOn => Faults::TwoOwners,
            InjectedFault::LeaseIgnored => Faults::OwnerCutOff,
            InjectedFault::NoFence | InjectedFault::RedoneUnfenced => Faults::BrokenLinks,
            InjectedFault::CopiesDiverge => Faults::DyingClients,
            InjectedFault::ApartForgotten
            | InjectedFault::ApartTakenForEqual
            | InjectedFault::SureTooSoon
            | InjectedFault::PartedFromFirst
            | InjectedFault::LeavingFirst => Faults::HostsApart,
            _ => Faults::Any,
        };
        let mut options = Self {
            seed,
            copies,
            faults,
            injected: Some(injected),
            ..Self::default()
        };
        if faults == Faults::HostsApart {
            // Each burst of faults is followed by a time in which everything becomes whole.
            options.duration *= 2;
        }
        options
    }
}

/// What was done in a simulation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Copies of each region, as asked for, or drawn.
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
    /// The longest time until all was whole while hosts did not reach each other, in ms.
    pub whole_after_ms: u64,
    /// The longest that one region took no writes meanwhile.
    pub stopped_ms: u64,
    /// Of everything that happened on the network, in hex; the same for the same options.
    pub trace_hash: String,
}

/// Runs one simulation.
#[must_use]
pub fn run(options: &Options) -> Report<Tally> {
    #[cfg(feature = "injected-faults")]
    let _made = Injection::new(cenote_cache::injected_faults::inject, options.injected);
    Report::of(options.seed, || World::new(options).run())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::missed;

    fn kept(options: &Options) -> Tally {
        run(options).kept(format_args!("{options:?}")).tally
    }

    #[test]
    fn a_cache_keeps_every_promise_under_faults() {
        for seed in 1..=12 {
            let tally = kept(&Options {
                seed,
                ..Options::default()
            });
            assert!(tally.requests > 1000 && tally.faults > 5, "{tally:?}");
        }
    }

    #[test]
    fn a_cache_keeps_every_promise_while_writes_outlast_the_begin_of_moves() {
        for seed in 1..=12 {
            let tally = kept(&Options {
                injected: None,
                ..Options::suited(InjectedFault::NoDrain, seed)
            });
            assert!(tally.requests > 1000 && tally.moves > 3, "{tally:?}");
        }
    }

    #[test]
    fn a_cache_is_whole_on_other_hosts_while_one_hangs() {
        let mut moves = 0;
        for seed in 1..=6 {
            let tally = kept(&Options {
                injected: None,
                ..Options::suited(InjectedFault::WaitForEver, seed)
            });
            assert!(tally.requests > 1000, "{tally:?}");
            moves += tally.moves;
        }
        assert!(moves > 6, "{moves}");
    }

    #[test]
    fn an_owner_that_another_followed_stands_down() {
        for seed in 1..=6 {
            let tally = kept(&Options {
                injected: None,
                ..Options::suited(InjectedFault::SupersededGoesOn, seed)
            });
            assert!(tally.requests > 500, "{tally:?}");
        }
    }

    #[test]
    fn a_cache_keeps_every_promise_with_batches_to_server_threads() {
        for seed in 1..=8 {
            let tally = kept(&Options {
                seed,
                is_batched: true,
                ..Options::default()
            });
            assert!(tally.requests > 1000 && tally.faults > 5, "{tally:?}");
        }
    }

    #[test]
    fn the_same_seed_is_the_same_run() {
        let options = Options::default();
        let (one, other) = (run(&options).tally, run(&options).tally);
        assert_eq!(one.trace_hash, other.trace_hash);
        assert_eq!(one.requests, other.requests);
    }

    /// Runs the worlds that a mistake is looked for in without it, and gives all moves and losses.
    fn sound_without(injected: InjectedFault, seeds: u64) -> (u64, u64) {
        let (mut moves, mut losses) = (0, 0);
        for seed in 1..=seeds {
            let tally = kept(&Options {
                injected: None,
                ..Options::suited(injected, seed)
            });
            assert!(tally.requests > 500, "{tally:?}");
            moves += tally.moves;
            losses += tally.losses;
        }
        (moves, losses)
    }

    #[test]
    fn a_client_that_nobody_reaches_does_not_go_on_with_a_host_that_was_given_up() {
        let (_, losses) = sound_without(InjectedFault::LeaseIgnored, 6);
        assert!(losses >= 6, "{losses}: the host was not given up");
    }

    #[test]
    fn a_cache_keeps_every_promise_while_writes_land_late() {
        sound_without(InjectedFault::RedoneUnfenced, 8);
    }

    #[test]
    fn copies_are_equal_after_clients_died_in_the_middle_of_writes() {
        sound_without(InjectedFault::CopiesDiverge, 8);
    }

    #[test]
    fn regions_are_whole_in_time_while_hosts_do_not_reach_each_other() {
        let (mut moves, mut waits) = (0, 0);
        for seed in 1..=12 {
            let suited = Options::suited(InjectedFault::ApartForgotten, seed);
            let tally = kept(&Options {
                injected: None,
                copies: None,
                ..suited
            });
            assert!(tally.requests > 500, "{tally:?}");
            moves += tally.moves;
            waits += u64::from(tally.stopped_ms > 1000);
        }
        assert!(
            moves > 24 && waits > 3,
            "{moves} {waits}: links did not matter"
        );
    }

    #[test]
    fn every_injected_fault_is_found() {
        let missed = missed(&FAULTS, 1..=40, |seed, mistake, injected| {
            let suited = Options::suited(mistake, seed);
            run(&Options { injected, ..suited }).verdict()
        });
        assert!(missed.is_empty(), "{}", missed.join("\n"));
    }
}
