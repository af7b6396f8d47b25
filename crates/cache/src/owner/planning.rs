//! What to begin next: which regions lack a copy or have to leave, in which order, and where to.
//!
//! Regions without memory come first, then those whose host goes soonest. Of one host, those go first
//! that have no other copy: a notice that is too short then loses the least.

use cenote_fabric::Time;
use cenote_pool::control::{Refusal, Window};

use super::hosts::HostIndex;
use super::region::{Access, Copy, Placing, Region, Target, Task};
use super::relocation::PAUSE;
use super::{Action, Owner, SlabOf};
use crate::planted::{Planted, is_planted};

/// Regions of one host that have memory elsewhere before their turn comes, so that nobody waits for a
/// grant between two of them.
const AHEAD_MAX: usize = 2;

impl Owner {
    /// Everything that follows from what is known. Called after each event.
    pub(super) fn advance(&mut self, now: Time) {
        self.give_hosts_up(now);
        self.tend_relocations(now);
        self.clients.drop_silent(now);
        for (region, replaces) in self.wanted() {
            self.place(region, replaces, now);
        }
        self.tend_relocations(now);
        self.audit();
    }

    pub(super) fn is_wanted_back(&self, copy: &Copy) -> bool {
        copy.is_wanted_back || self.hosts[copy.host].is_leaving()
    }

    /// Regions at rest that lack something, most urgent first.
    fn wanted(&self) -> Vec<(usize, Option<HostIndex>)> {
        let mut wanted = Vec::new();
        for (index, region) in self.regions.iter().enumerate() {
            if !matches!(region.task, Task::None) || region.is_cut() {
                continue;
            }
            let leaving = region.copies.iter().find(|copy| self.is_wanted_back(copy));
            if let Some(copy) = leaving {
                let deadline = self.hosts[copy.host].deadline();
                let others = region.copies.len() - 1;
                wanted.push((1, deadline, others, index, Some(copy.host)));
            } else if region.copies.len() < self.settings.copies {
                let rank = if region.copies.is_empty() { 0 } else { 2 };
                wanted.push((rank, Time(0), 0, index, None));
            }
        }
        wanted.sort_unstable();
        wanted
            .into_iter()
            .map(|(.., at, from)| (at, from))
            .collect()
    }

    /// Asks for memory for a region.
    fn place(&mut self, region: usize, replaces: Option<HostIndex>, now: Time) {
        let begun = |other: &&Region| {
            let from = |target: &Target| target.replaces == replaces;
            matches!(&other.task, Task::Placing(p) if p.replaces == replaces)
                || matches!(&other.task, Task::Ready(target) if from(target))
        };
        if replaces.is_some() && self.regions.iter().filter(begun).count() >= AHEAD_MAX {
            return;
        }
        let Some(host) = self.choose(region, replaces, now) else {
            return;
        };
        let slabs = self.settings.slabs_per_region;
        let first_request = self.requests + 1;
        self.requests += u64::from(slabs);
        for slab in 0..slabs {
            self.hosts[host].count_asked();
            let region = u32::try_from(region).expect("at most 2^16 regions");
            self.actions.push_back(Action::Map {
                host,
                request: first_request + u64::from(slab),
                place: SlabOf { region, slab },
            });
        }
        self.regions[region].task = Task::Placing(Placing {
            host,
            replaces,
            first_request,
            windows: vec![None; slabs as usize],
        });
    }

    /// The host with the most room, of those that stay and share no domain with another copy.
    fn choose(&self, region: usize, replaces: Option<HostIndex>, now: Time) -> Option<HostIndex> {
        let stay = |copy: &&Copy| Some(copy.host) != replaces;
        let domain = |copy: &Copy| self.hosts[copy.host].domain;
        let region = &self.regions[region];
        let domains: Vec<u32> = region.copies.iter().filter(stay).map(domain).collect();
        let used = |host: HostIndex| region.holds(|copy| copy.host == host);
        let fits = |&host: &HostIndex| {
            let there = &self.hosts[host];
            there.is_up()
                && !there.is_leaving()
                && there.avoid_until <= now
                && there.slabs_free() >= self.settings.slabs_per_region
                && !used(host)
                && (is_planted(Planted::SameDomain) || !domains.contains(&there.domain))
        };
        let room = |&host: &HostIndex| (self.hosts[host].slabs_free(), usize::MAX - host);
        (0..self.hosts.len()).filter(fits).max_by_key(room)
    }

