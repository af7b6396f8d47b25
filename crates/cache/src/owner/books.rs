//! What follows when a host goes or returns: copies are lost, or the books are compared.

use std::collections::{BTreeMap, BTreeSet};

use cenote_fabric::Time;
use cenote_pool::control::{HeldSlab, Window};

use super::host::{Host, HostIndex};
use super::region::{Access, Copy, CopyState, Switching, Task};
use super::{Action, Owner};
use crate::injected_faults::{InjectedFault, is_injected};

impl Owner {
    /// Whether the cluster does not list a host any more, or not as one that lends: what is there
    /// stays, and no more is placed there.
    pub fn handle_kept_out(&mut self, host: HostIndex, is_kept_out: bool) {
        self.hosts[host].is_kept_out = is_kept_out;
    }

    /// Takes hosts for dead that were out of reach for too long. Where none is up it is rather this
    /// owner that is cut off, and a region could go nowhere: silence counts from when one is up again.
    pub(super) fn give_hosts_up(&mut self, now: Time) {
        if !self.hosts.iter().any(Host::is_up) {
            self.cut_off_until = now;
        }
        let patience = self.settings.give_up_after;
        if now.since(self.cut_off_until) < patience {
            return;
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].is_silent_for(now, patience) {
                self.end_host(host);
                self.lose_host(host, now);
            }
        }
    }

    /// A notice goes with the host that it was for. The next owner is to know, or it would place
    /// nothing on one that came again.
    pub(super) fn end_host(&mut self, host: HostIndex) {
        if self.hosts[host].is_told_to_leave() {
            self.push_record();
        }
        self.hosts[host].end();
    }

    /// The session to a host is over.
    pub(super) fn fall_silent(&mut self, now: Time, host: HostIndex) {
        self.drop_actions_for(host);
        if self.hosts[host].fall_silent(now) {
            self.forget_renewing(host);
            self.end_relocations_with(host, now);
        }
    }

    /// Nothing on the host is used any more, also if it returns.
    pub(super) fn lose_host(&mut self, host: HostIndex, now: Time) {
        self.forget_renewing(host);
        self.idle.retain(|copy| copy.host != host);
        for region in 0..self.regions.len() {
            self.regions[region].retiring.retain(|c| c.host != host);
            self.lose_copies(region, |copy| copy.host == host);
        }
        self.end_relocations_with(host, now);
        self.end_fills_by(host);
    }

    /// Slabs that a host asked for under a notice that is withdrawn: it asks again if it means them.
    pub(super) fn forget_wanted_back(&mut self, host: HostIndex) {
        if self.hosts[host].is_leaving() {
            return;
        }
        let copies = self
            .regions
            .iter_mut()
            .flat_map(|region| &mut region.copies);
        for copy in copies.filter(|copy| copy.host == host) {
            if copy.state == CopyState::WantedBack {
                copy.state = CopyState::Current;
            }
        }
    }

    /// Drops copies of a region that are gone. Where that was the last one, what was written is
    /// lost, and clients learn it with the entry.
    pub(super) fn lose_copies(&mut self, region: usize, is_lost: impl Fn(&Copy) -> bool) {
        if !self.regions[region].copies.iter().any(&is_lost) {
            return;
        }
        let quiet = self.abandon(region).unwrap_or_default();
        let changed = &mut self.regions[region];
        changed.copies.retain(|copy| !is_lost(copy));
        if changed.copies.is_empty() {
            // What retires is as good until writes go on: none was made since it counted.
            match changed.retiring.pop() {
                Some(former) => changed.copies.push(former),
                None => {
                    changed.losses += u32::from(!is_injected(InjectedFault::LossUntold));
                    changed.fell_back_ms = 0;
                }
            }
        }
        self.switch(region, quiet);
    }

    /// Clients learn which copies count, and write once all know it and these fills have ended.
    pub(super) fn switch(&mut self, region: usize, mut quiet: Vec<(HostIndex, u64)>) {
        let switched = &mut self.regions[region];
        let access = match switched.copies[..] {
            _ if switched.is_cut() => Access::Cut,
            [] => Access::Absent,
            _ => Access::Frozen,
        };
        if let Task::Switching(before) = std::mem::take(&mut switched.task) {
            quiet.extend(before.quiet);
        }
        switched.task = Task::Switching(Switching {
            quiet,
            heard_at: None,
        });
        self.publish(region, access);
    }

    /// Brings what the host says and what is known here together: it is the truth about its slabs.
    pub(super) fn compare_books(&mut self, now: Time, host: HostIndex, held: &[HeldSlab]) {
        let held = self.sound(held);
        let incomplete = self.learn_windows(host, &held);
        // By number, of which each is there once.
        let by_id: BTreeMap<u32, Window> = held
            .iter()
            .map(|slab| (slab.window.id, slab.window))
            .collect();
        let is_held = |window: &Window| by_id.get(&window.id) == Some(window);
        let is_gone = |copy: &Copy| copy.host == host && !copy.windows.iter().all(is_held);
        for region in 0..self.regions.len() {
            self.regions[region].retiring.retain(|c| !is_gone(c));
            let is_incomplete = incomplete.contains(&region);
            let is_lost = |copy: &Copy| is_gone(copy) || copy.host == host && is_incomplete;
            self.lose_copies(region, is_lost);
            if self.regions[region].new_copy().is_some_and(is_gone) {
                self.end_relocation(region, now);
            }
        }
        // They are among what nobody uses, below, if the host has them.
        self.idle.retain(|copy| copy.host != host);
        let mut unused = by_id;
        for window in self.regions.iter().flat_map(|region| region.windows(host)) {
            if unused.get(&window.id) == Some(&window) {
                unused.remove(&window.id);
            }
        }
        // It may wait for a record already, since another list.
        for action in &self.actions {
            if let Action::Unmap { host: of, window } = action
                && *of == host
                && unused.get(&window.id) == Some(window)
            {
                unused.remove(&window.id);
            }
        }
        let unmap = |window| Action::Unmap { host, window };
        self.actions.extend(unused.into_values().map(unmap));
    }

    /// Whether a region has this window of a host.
    #[must_use]
    pub fn uses(&self, host: HostIndex, window: Window) -> bool {
        let mut used = self.regions.iter().flat_map(|region| region.windows(host));
        used.any(|one| one == window)
    }

    /// Of what a host says that it holds, what can be so: each place and each window once.
    fn sound(&self, held: &[HeldSlab]) -> Vec<HeldSlab> {
        let (mut places, mut windows) = (BTreeSet::new(), BTreeSet::new());
        let is_sound = |slab: &&HeldSlab| {
            slab.window.len_bytes == self.settings.slab_bytes
                && places.insert((slab.extent, slab.member))
                && windows.insert(slab.window.id)
        };
        held.iter().filter(is_sound).copied().collect()
    }

    /// Windows of copies that have new ones are known by what they are for. Regions whose copy there has
    /// slabs that the host does not name, or names by a window of another copy.
    fn learn_windows(&mut self, host: HostIndex, held: &[HeldSlab]) -> BTreeSet<usize> {
        // What is learned here takes none of another's: `held` has each window once.
        let regions = self.regions.iter();
        let taken: BTreeSet<u32> = regions.flat_map(|one| one.window_ids(host)).collect();
        let data = held.iter().filter(|slab| slab.member == 0);
        let named: BTreeMap<u32, Window> = data.map(|slab| (slab.extent, slab.window)).collect();
        let is_it = |copy: &Copy| copy.host == host && copy.is_unlearned();
        let (mut learned, mut incomplete) = (Vec::new(), BTreeSet::new());
        for index in 0..self.regions.len() {
            let Some(copy) = self.regions[index].copies.iter().position(is_it) else {
                continue;
            };
            let slabs = self.settings.slabs_per_region;
            let extents = (index as u32 * slabs..).take(slabs as usize);
            let is_free = |window: &Window| !taken.contains(&window.id);
            let windows = extents.map(|extent| named.get(&extent).copied().filter(is_free));
            match windows.collect::<Option<Vec<Window>>>() {
                Some(windows) => {
                    let copy = &mut self.regions[index].copies[copy];
                    copy.windows = windows;
                    copy.state = CopyState::Current;
                    learned.push(index);
                }
                None => {
                    incomplete.insert(index);
                }
            }
        }
        for region in &mut self.regions {
            // Since the cluster file says other domains.
            let domain = |copy: &Copy| self.hosts[copy.host].domain;
            if let [first, second] = &mut region.copies[..]
                && domain(first) == domain(second)
                && !is_injected(InjectedFault::SameDomain)
            {
                second.state = match second.state {
                    CopyState::Unlearned => CopyState::Unlearned,
                    CopyState::Current | CopyState::WantedBack => CopyState::WantedBack,
                };
            }
        }
        for region in learned {
            // What is under way for it uses none of these windows: it was ended when they were lost
            // sight of.
            self.switch(region, Vec::new());
        }
        incomplete
    }
}
