//! Which hosts new slabs of a stripe go to: the placement that was asked for, over the hosts that
//! can be asked now.
//!
//! Of a stripe at most one member is in a failure domain (H1), and at most r are in a power domain,
//! so that either can go without loss. A retired host is never chosen.
//! With `CodingSets` a new stripe is in one group, and what replaces a lost member is of the same
//! group while that has a host left. After that redundancy comes before few groups: the stripe
//! takes a host that its group adopts. Slabs stay where they are when groups change.
//! Paper: \[hydra22\] 5; decision 21.

use cenote_pool::placement::{
    Candidate, CodingSets, Pick, Placement, Policy, Replacement, Shape, Site, place,
};

use super::Control;
use super::hosts::Host;
use crate::Scheme;
use crate::directory::HostIndex;
use crate::extents::LayoutId;

/// What chooses hosts for a volume.
pub(super) enum Placer {
    Policy(Policy),
    Sets(CodingSets),
}

impl Placer {
    pub fn new(placement: Placement, scheme: Scheme, hosts: &[Host]) -> Self {
        match placement {
            Placement::Policy(policy) => Self::Policy(policy),
            Placement::CodingSets { spare } => {
                let sites: Vec<Site> = hosts.iter().map(Host::site).collect();
                let shape = Shape {
                    members: scheme.members(),
                    spare,
                    power_max: power_max(scheme),
                };
                Self::Sets(CodingSets::new(&sites, shape))
            }
        }
    }
}

/// Members of a stripe that may share a power domain: those that it can do without.
fn power_max(scheme: Scheme) -> usize {
    scheme.r().max(1)
}

impl Control {
    /// Hosts for `count` new slabs of an extent that has others on `held`. Fewer when there are not
    /// enough.
    pub(super) fn place_members(
        &self,
        extent: usize,
        held: &[HostIndex],
        count: usize,
        candidates: &[Candidate],
    ) -> Vec<HostIndex> {
        let seed = self.seed(extent);
        if let Placer::Sets(sets) = &self.placer
            && held.is_empty()
            && count == self.core.resilience().scheme().members()
        {
            let by_host = self.by_host(candidates);
            if let Some(whole) = sets.place(|host| by_host[host], Pick::default(), seed) {
                return whole;
            }
        }
        let old = match self.placer {
            Placer::Policy(Policy::TwoChoices | Policy::Single) => self.hosts_in_use(),
            _ => Vec::new(),
        };
        let mut taken = held.to_vec();
        for number in 0..count {
            let admitted = self.admitted(extent, candidates, &taken);
            let next = match &self.placer {
                Placer::Policy(Policy::LeastLoaded) => least_loaded(&admitted, seed),
                Placer::Policy(policy) => {
                    let draws = seed.wrapping_add(number as u64);
                    let chosen = policy.place(&admitted, |host| old[host], &[], 1, draws);
                    chosen.first().copied()
                }
                Placer::Sets(sets) => self.place_near(sets, extent, &taken, &admitted),
            };
            let Some(host) = next else { break };
            taken.push(host);
        }
        taken.split_off(held.len())
    }

    /// A host for the copy of one slab, or for what is rebuilt of it; the stripe's others are on
    /// `held`.
    pub(super) fn place_replacement(
        &self,
        extent: usize,
        held: &[HostIndex],
        candidates: &[Candidate],
    ) -> Option<HostIndex> {
        let admitted = self.admitted(extent, candidates, held);
        match &self.placer {
            Placer::Policy(_) => least_loaded(&admitted, self.seed(extent)),
            Placer::Sets(sets) => self.place_near(sets, extent, held, &admitted),
        }
    }

    /// A host of the group that a stripe is in, or one that the group adopts.
    fn place_near(
        &self,
        sets: &CodingSets,
        extent: usize,
        held: &[HostIndex],
        admitted: &[Candidate],
    ) -> Option<HostIndex> {
        let by_host = self.by_host(admitted);
        let candidate = |host: usize| by_host[host];
        let seed = self.seed(extent);
        let home = sets.home(held).or_else(|| sets.roomiest(candidate));
        let Some(home) = home else {
            return least_loaded(admitted, seed);
        };
        let found = sets.replace(home, candidate, seed)?;
        if let Replacement::Adopted(host) = found {
            tracing::info!(extent, group = home, host = %self.hosts[host].config.name,
                "no host left in the group of a stripe; it takes another");
        }
        Some(found.host())
    }

    /// Hosts on which a stripe may have one more slab beside those that it has.
    fn admitted(
        &self,
        extent: usize,
        candidates: &[Candidate],
        held: &[HostIndex],
    ) -> Vec<Candidate> {
        let most = power_max(self.core.layouts.scheme(LayoutId::of(extent)));
        let admits = |host: &Host| {
            let others = || held.iter().map(|&held| &self.hosts[held]);
            let shares = |other: &Host| host.power.is_some() && other.power == host.power;
            others().all(|other| other.domain != host.domain)
                && others().filter(|other| shares(other)).count() < most
        };
        let admitted = candidates.iter();
        admitted
            .filter(|candidate| admits(&self.hosts[candidate.host]))
            .cloned()
            .collect()
    }

    fn by_host<'a>(&self, candidates: &'a [Candidate]) -> Vec<Option<&'a Candidate>> {
        let mut by_host = vec![None; self.hosts.len()];
        for candidate in candidates {
            by_host[candidate.host] = Some(candidate);
        }
        by_host
    }
}

fn least_loaded(candidates: &[Candidate], seed: u64) -> Option<HostIndex> {
    place(candidates, &[], 1, seed).first().copied()
}