    /// A host wants a slab back: the region's copy there goes elsewhere, if there is room.
    pub(super) fn note_wanted_back(&mut self, now: Time, host: HostIndex, window: Window) {
        let mut used = None;
        for (index, region) in self.regions.iter_mut().enumerate() {
            for copy in &mut region.copies {
                if copy.host == host && copy.windows.contains(&window) {
                    copy.is_wanted_back = true;
                    used = Some(index);
                }
            }
        }
        let is_stuck = |region: usize| {
            let is_at_rest = matches!(self.regions[region].task, Task::None);
            is_at_rest && self.choose(region, Some(host), now).is_none()
        };
        if used.is_some_and(is_stuck) {
            self.actions.push_back(Action::Decline { host, window });
        }
    }

    pub(super) fn take_grant(&mut self, now: Time, host: HostIndex, request: u64, window: Window) {
        let asked = self.asked(host, request);
        let is_sound = window.len_bytes == self.settings.slab_bytes;
        let Some((region, slab)) = asked.filter(|_| is_sound) else {
            if let Some((region, _)) = asked {
                self.hosts[host].avoid_until = now.after(PAUSE * 50);
                self.end_relocation(region);
            }
            return self.actions.push_back(Action::Unmap { host, window });
        };
        let Task::Placing(placing) = &mut self.regions[region].task else {
            unreachable!("it asked for this");
        };
        placing.windows[slab] = Some(window);
        let windows: Option<Vec<Window>> = placing.windows.iter().copied().collect();
        let Some(windows) = windows else { return };
        let copy = Copy::new(host, windows);
        let replaces = placing.replaces;
        let region = &mut self.regions[region];
        region.task = Task::Ready(Target { copy, replaces });
    }

    pub(super) fn take_refusal(
        &mut self,
        now: Time,
        host: HostIndex,
        request: u64,
        reason: Refusal,
    ) {
        if let Some((region, _)) = self.asked(host, request) {
            tracing::debug!(region, host, ?reason, "no slab");
            self.hosts[host].avoid_until = now.after(PAUSE);
            self.end_relocation(region);
        }
    }

    /// The region and slab that a request is for.
    fn asked(&self, host: HostIndex, request: u64) -> Option<(usize, usize)> {
        let slabs = u64::from(self.settings.slabs_per_region);
        self.regions.iter().enumerate().find_map(|(at, region)| {
            let Task::Placing(placing) = &region.task else {
                return None;
            };
            let slab = request.checked_sub(placing.first_request)?;
            let is_it = placing.host == host && slab < slabs;
            is_it.then(|| (at, usize::try_from(slab).expect("an index")))
        })
    }

    pub(super) fn resize(&mut self, regions: usize) {
        for region in regions..self.regions.len() {
            if self.regions[region].is_cut() {
                continue;
            }
            self.drop_target(region);
            let cut = &mut self.regions[region];
            // Should it come again, it comes empty.
            cut.losses += u32::from(!cut.copies.is_empty());
            let copies = std::mem::take(&mut cut.copies);
            cut.retiring.extend(copies);
            cut.task = Task::Switching;
            self.publish(region, Access::Cut);
        }
        for region in 0..regions.min(self.regions.len()) {
            if self.regions[region].is_cut() {
                self.publish(region, Access::Absent);
            }
        }
        while self.regions.len() < regions {
            self.regions.push(Region::default());
            self.publish(self.regions.len() - 1, Access::Absent);
        }
    }
}
