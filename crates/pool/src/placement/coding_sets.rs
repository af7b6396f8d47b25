//! `CodingSets`: disjoint groups of k+r+l hosts, and stripes that stay inside one.
//!
//! Whoever loses r+1 hosts loses data if some stripe had a member on each. Stripes that stay inside
//! few small groups leave few such sets of hosts, and the k+r least loaded of a group even its
//! load out. Every client computes the groups from the cluster file alone, so all of them agree.
//!
//! Invariants: a group's place in the list of hosts is its members' for good, so a host that joins
//! at the end, or retires, changes no other host's group, except that a group with fewer than k+r
//! hosts left is none; a group has no two hosts of a failure domain and at most `power_max` of a
//! power domain, so that any k+r of its hosts can hold a stripe.
//!
//! What the paper leaves open and what is done: decision 21. Paper: \[hydra22\] 5.

use std::collections::HashMap;

use super::policy::draw;
use super::{Candidate, by_load};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::random::{Random, mix};

/// Where a host is, and whether it stays. Numbers are the caller's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Site {
    /// Failure domain: of a stripe at most one member is in each.
    pub domain: u32,
    /// What feeds it: of a stripe at most [`Shape::power_max`] members are on each; `None` on none
    /// that is known.
    pub power: Option<u32>,
    /// Gets no slab any more. Its place is kept for the host that is listed in its stead.
    pub retired: bool,
}

/// How large groups are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    /// k+r: hosts of a stripe, and the fewest of a group. At least 1.
    pub members: usize,
    /// l: hosts of a group beyond that.
    pub spare: usize,
    /// Members of a stripe that may be lost with one power domain. At least 1.
    pub power_max: usize,
}

/// How a stripe gets its group.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Pick {
    /// Two groups are drawn, the one is taken whose k+r least loaded hosts are less loaded.
    #[default]
    TwoChoices,
    /// One is drawn.
    Random,
}

/// Where a slab that replaces a lost one goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Replacement {
    /// To this host, of the stripe's group.
    Inside(usize),
    /// The group has no host left for it: to this host, of no group or of another one.
    Adopted(usize),
}

impl Replacement {
    /// The host.
    #[must_use]
    pub fn host(self) -> usize {
        match self {
            Self::Inside(host) | Self::Adopted(host) => host,
        }
    }
}

/// The groups of a cluster for stripes of one width.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CodingSets {
    members: usize,
    groups: Vec<Vec<usize>>,
    // By host.
    group_of: Vec<Option<usize>>,
}

impl CodingSets {
    /// Each site, in order, joins the first group that has fewer than k+r+l sites, none in its
    /// failure domain and fewer than `power_max` in its power domain. Groups with fewer than k+r
    /// hosts that stay are given up; their hosts are left over.
    ///
    /// # Panics
    /// If the shape has no members or admits no power domain.
    #[must_use]
    pub fn new(sites: &[Site], shape: Shape) -> Self {
        assert!(
            shape.members > 0 && shape.power_max > 0,
            "a group of nobody"
        );
        let mut groups: Vec<Vec<usize>> = Vec::new();
        // What kept a site out of a group keeps others of the same domains out for good.
        let mut first_open: HashMap<(u32, Option<u32>), usize> = HashMap::new();
        let mut first_short = 0;
        for (host, site) in sites.iter().enumerate() {
            let open = first_open.entry((site.domain, site.power)).or_default();
            *open = first_short.max(*open);
            while groups
                .get(*open)
                .is_some_and(|group| !admits(group, sites, site, shape))
            {
                *open += 1;
            }
            if *open == groups.len() {
                groups.push(Vec::new());
            }
            groups[*open].push(host);
            while groups
                .get(first_short)
                .is_some_and(|group| group.len() == shape.members + shape.spare)
            {
                first_short += 1;
            }
        }
        for group in &mut groups {
            group.retain(|&host| !sites[host].retired);
            // One that is given up keeps its number: the others keep theirs.
            if group.len() < shape.members {
                group.clear();
            }
        }
        while groups.last().is_some_and(Vec::is_empty) {
            groups.pop();
        }
        let mut group_of = vec![None; sites.len()];
        for (number, group) in groups.iter().enumerate() {
            for &host in group {
                group_of[host] = Some(number);
            }
        }
        Self {
            members: shape.members,
            groups,
            group_of,
        }
    }

    /// The hosts of each group; none of one that was given up.
    #[must_use]
    pub fn groups(&self) -> &[Vec<usize>] {
        &self.groups
    }

    /// The group of a host; `None` of one that is left over.
    #[must_use]
    pub fn group_of(&self, host: usize) -> Option<usize> {
        self.group_of.get(host).copied().flatten()
    }

