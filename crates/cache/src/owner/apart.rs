//! Hosts that do not reach each other, though the owner reaches both.
//!
//! A copy from one to the other failed. For a while the owner fills new memory from elsewhere or
//! looks for other memory, and does not make such copies of a region equal: one of the two is
//! replaced, if a third host reaches the other.

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_fabric::Time;

use super::host::HostIndex;

/// Until the same two hosts are tried again. Arbitrary: short for one that comes back,
/// long for a region whose copies cannot be made equal, which takes no writes during an attempt.
pub(super) const APART: Duration = Duration::from_secs(15);

/// Pairs of hosts, with the time until which nothing is copied between them.
#[derive(Debug, Default)]
pub(super) struct Apart {
    pairs: BTreeMap<[HostIndex; 2], Time>,
}

impl Apart {
    /// A copy from one to the other failed.
    pub fn note(&mut self, source: HostIndex, target: HostIndex, now: Time) {
        self.pairs.retain(|_, until| now < *until);
        self.pairs.insert(pair(source, target), now.after(APART));
    }

    /// A host has another process or address, or is back: it may reach others again.
    pub fn forget(&mut self, host: HostIndex) {
        self.pairs.retain(|pair, _| !pair.contains(&host));
    }

    /// Hosts that this one is apart from.
    pub fn count(&self, host: HostIndex, now: Time) -> usize {
        let of = |(pair, until): &(&[HostIndex; 2], &Time)| pair.contains(&host) && now < **until;
        self.pairs.iter().filter(of).count()
    }

    pub fn are_apart(&self, one: HostIndex, other: HostIndex, now: Time) -> bool {
        let until = self.pairs.get(&pair(one, other));
        until.is_some_and(|until| now < *until)
    }
}

fn pair(one: HostIndex, other: HostIndex) -> [HostIndex; 2] {
    [one.min(other), one.max(other)]
}
