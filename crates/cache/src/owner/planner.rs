//! What to begin next: which regions lack a copy or have to leave, in which order, and where to.
//!
//! Regions without memory come first, then those whose host goes soonest. Of one host, those go
//! first that have no other copy: a notice that is too short then loses the least.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use cenote_fabric::Time;
use cenote_pool::control::{Refusal, Window};

use super::host::HostIndex;
use super::region::{Access, Contents, Copy, CopyState, Placing, Purpose, Region, Target, Task};
use super::relocation::PAUSE;
use super::{Action, Owner, SlabOf};
use crate::injected_faults::{InjectedFault, is_injected};

/// Bytes of regions that get memory elsewhere before the first of them is stopped. Their copies follow
/// each other then with nothing between them; the memory lies idle until its region's turn comes.
const AHEAD_BYTES: u64 = 1 << 30;
/// As many regions at least, ...
const AHEAD_MIN: usize = 2;
/// ... and at most, however small they are. Arbitrary.
const AHEAD_MAX: usize = 16;
/// Slabs that a host is asked for at once, where a region has no more of them. It makes one after
/// the other, and takes none of these requests back: what waits there for longer than it is waited
/// for here is made for nobody. Arbitrary.
const ASKED_MAX: usize = 1024;

/// What a region lacks.
#[derive(Clone, Copy, Debug)]
enum Want {
    /// Memory.
    Place(Purpose),
    /// To be sure of what it holds.
    Settle,
}

impl Owner {
    /// Everything that follows from what is known. Called after each event.
    pub(super) fn advance(&mut self, now: Time) {
        self.note_time(now);
        if self.is_superseded() || self.is_put_off() {
            return;
        }
        self.end_life(now);
        self.give_hosts_up(now);
        self.forget_clients(now);
        self.end_overdue(now);
        self.tend_relocations(now);
        self.begin_wanted(now);
        self.tend_relocations(now);
        self.give_idle_back();
        // It looks at the whole table: too much for each message in use.
        if cfg!(any(debug_assertions, feature = "injected-faults")) {
            self.audit();
        }
    }

    /// Begins what regions lack, as far as hosts take more.
    fn begin_wanted(&mut self, now: Time) {
        let mut asked = self.placings();
        let left = asked
            .iter()
            .map(|&asked| self.asked_max().saturating_sub(asked));
        let wanted = self.wanted(now, left.sum());
        // All regions without memory would be asked for at the same host.
        let mut waits_for_host = false;
        for (region, want) in wanted {
            let is_absent = self.regions[region].copies.is_empty();
            match want {
                Want::Place(_) if waits_for_host && is_absent => {}
                Want::Place(purpose) => {
                    let is_full = self.place(region, purpose, &mut asked, now);
                    waits_for_host |= is_full && is_absent;
                }
                // Unless it moves: then that makes it sure.
                Want::Settle if matches!(self.regions[region].task, Task::None) => {
                    self.settle(region, now);
                }
                Want::Settle => {}
            }
        }
    }

    /// Regions that each host is making memory for.
    fn placings(&self) -> Vec<usize> {
        let mut asked = vec![0; self.hosts.len()];
        for region in &self.regions {
            if let Task::Placing(placing) = &region.task {
                asked[placing.host] += 1;
            }
        }
        asked
    }

    pub(super) fn is_wanted_back(&self, copy: &Copy) -> bool {
        copy.state == CopyState::WantedBack || self.hosts[copy.host].is_leaving()
    }

    /// Regions at rest that lack something, most urgent first. Of those without memory no more than
    /// hosts take now: any of them would do, and there may be very many.
    fn wanted(&self, now: Time, absent_max: usize) -> Vec<(usize, Want)> {
        let (mut wanted, mut absent) = (Vec::new(), 0);
        let renewing: BTreeSet<usize> = self.renewing.values().map(|it| it.region).collect();
        for (index, region) in self.regions.iter().enumerate() {
            let is_at_rest = matches!(region.task, Task::None) && !region.is_cut();
            let is_learned = !region.copies.iter().any(Copy::is_unlearned);
            if !is_at_rest || !is_learned || renewing.contains(&index) {
                continue;
            }
            let leaving = region.copies.iter().find(|copy| self.is_wanted_back(copy));
            // Of a host that leaves, too: the other copy may be where nothing can be copied from.
            let parting = match leaving {
                Some(_) if is_injected(InjectedFault::LeavingFirst) => None,
                _ => self.parting(index, now),
            };
            if now < region.place_at {
                // What needs no memory may be done.
            } else if let Some(copy) = leaving {
                let deadline = self.hosts[copy.host].deadline();
                let others = region.copies.len() - 1;
                let purpose = parting.unwrap_or(Purpose::Replace(copy.host));
                wanted.push((1, deadline, others, index, Want::Place(purpose)));
            } else if let Some(purpose) = parting {
                wanted.push((2, Time(0), 0, index, Want::Place(purpose)));
            } else if region.copies.len() < self.settings.copies {
                let rank = if region.copies.is_empty() { 0 } else { 2 };
                absent += usize::from(rank == 0);
                if rank > 0 || absent <= absent_max {
                    wanted.push((rank, Time(0), 0, index, Want::Place(Purpose::Add)));
                }
            }
            if region.contents == Contents::Doubtful && !self.is_parted(index, now) {
                wanted.push((3, Time(0), 0, index, Want::Settle));
            }
        }
        wanted.sort_unstable_by_key(|&(rank, deadline, others, index, _)| {
            (rank, deadline, others, index)
        });
        wanted
            .into_iter()
            .map(|(.., at, want)| (at, want))
            .collect()
    }

