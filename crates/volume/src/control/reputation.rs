//! What follows from the errors of hosts: who is doubted, who is avoided, whose slabs go.
//!
//! Workers count what they find wrong (`integrity`); once per tick that is weighed
//! (`integrity::rates`). The slabs of an excluded host are moved like those of one that is drained,
//! but rebuilt from others where these suffice, since its bytes are what is doubted.

use cenote_fabric::Time;
use cenote_pool::placement::Candidate;

use super::Control;
use crate::directory::{HostIndex, Stripe};
use crate::integrity::{ErrorRates, Limits, Reputation, WHOLE_BLAME};

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
}

impl Control {
    /// Weighs what hosts were blamed for since the last time.
    pub(super) fn tend_reputations(&mut self, now: Time) {
        let integrity = &self.core.integrity;
        let mut errors = Vec::with_capacity(self.reputations.seen.len());
        for (host, seen) in self.reputations.seen.iter_mut().enumerate() {
            let count = (integrity.wrong_splits(host), integrity.blame(host));
            let (named, blamed) = (count.0 - seen.0, count.1 - seen.1);
            errors.push((named as f64, blamed as f64 / WHOLE_BLAME as f64));
            *seen = count;
        }
        for (host, reputation) in self.reputations.rates.update(now, &errors) {
            integrity.set_suspicious(host, reputation != Reputation::Trusted);
            let name = &self.hosts[host].config.name;
            match reputation {
                Reputation::Trusted => tracing::info!(host = %name, "host is trusted again"),
                Reputation::Suspicious => {
                    tracing::warn!(host = %name, "host sends wrong bytes: reads that touch it compare more");
                }
                Reputation::Excluded => {
                    tracing::warn!(host = %name, "host sends too many wrong bytes: its slabs are rebuilt elsewhere");
                    self.repair_retry = Time(0);
                }
            }
        }
    }

    /// How a host stands.
    pub(super) fn reputation(&self, host: HostIndex) -> Reputation {
        self.reputations.rates.reputation(host)
    }

    pub(super) fn is_excluded(&self, host: HostIndex) -> bool {
        self.reputation(host) == Reputation::Excluded
    }

    /// Whether any host is to lose its slabs.
    pub(super) fn has_excluded(&self) -> bool {
        (0..self.hosts.len()).any(|host| self.is_excluded(host))
    }

    /// Without excluded hosts, as long as a stripe finds its domains without them.
    pub(super) fn avoid_excluded(&self, candidates: Vec<Candidate>) -> Vec<Candidate> {
        let all = candidates.iter();
        let others: Vec<Candidate> = all.filter(|c| !self.is_excluded(c.host)).cloned().collect();
        let mut domains: Vec<u32> = others.iter().map(|candidate| candidate.domain).collect();
        domains.sort_unstable();
        domains.dedup();
        if domains.len() < self.core.resilience().scheme().members() {
            candidates
        } else {
            others
        }
    }

    /// Whether the copy in the making of a split is made from others: its host's bytes are doubted,
    /// and enough are left without them. Where tags tell what is right, enough to be compared: a copy
    /// takes away nothing that a page could be made from.
    pub(super) fn is_rebuilt(&self, stripe: &Stripe, split: usize) -> bool {
        let host = stripe.members[split]
            .as_ref()
            .map(|member| member.session.host);
        let others = stripe.readable() & !(1 << split);
        host.is_some_and(|host| self.is_excluded(host))
            && others.count_ones() as usize >= stripe.cut.k() + usize::from(self.is_tagged())
    }
}
