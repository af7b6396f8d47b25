//! What a volume knows of wrong splits: who sent them, and how many.
//!
//! Workers name hosts here as they find splits that disagree; the control thread weighs that
//! (`rates`) and says which hosts are suspicious, which workers look up before a read.
//!
//! Concurrency: atomics alone. The page path reads one word while nobody is suspicious.

mod encryption;
mod protection;
mod rates;
mod tags;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use serde::Serialize;

use crate::directory::HostIndex;

pub use encryption::{NUMBER_BLOCK, Sealer};
pub use protection::{Protection, SealKey, SealKeyError};
pub use rates::{ErrorRates, Limits, Reputation};
pub use tags::{Tag, Tags, TagsError};

/// Blame of one host for one page is counted in this unit, so that it can be shared out.
pub const WHOLE_BLAME: u64 = 1000;

/// Shared by the workers and the control thread of one volume.
pub struct Integrity {
    hosts: Box<[HostErrors]>,
    suspicious_count: AtomicUsize,
    pub counters: IntegrityCounters,
    /// What is kept of each page, if anything is.
    pub tags: Option<Tags>,
}

/// What one host is blamed for.
#[derive(Default)]
struct HostErrors {
    /// Splits of it that were found wrong.
    wrong_splits: AtomicU64,
    /// Those, and its share of pages whose wrong split could not be told, in [`WHOLE_BLAME`].
    blame: AtomicU64,
    is_suspicious: AtomicBool,
}

/// What comparing and healing did so far.
#[derive(Debug, Default)]
pub struct IntegrityCounters {
    /// Splits that were found wrong and named.
    pub wrong_splits: AtomicU64,
    /// Of those, splits that were written again.
    pub healed_splits: AtomicU64,
    /// Reads that were errors because splits disagreed.
    pub corrupt_reads: AtomicU64,
    /// Reads that asked for more splits because the first ones disagreed.
    pub extended_reads: AtomicU64,
    /// Reads with nothing to compare: no more than k splits were left.
    pub unchecked_reads: AtomicU64,
}

/// What comparing and healing did so far; see `docs/guides/integrity.md`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct IntegrityStatus {
    /// Bytes that are kept here of each page to know it again; 0: none.
    pub tag_bytes: u64,
    /// Whether pages leave this process encrypted.
    pub is_sealed: bool,
    /// Splits that were found wrong and named.
    pub wrong_splits: u64,
    /// Of those, splits that were written again.
    pub healed_splits: u64,
    /// Reads that were errors because splits disagreed.
    pub corrupt_reads: u64,
    /// Reads that asked for more splits because the first ones disagreed.
    pub extended_reads: u64,
    /// Reads with nothing to compare: no more than k splits were left.
    pub unchecked_reads: u64,
}

impl Integrity {
    /// What the counters say now.
    pub fn status(&self) -> IntegrityStatus {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tags = self.tags.as_ref();
        IntegrityStatus {
            tag_bytes: tags.map_or(0, |tags| tags.bytes_per_page() as u64),
            is_sealed: self.is_sealed(),
            wrong_splits: value(&self.counters.wrong_splits),
            healed_splits: value(&self.counters.healed_splits),
            corrupt_reads: value(&self.counters.corrupt_reads),
            extended_reads: value(&self.counters.extended_reads),
            unchecked_reads: value(&self.counters.unchecked_reads),
        }
    }

    pub fn new(host_count: usize, tags: Option<Tags>) -> Self {
        Self {
            hosts: (0..host_count).map(|_| HostErrors::default()).collect(),
            suspicious_count: AtomicUsize::new(0),
            counters: IntegrityCounters::default(),
            tags,
        }
    }

    /// Whether what leaves this process is encrypted.
    #[inline]
    pub fn is_sealed(&self) -> bool {
        self.tags.as_ref().is_some_and(|tags| tags.sealer.is_some())
    }

    /// A split of this host was found wrong.
    pub fn name(&self, host: HostIndex) {
        let errors = &self.hosts[host];
        errors.wrong_splits.fetch_add(1, Ordering::Relaxed);
        errors.blame.fetch_add(WHOLE_BLAME, Ordering::Relaxed);
        self.counters.wrong_splits.fetch_add(1, Ordering::Relaxed);
    }

    /// One of `among` hosts, this one of them, sent a wrong split.
    pub fn suspect(&self, host: HostIndex, among: u32) {
        let share = WHOLE_BLAME / u64::from(among.max(1));
        self.hosts[host].blame.fetch_add(share, Ordering::Relaxed);
    }

    /// Splits of a host that were found wrong.
    pub fn wrong_splits(&self, host: HostIndex) -> u64 {
        self.hosts[host].wrong_splits.load(Ordering::Relaxed)
    }

    /// Everything that a host was ever blamed for, in [`WHOLE_BLAME`].
    pub fn blame(&self, host: HostIndex) -> u64 {
        self.hosts[host].blame.load(Ordering::Relaxed)
    }

    /// Whether any host is suspicious; mostly none.
    #[inline]
    pub fn has_suspects(&self) -> bool {
        self.suspicious_count.load(Ordering::Relaxed) > 0
    }

    /// Whether reads that touch this host ask for more splits.
    pub fn is_suspicious(&self, host: HostIndex) -> bool {
        self.hosts[host].is_suspicious.load(Ordering::Relaxed)
    }

    /// Says so. For the control thread alone.
    pub fn set_suspicious(&self, host: HostIndex, is_suspicious: bool) {
        let was = self.hosts[host]
            .is_suspicious
            .swap(is_suspicious, Ordering::Relaxed);
        match (was, is_suspicious) {
            (false, true) => self.suspicious_count.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.suspicious_count.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blame_is_shared_where_nobody_can_be_named() {
        let integrity = Integrity::new(3, None);
        integrity.name(0);
        integrity.suspect(1, 9);
        assert_eq!((integrity.wrong_splits(0), integrity.blame(0)), (1, 1000));
        assert_eq!((integrity.wrong_splits(1), integrity.blame(1)), (0, 111));
        assert_eq!(integrity.blame(2), 0);
    }

    #[test]
    fn suspects_are_counted_once() {
        let integrity = Integrity::new(2, None);
        assert!(!integrity.has_suspects());
        integrity.set_suspicious(1, true);
        integrity.set_suspicious(1, true);
        integrity.set_suspicious(0, false);
        assert!(integrity.has_suspects() && integrity.is_suspicious(1));
        integrity.set_suspicious(1, false);
        assert!(!integrity.has_suspects());
    }
}