    /// Whether its two copies cannot be made equal, as their hosts do not reach each other.
    fn is_parted(&self, region: usize, now: Time) -> bool {
        match &self.regions[region].copies[..] {
            [first, second] => {
                let are_up = self.hosts[first.host].is_up() && self.hosts[second.host].is_up();
                are_up && self.apart.are_apart(first.host, second.host, now)
            }
            _ => false,
        }
    }

    /// What makes a doubtful region sure whose copies cannot be made equal: another copy, on a host
    /// that reaches one of them. What was read is in both: either may stay, and the one goes first
    /// whose host leaves, then the one that more others do not reach.
    fn parting(&self, region: usize, now: Time) -> Option<Purpose> {
        if !self.is_doubtful(region) || !self.is_parted(region, now) {
            return None;
        }
        let mut copies: Vec<&Copy> = self.regions[region].copies.iter().rev().collect();
        // Otherwise each of many hosts would be tried in vain.
        let count = |copy: &Copy| self.apart.count(copy.host, now);
        copies.sort_by_key(|copy| Reverse((self.is_wanted_back(copy), count(copy))));
        if is_injected(InjectedFault::PartedFromFirst) {
            copies = self.regions[region].copies[1..].iter().collect();
        }
        let is_replaced = |copy: &&Copy| self.choose(region, Some(copy.host), now).is_some();
        let copy = copies.into_iter().find(is_replaced)?;
        Some(Purpose::Replace(copy.host))
    }

    /// Asks for memory for a region. True: nothing was asked, as its host has enough to make.
    /// `asked`: regions that each host makes memory for.
    fn place(&mut self, region: usize, purpose: Purpose, asked: &mut [usize], now: Time) -> bool {
        let replaces = purpose.replaces();
        // Without a copy there is none to make: it is opened as soon as it has memory.
        let is_copied = !self.regions[region].copies.is_empty();
        let begun = |other: &&Region| {
            let is_it = |of: Purpose| of == purpose && !other.copies.is_empty();
            matches!(&other.task, Task::Placing(p) if is_it(p.purpose))
                || matches!(&other.task, Task::Ready(target) if is_it(target.purpose))
        };
        if is_copied && self.regions.iter().filter(begun).count() >= self.ahead() {
            return false;
        }
        let Some(host) = self.choose(region, replaces, now) else {
            return false;
        };
        if is_copied && self.is_filled(host) {
            return false;
        }
        if asked[host] >= self.asked_max() {
            return true;
        }
        asked[host] += 1;
        self.ask_memory(region, purpose, host, now);
        false
    }

    fn ask_memory(&mut self, region: usize, purpose: Purpose, host: HostIndex, now: Time) {
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
        let placed = &mut self.regions[region];
        // Where the attempt before failed, this one is of the same wish.
        placed.span.get_or_insert_with(|| {
            tracing::info_span!(
                "place region",
                cenote.region = region as i64,
                cenote.copies = placed.copies.len() as i64,
                cenote.purpose = match purpose {
                    Purpose::Add => "add",
                    Purpose::Replace(_) => "replace",
                    Purpose::Converge => "converge",
                },
            )
        });
        placed.task = Task::Placing(Placing {
            host,
            purpose,
            first_request,
            windows: vec![None; slabs as usize],
            heard_at: now,
        });
    }

    /// Regions that have memory before their turn comes.
    fn ahead(&self) -> usize {
        let regions = AHEAD_BYTES / self.settings.region_bytes().max(1);
        let regions = usize::try_from(regions).unwrap_or(AHEAD_MAX);
        regions.clamp(AHEAD_MIN, AHEAD_MAX)
    }

    /// Regions that a host makes memory for at once.
    fn asked_max(&self) -> usize {
        let slabs = self.settings.slabs_per_region as usize;
        self.ahead().min((ASKED_MAX / slabs).max(1))
    }

    /// A host goes on with what it was asked for, one after the other.
    fn note_heard(&mut self, host: HostIndex, now: Time) {
        for region in &mut self.regions {
            if let Task::Placing(placing) = &mut region.task
                && placing.host == host
            {
                placing.heard_at = now;
            }
        }
    }

