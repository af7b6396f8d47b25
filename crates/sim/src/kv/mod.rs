//! A coding group in one process and in virtual time: `cenote lab kv`.
//!
//! Members are the real code (`cenote_kv::group`); links, views, time and clients are drawn from a
//! seed. Clients read, write, delete and swap; processes die, are suspected wrongly, stall, leave
//! as planned and come back; links break. Views are agreed on by one register, as etcd would have it.
//!
//! Checked: what clients saw of each key is linearizable; once faults end everything is served,
//! parities are the sums of the data (P = A D), and keys, facts and space are equal at all
//! members; nobody waits for ever. In the end more dies, of some groups, than they bear: what is left is judged
//! as before. \[cocytus16\] C1 to C5.

mod client;
pub mod cluster;
mod disaster;
mod judge;
pub mod linear;
mod mood;
mod network;
mod observations;
mod trouble;
mod world;

pub use cenote_kv::group::member::Service;
pub use cenote_kv::group::view::Scheme;
pub use cenote_kv::injected_faults::{ALL as FAULTS, InjectedFault};
use serde::Serialize;

#[cfg(feature = "injected-faults")]
use crate::report::Injection;
use crate::report::Report;
pub use mood::Focus;
use world::World;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of everything that is drawn.
    pub seed: u64,
    /// Data partitions.
    pub k: usize,
    /// Parities.
    pub m: usize,
    /// How values are kept.
    pub scheme: Scheme,
    /// What is served while values are recovered.
    pub service: Service,
    /// Steps under faults.
    pub steps: u64,
    /// Faults of processes at most: deaths and wrong suspicions.
    pub faults: u64,
    /// Units of a region.
    pub units: u64,
    /// Percent of the chances to come back that a process takes.
    pub returns: u64,
    /// What goes wrong most; none: drawn.
    pub focus: Option<Focus>,
    /// A mistake to be found.
    pub injected: Option<InjectedFault>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            k: 3,
            m: 2,
            scheme: Scheme::Coded,
            service: Service::Online,
            steps: 4000,
            faults: 6,
            units: 12,
            returns: 100,
            focus: None,
            injected: None,
        }
    }
}

impl Options {
    /// A group whose load and faults lead to where a mistake shows, often.
    pub fn suited(injected: InjectedFault, seed: u64) -> Self {
        let any = Self {
            seed,
            injected: Some(injected),
            ..Self::default()
        };
        match injected {
            // An owner that goes on, though another has come.
            InjectedFault::NoFence | InjectedFault::NoLease => Self {
                focus: Some(Focus::Deposed),
                ..any
            },
            // Many parities, of which some have heard more of a deposed owner than others.
            InjectedFault::UnitsBeforeSettled => Self {
                k: 2,
                m: 4,
                focus: Some(Focus::Deposed),
                faults: 80,
                steps: 8000,
                ..any
            },
            // Values that are on their way for long, in several runs of units.
            InjectedFault::LateDataOverwrites => Self {
                focus: Some(Focus::Moves),
                faults: 80,
                steps: 16_000,
                units: 200,
                ..any
            },
            // Processes that leave, to others that are there or to a parity.
            InjectedFault::LeaseKept | InjectedFault::HandoffOutdated => Self {
                focus: Some(Focus::Leaving),
                ..any
            },
            InjectedFault::UnfoldedExchange | InjectedFault::FoldOutdated => Self {
                focus: Some(Focus::Spreading),
                ..any
            },
            // More dies than is borne, before what was lost first is recovered.
            InjectedFault::LostAsZero => Self { units: 200, ..any },
            InjectedFault::UnitsOvertake | InjectedFault::StaleAddress => Self {
                focus: Some(Focus::Moves),
                faults: 20,
                ..any
            },
            _ => any,
        }
    }

    /// The command that repeats the simulation.
    pub fn command(&self) -> String {
        let seed = self.seed;
        if let Some(injected) = self.injected {
            let name = FAULTS.iter().find(|(_, known)| *known == injected);
            let name = name.map_or("", |(name, _)| name);
            return format!("cenote lab kv --seed {seed} --plant {name}");
        }
        let scheme = match self.scheme {
            Scheme::Coded => "coded",
            Scheme::Replicated => "replicated",
        };
        let focus = Focus::ALL
            .iter()
            .find(|(_, known)| Some(*known) == self.focus);
        let focus = focus.map_or(String::new(), |(name, _)| format!(" --focus {name}"));
        let blocked = match self.service {
            Service::Online => "",
            Service::Blocked => " --blocked",
        };
        format!(
            "cenote lab kv --seed {seed} --k {} --m {} --scheme {scheme} --steps {} --faults {} \
             --units {} --returns {}{focus}{blocked}",
            self.k, self.m, self.steps, self.faults, self.units, self.returns
        )
    }
}

/// What was done in a simulation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Tally {
    /// Operations of clients that ended.
    pub operations: u64,
    /// Deaths and wrong suspicions.
    pub faults: u64,
    /// Processes that left as they were told to.
    pub left: u64,
    /// Partitions that began to go to others for owners to be spread.
    pub handed: u64,
    /// Of these, owners and parities that have changed places.
    pub exchanged: u64,
    /// Views that were agreed on.
    pub views: u32,
    /// Steps that it took, those without faults included.
    pub steps: u64,
    /// Solutions that a leader sent to others.
    pub solved: u64,
    /// Requests for which there was no room.
    pub refused: u64,
}

impl Tally {
    /// Adds up what was done.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.faults += other.faults;
        self.left += other.left;
        self.handed += other.handed;
        self.exchanged += other.exchanged;
        self.views += other.views;
        self.steps += other.steps;
        self.solved += other.solved;
        self.refused += other.refused;
    }
}

/// Runs one simulation.
#[must_use]
pub fn run(options: &Options) -> Report<Tally> {
    #[cfg(feature = "injected-faults")]
    let _made = Injection::new(cenote_kv::injected_faults::inject, options.injected);
    Report::of(options.seed, || World::new(options).run())
}