    /// Hosts for the k+r members of a new stripe, all of one group, the least loaded first.
    /// `candidate` says what a host has left, and nothing of one that cannot be asked.
    ///
    /// `None` when no group has k+r hosts with room. Cost: a few draws, but one pass over all hosts
    /// when groups with room are rare.
    #[must_use]
    pub fn place<'a>(
        &self,
        candidate: impl Fn(usize) -> Option<&'a Candidate>,
        pick: Pick,
        seed: u64,
    ) -> Option<Vec<usize>> {
        let mut random = Random::new(seed);
        let choices = match pick {
            Pick::TwoChoices => 2,
            Pick::Random => 1,
        };
        let mut drawn = Vec::with_capacity(choices);
        let has_room = |drawn: &[usize], group: usize| {
            let with_room = self.groups[group].iter().filter(|&&host| {
                let candidate = candidate(host);
                candidate.is_some_and(|candidate| candidate.slabs_free > 0)
            });
            with_room.count() >= self.members && !drawn.contains(&group)
        };
        draw(
            self.groups.len(),
            &mut drawn,
            choices,
            &mut random,
            has_room,
        );
        let least_loaded = |group: usize| {
            let mut hosts = self.usable(group, &candidate, seed);
            hosts.truncate(self.members);
            hosts
        };
        let offers = drawn.into_iter().map(least_loaded);
        let best = offers.min_by(|a, b| cmp_lent(a, b))?;
        Some(best.into_iter().map(|candidate| candidate.host).collect())
    }

    /// The group that most of these hosts are of, of equals the first; `None` where no host is of
    /// any.
    #[must_use]
    pub fn home(&self, hosts: &[usize]) -> Option<usize> {
        let groups = || hosts.iter().filter_map(|&host| self.group_of(host));
        let of = |group: usize| groups().filter(|&other| other == group).count();
        groups().max_by_key(|&group| (of(group), std::cmp::Reverse(group)))
    }

    /// The group with the most hosts with room; where a stripe begins that fits into none.
    #[must_use]
    pub fn roomiest<'a>(
        &self,
        candidate: impl Fn(usize) -> Option<&'a Candidate>,
    ) -> Option<usize> {
        let with_room = |group: usize| self.usable(group, &candidate, 0).len();
        let groups = (0..self.groups.len()).map(|group| (with_room(group), group));
        let best = groups.max_by_key(|&(count, group)| (count, std::cmp::Reverse(group)))?;
        (best.0 > 0).then_some(best.1)
    }

    /// A host for one member of a stripe whose others are in `home`: the least loaded that is left
    /// there. Else the group adopts one, always the same: of all hosts that can be asked the first
    /// in an order of the group's own, those that are left over before those of other groups. So
    /// all of its stripes share the few hosts that it lacks, and few new sets of hosts become fatal.
    ///
    /// `candidate` says nothing of hosts that the stripe excludes. `None` when nobody has room.
    #[must_use]
    pub fn replace<'a>(
        &self,
        home: usize,
        candidate: impl Fn(usize) -> Option<&'a Candidate>,
        seed: u64,
    ) -> Option<Replacement> {
        if let Some(candidate) = self.usable(home, &candidate, seed).first() {
            return Some(Replacement::Inside(candidate.host));
        }
        let has_room = |&host: &usize| {
            let candidate = candidate(host);
            candidate.is_some_and(|candidate| candidate.slabs_free > 0)
        };
        let rank = |&host: &usize| {
            let ticket = mix(mix(home as u64) ^ host as u64);
            (self.group_of(host).is_some(), ticket)
        };
        if is_injected(InjectedFault::StayInside) {
            return None;
        }
        let others = (0..self.group_of.len()).filter(|&host| self.group_of(host) != Some(home));
        let adopted = others.filter(has_room).min_by_key(rank);
        adopted.map(Replacement::Adopted)
    }

    /// Hosts of a group with room, the least loaded first; ties are broken by `seed`.
    fn usable<'a>(
        &self,
        group: usize,
        candidate: &impl Fn(usize) -> Option<&'a Candidate>,
        seed: u64,
    ) -> Vec<&'a Candidate> {
        let hosts = self.groups[group].iter();
        let mut usable: Vec<&Candidate> = hosts
            .filter_map(|&host| candidate(host))
            .filter(|candidate| candidate.slabs_free > 0)
            .collect();
        usable.sort_by(|a, b| by_load(a, b, seed));
        usable
    }
}

/// Whether a site may join a group.
fn admits(group: &[usize], sites: &[Site], site: &Site, shape: Shape) -> bool {
    let shares_domain = |&host: &usize| sites[host].domain == site.domain;
    let shares_power = |&&host: &&usize| site.power.is_some() && sites[host].power == site.power;
    group.len() < shape.members + shape.spare
        && !group.iter().any(shares_domain)
        && group.iter().filter(shares_power).count() < shape.power_max
}

/// By the lent share of what all of them lend.
fn cmp_lent(a: &[&Candidate], b: &[&Candidate]) -> std::cmp::Ordering {
    let sums = |hosts: &[&Candidate]| {
        let total: u64 = hosts.iter().map(|host| u64::from(host.slabs_total)).sum();
        let free: u64 = hosts.iter().map(|host| u64::from(host.slabs_free)).sum();
        (u128::from(total.saturating_sub(free)), u128::from(total))
    };
    let ((lent_a, total_a), (lent_b, total_b)) = (sums(a), sums(b));
    (lent_a * total_b).cmp(&(lent_b * total_a))
}

#[cfg(test)]
mod tests;
