//! Hosts that do not reach each other, though the owner reaches both.
//!
//! A copy from one to the other failed. For a while the owner fills new memory from elsewhere or
//! looks for other memory, and does not make such copies of a region equal: one of the two is
//! replaced, if a third host reaches the other. For longer than that other hosts come first.

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_fabric::Time;

use super::host::HostIndex;
use crate::injected_faults::{InjectedFault, is_injected};

/// Until the same two hosts are tried again. Arbitrary: short for one that comes back,
/// long for a region whose copies cannot be made equal, which takes no writes during an attempt.
pub(super) const APART: Duration = Duration::from_secs(15);

/// Until it does not matter any more that a copy failed. Attempts may take so long that the first
/// pair of hosts may be tried again before the last one was: those that were not tried come first.
/// Arbitrary.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Pairs of hosts, with the time at which a copy from one to the other failed last.
#[derive(Debug, Default)]
pub(super) struct Apart {
    pairs: BTreeMap<[HostIndex; 2], Time>,
}

impl Apart {
    /// A copy from one to the other failed.
    pub fn note(&mut self, source: HostIndex, target: HostIndex, now: Time) {
        if is_injected(InjectedFault::ApartForgotten) {
            return;
        }
        self.pairs.retain(|_, at| now < at.after(REMEMBERED));
        self.pairs.insert(pair(source, target), now);
    }

    /// A copy from one to the other was made.
    pub fn note_copied(&mut self, source: HostIndex, target: HostIndex) {
        self.pairs.remove(&pair(source, target));
    }

    /// A host has another process or address, or is back: it may reach others again.
    pub fn forget(&mut self, host: HostIndex) {
        self.pairs.retain(|pair, _| !pair.contains(&host));
    }

    /// Hosts that this one is apart from.
    pub fn count(&self, host: HostIndex, now: Time) -> usize {
        let are_apart = |at: Time| now < at.after(APART);
        let of = |(pair, at): &(&[HostIndex; 2], &Time)| pair.contains(&host) && are_apart(**at);
        self.pairs.iter().filter(of).count()
    }

    pub fn are_apart(&self, one: HostIndex, other: HostIndex, now: Time) -> bool {
        let failed = self.failed_at(one, other, now);
        failed.is_some_and(|at| now < at.after(APART))
    }

    /// When a copy from one to the other failed last, if that matters still.
    pub fn failed_at(&self, one: HostIndex, other: HostIndex, now: Time) -> Option<Time> {
        let failed = self.pairs.get(&pair(one, other)).copied();
        failed.filter(|at| now < at.after(REMEMBERED))
    }
}

fn pair(one: HostIndex, other: HostIndex) -> [HostIndex; 2] {
    [one.min(other), one.max(other)]
}