    /// The host with the most room, of those that stay, share no domain with another copy and reach
    /// one that it is filled from. Those come first for which no copy from there failed lately.
    pub(super) fn choose(
        &self,
        index: usize,
        replaces: Option<HostIndex>,
        now: Time,
    ) -> Option<HostIndex> {
        let stay = |copy: &&Copy| Some(copy.host) != replaces;
        let domain = |copy: &Copy| self.hosts[copy.host].domain;
        let region = &self.regions[index];
        let domains: Vec<u32> = region.copies.iter().filter(stay).map(domain).collect();
        let sources = self.sources(index, replaces);
        let reaches = |host: HostIndex| {
            let is_apart = |&source: &HostIndex| self.apart.are_apart(source, host, now);
            sources.is_empty() || !sources.iter().all(is_apart)
        };
        let used = |host: HostIndex| region.holds(|copy| copy.host == host);
        let fits = |&host: &HostIndex| {
            let there = &self.hosts[host];
            there.is_up()
                && !there.is_leaving()
                && !there.is_kept_out()
                && there.avoid_until <= now
                && there.slabs_free() >= self.settings.slabs_per_region
                && !used(host)
                && reaches(host)
                && (is_injected(InjectedFault::SameDomain) || !domains.contains(&there.domain))
        };
        let room = |host: HostIndex| (self.hosts[host].slabs_free(), usize::MAX - host);
        let failed_at = |host: HostIndex| {
            let failed = sources
                .iter()
                .map(|&at| self.apart.failed_at(at, host, now));
            failed.min().flatten()
        };
        (0..self.hosts.len())
            .filter(fits)
            .max_by_key(|&host| (Reverse(failed_at(host)), room(host)))
    }

    /// A host wants a slab back: the region's copy there goes elsewhere, if there is room.
    pub(super) fn note_wanted_back(&mut self, now: Time, host: HostIndex, window: Window) {
        let mut used = None;
        for (index, region) in self.regions.iter_mut().enumerate() {
            for copy in &mut region.copies {
                if copy.host == host && !copy.is_unlearned() && copy.windows.contains(&window) {
                    copy.state = CopyState::WantedBack;
                    used = Some(index);
                }
            }
        }
        let is_stuck = |region: usize| {
            let is_at_rest = matches!(self.regions[region].task, Task::None);
            is_at_rest && self.choose(region, Some(host), now).is_none()
        };
        let decline = Action::Decline { host, window };
        if used.is_some_and(is_stuck) && !self.actions.contains(&decline) {
            self.actions.push_back(decline);
        }
    }

    pub(super) fn take_grant(&mut self, now: Time, host: HostIndex, request: u64, window: Window) {
        let asked = self.asked(host, request);
        let is_it = |id| id == window.id;
        if self
            .regions
            .iter()
            .any(|one| one.window_ids(host).any(is_it))
        {
            // It lends what is lent already: nothing that it says of its windows is to be believed.
            tracing::warn!(host, ?window, "a host lends a window twice");
            if let Some((region, _)) = asked {
                self.end_relocation(region, now);
            }
            return self.reconnect(now, host);
        }
        let is_sound = window.len_bytes == self.settings.slab_bytes;
        let Some((region, slab)) = asked.filter(|_| is_sound) else {
            if let Some((region, _)) = asked {
                self.hosts[host].avoid_until = now.after(PAUSE * 50);
                self.end_relocation(region, now);
            }
            return self.actions.push_back(Action::Unmap { host, window });
        };
        self.note_heard(host, now);
        let Task::Placing(placing) = &mut self.regions[region].task else {
            unreachable!("it asked for this");
        };
        placing.windows[slab] = Some(window);
        let windows: Option<Vec<Window>> = placing.windows.iter().copied().collect();
        let Some(windows) = windows else { return };
        let copy = Copy::new(host, windows);
        let purpose = placing.purpose;
        if is_injected(InjectedFault::SureTooSoon) {
            self.regions[region].make_sure();
        }
        self.regions[region].task = Task::Ready(Target::new(copy, purpose));
        if !self.regions[region].copies.is_empty() {
            // The same generation, as nothing else changed: clients connect while it waits for its turn.
            self.tell_all(region);
        }
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
            self.note_heard(host, now);
            self.end_relocation(region, now);
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
            let quiet = self.abandon(region).unwrap_or_default();
            let cut = &mut self.regions[region];
            // Should it come again, it comes empty.
            cut.losses += u32::from(!cut.copies.is_empty());
            cut.fell_back_ms = 0;
            self.forget_saved(u32::try_from(region).expect("at most 2^16 regions"));
            let cut = &mut self.regions[region];
            let copies = std::mem::take(&mut cut.copies);
            cut.retiring.extend(copies);
            cut.access = Access::Cut;
            cut.make_sure();
            self.switch(region, quiet);
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
