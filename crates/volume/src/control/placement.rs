//! Which hosts new slabs of a stripe go to: the placement that was asked for, over the hosts that
//! can be asked now.
//!
//! Of a stripe at most one member is in a failure domain (H1), and at most r are in a power domain,
//! so that either can go without loss. A retired host is never chosen.
//! With `CodingSets` a new stripe is in one group, and what replaces a lost member is of the same
//! group while that has a host left. After that redundancy comes before few groups: the stripe
//! takes a host that its group adopts. Slabs stay where they are when groups change.
//! Paper: \[hydra22\] 5; decision 21.

use cenote_fabric::Time;
use cenote_pool::placement::{
    Candidate, CodingSets, Pick, Placement, Policy, Replacement, Shape, Site, place,
};

use super::acquires::Acquires;
use super::host::Host;
use super::hosts::Hosts;
use super::ownership::Ownership;
use crate::Scheme;
use crate::core::Core;
use crate::directory::HostIndex;
use crate::extents::LayoutId;

/// What chooses hosts for a volume.
pub(super) struct Placer {
    volume: u128,
    placement: Placement,
    choice: Choice,
}

enum Choice {
    Policy(Policy),
    Sets(CodingSets),
}

/// The choice among hosts as they are now.
pub(super) struct Placing<'a> {
    pub placer: &'a Placer,
    pub hosts: &'a Hosts,
    pub acquires: &'a Acquires,
    pub core: &'a Core,
}

impl Placer {
    pub fn new(volume: u128, placement: Placement, scheme: Scheme, hosts: &Hosts) -> Self {
        Self {
            volume,
            placement,
            choice: Choice::new(placement, scheme, hosts),
        }
    }

    /// Stripes are to have another scheme.
    pub fn set_scheme(&mut self, scheme: Scheme, hosts: &Hosts) {
        self.choice = Choice::new(self.placement, scheme, hosts);
    }
}

impl Choice {
    fn new(placement: Placement, scheme: Scheme, hosts: &Hosts) -> Self {
        match placement {
            Placement::Policy(policy) => Self::Policy(policy),
            Placement::CodingSets { spare } => {
                let sites: Vec<Site> = hosts.iter().map(|host| host.site).collect();
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

/// Hosts that may be asked for a slab now.
pub(super) fn candidates(hosts: &Hosts, now: Time) -> Vec<Candidate> {
    let usable = |host: &Host| {
        let is_ours = host.ownership == Ownership::Owned;
        host.answers(now) && is_ours && !host.site.retired && host.slabs_free > 0
    };
    let all = hosts.iter().enumerate();
    all.filter(|(_, host)| usable(host))
        .map(|(index, host)| Candidate {
            host: index,
            domain: host.site.domain,
            slabs_free: host.slabs_free,
            slabs_total: host.slabs_total,
        })
        .collect()
}

/// Hosts that do not answer, may again soon, and lend: extents that lack some are not refused yet.
pub(super) fn lenders_awaited(hosts: &Hosts, now: Time) -> usize {
    let lends = |host: &&Host| !host.site.retired;
    let out = hosts.iter().filter(lends);
    out.filter(|host| !host.answers(now) && host.is_awaited(now))
        .count()
}

impl Placing<'_> {
    /// Hosts for `count` new slabs of an extent that has others on `held`. Fewer when there are not
    /// enough.
    pub fn members(
        &self,
        extent: usize,
        held: &[HostIndex],
        count: usize,
        candidates: &[Candidate],
    ) -> Vec<HostIndex> {
        let seed = self.seed(extent);
        if let Choice::Sets(sets) = &self.placer.choice
            && held.is_empty()
            && count == self.core.resilience().scheme().members()
        {
            let by_host = self.by_host(candidates);
            if let Some(whole) = sets.place(|host| by_host[host], Pick::default(), seed) {
                return whole;
            }
        }
        let old = match self.placer.choice {
            Choice::Policy(Policy::TwoChoices | Policy::Single) => self.hosts_in_use(),
            _ => Vec::new(),
        };
        let mut taken = held.to_vec();
        for number in 0..count {
            let admitted = self.admitted(extent, candidates, &taken);
            let next = match &self.placer.choice {
                Choice::Policy(Policy::LeastLoaded) => least_loaded(&admitted, seed),
                Choice::Policy(policy) => {
                    let draws = seed.wrapping_add(number as u64);
                    let chosen = policy.place(&admitted, |host| old[host], &[], 1, draws);
                    chosen.first().copied()
                }
                Choice::Sets(sets) => self.near(sets, extent, &taken, &admitted),
            };
            let Some(host) = next else { break };
            taken.push(host);
        }
        taken.split_off(held.len())
    }

    /// A host for the copy of one slab, or for what is rebuilt of it; the stripe's others are on
    /// `held`.
    pub fn replacement(
        &self,
        extent: usize,
        held: &[HostIndex],
        candidates: &[Candidate],
    ) -> Option<HostIndex> {
        let admitted = self.admitted(extent, candidates, held);
        match &self.placer.choice {
            Choice::Policy(_) => least_loaded(&admitted, self.seed(extent)),
            Choice::Sets(sets) => self.near(sets, extent, held, &admitted),
        }
    }

    /// A host of the group that a stripe is in, or one that the group adopts.
    fn near(
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
            tracing::info!(extent, group = home, host = %self.hosts.name(host),
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
            let power = host.site.power;
            let shares = |other: &Host| power.is_some() && other.site.power == power;
            others().all(|other| other.site.domain != host.site.domain)
                && others().filter(|other| shares(other)).count() < most
        };
        let admitted = candidates.iter();
        admitted
            .filter(|candidate| admits(&self.hosts[candidate.host]))
            .cloned()
            .collect()
    }

    /// By host: whether this volume has a slab of it, or asked for one. Looks no further than
    /// until every host is known: a volume may have a million extents.
    fn hosts_in_use(&self) -> Vec<bool> {
        let snapshot = self.core.directory.snapshot();
        let stripes = snapshot.stripes();
        let members = stripes.flat_map(|(_, stripe)| stripe.members.iter().flatten());
        let held = members.map(|member| member.session.host);
        let asked = self.acquires.iter().map(|acquire| acquire.session.host);
        let mut in_use = vec![false; self.hosts.len()];
        let mut left = in_use.len();
        for host in asked.chain(held) {
            left -= usize::from(!std::mem::replace(&mut in_use[host], true));
            if left == 0 {
                break;
            }
        }
        in_use
    }

    /// Spreads ties between equally loaded hosts over extents, and draws over attempts.
    fn seed(&self, extent: usize) -> u64 {
        let number = (extent as u64) << 32 ^ self.hosts.requests_made();
        (self.placer.volume as u64) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
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
