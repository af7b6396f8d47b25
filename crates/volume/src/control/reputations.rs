//! What follows from the errors of hosts: who is doubted, who is avoided, whose slabs go.
//!
//! Workers count what they find wrong (`integrity`); once per tick that is weighed
//! (`integrity::rates`). The slabs of an excluded host are moved like those of one that is drained,
//! but rebuilt from others where these suffice, since its bytes are what is doubted.

use cenote_fabric::Time;
use cenote_pool::placement::Candidate;

use super::hosts::Hosts;
use crate::directory::HostIndex;
use crate::integrity::{ErrorRates, Integrity, Limits, Reputation, WHOLE_BLAME};

/// The hosts' error rates, and what was counted up to now.
pub(super) struct Reputations {
    rates: ErrorRates,
    /// Per host: splits named, and blame.
    seen: Vec<(u64, u64)>,
}

impl Reputations {
    pub fn new(host_count: usize, now: Time) -> Self {
        Self {
            rates: ErrorRates::new(Limits::default(), host_count, now),
            seen: vec![(0, 0); host_count],
        }
    }

    /// Weighs what hosts were blamed for since the last time; whether one is to lose its slabs by it.
    pub fn tend(&mut self, integrity: &Integrity, hosts: &Hosts, now: Time) -> bool {
        let mut errors = Vec::with_capacity(self.seen.len());
        for (host, seen) in self.seen.iter_mut().enumerate() {
            let count = (integrity.wrong_splits(host), integrity.blame(host));
            let (named, blamed) = (count.0 - seen.0, count.1 - seen.1);
            errors.push((named as f64, blamed as f64 / WHOLE_BLAME as f64));
            *seen = count;
        }
        let mut excludes = false;
        for (host, reputation) in self.rates.update(now, &errors) {
            integrity.set_suspicious(host, reputation != Reputation::Trusted);
            let name = hosts.name(host);
            match reputation {
                Reputation::Trusted => tracing::info!(host = %name, "host is trusted again"),
                Reputation::Suspicious => {
                    tracing::warn!(host = %name, "host sends wrong bytes: reads that touch it compare more");
                }
                Reputation::Excluded => {
                    tracing::warn!(host = %name, "host sends too many wrong bytes: its slabs are rebuilt elsewhere");
                    excludes = true;
                }
            }
        }
        excludes
    }

    /// How a host stands.
    pub fn of(&self, host: HostIndex) -> Reputation {
        self.rates.reputation(host)
    }

    pub fn is_excluded(&self, host: HostIndex) -> bool {
        self.of(host) == Reputation::Excluded
    }

    /// Whether any host is to lose its slabs.
    pub fn has_excluded(&self) -> bool {
        (0..self.seen.len()).any(|host| self.is_excluded(host))
    }

    /// Without excluded hosts, as long as a stripe of so many members finds its domains without them.
    pub fn avoid_excluded(&self, candidates: Vec<Candidate>, members: usize) -> Vec<Candidate> {
        let all = candidates.iter();
        let others: Vec<Candidate> = all.filter(|c| !self.is_excluded(c.host)).cloned().collect();
        let mut domains: Vec<u32> = others.iter().map(|candidate| candidate.domain).collect();
        domains.sort_unstable();
        domains.dedup();
        if domains.len() < members {
            candidates
        } else {
            others
        }
    }
}
