//! How a region gets another copy while clients use it: drain, fill, switch, retire.
//!
//! | stage | reads | writes |
//! |---|---|---|
//! | placing, ready | old copies | old copies |
//! | draining, filling | old copies | wait |
//! | switching | new copies | wait |
//!
//! Paper: \[redy22\] section 5.2: reads of the old copy go on, writes stop for the region that moves.

use std::collections::BTreeSet;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{FILL_BYTES_MAX, FillResult};

use super::hosts::HostIndex;
use super::region::{Access, Filling, Target, Task};
use super::{Action, Owner};
use crate::planted::{Planted, is_planted};

/// Fills that a host is given ahead, so that it goes from one to the next without a round trip.
pub const FILLS_AHEAD: usize = 8;

/// Pause before a fill that failed, or a host that refused, is tried again.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

/// Fills of one region that fail before another host is looked for: writes wait meanwhile.
const FAILURES_MAX: u32 = 5;

impl Owner {
    /// Moves every relocation on as far as it goes.
    pub(super) fn tend_relocations(&mut self, now: Time) {
        for region in 0..self.regions.len() {
            self.regions[region].told_at.get_or_insert(now);
            match self.regions[region].task {
                Task::None | Task::Placing(_) => {}
                Task::Ready(_) => self.begin_draining(region, now),
                Task::Draining(_) => self.begin_filling(region, now),
                Task::Filling(_) => self.fill(region, now),
                Task::Switching => self.end_switching(region, now),
            }
        }
    }

    /// The memory is there: with nothing to copy it counts at once, else its turn has to come.
    fn begin_draining(&mut self, region: usize, now: Time) {
        let Task::Ready(target) = &self.regions[region].task else {
            return;
        };
        let target = target.clone();
        // Any copy will do, and clients are told of the order when they are told to stop.
        let is_up = |copy: &super::Copy| self.hosts[copy.host].is_up();
        if let Some(at) = self.regions[region].copies.iter().position(is_up) {
            self.regions[region].copies.swap(0, at);
        }
        let Some(source) = self.regions[region].source().map(|copy| copy.host) else {
            let fresh = &mut self.regions[region];
            fresh.copies = vec![target.copy];
            return self.open(region);
        };
        if self.is_busy(source, target.copy.host) || !self.hosts[source].is_up() {
            return;
        }
        if is_planted(Planted::ReadBeforeFilled) {
            let moved = &mut self.regions[region];
            let kept = std::mem::replace(&mut moved.copies, vec![target.copy.clone()]);
            self.publish(region, Access::Frozen);
            self.regions[region].copies = kept;
        } else {
            self.publish(region, Access::Frozen);
        }
        self.regions[region].task = Task::Draining(target);
        self.begin_filling(region, now);
    }

    /// Whether one of the hosts copies another region: bandwidth that is shared makes both stops longer.
    fn is_busy(&self, source: HostIndex, target: HostIndex) -> bool {
        self.regions.iter().any(|other| {
            let (Task::Draining(Target { copy, .. })
            | Task::Filling(Filling {
                target: Target { copy, .. },
                ..
            })) = &other.task
            else {
                return false;
            };
            copy.host == target || other.source().is_some_and(|copy| copy.host == source)
        })
    }

    fn begin_filling(&mut self, region: usize, now: Time) {
        if !self.is_known(region, now) {
            return;
        }
        let Task::Draining(target) = &self.regions[region].task else {
            return;
        };
        let target = target.clone();
        self.regions[region].task = Task::Filling(Filling {
            target,
            next: 0,
            under_way: Vec::new(),
            failed: BTreeSet::new(),
            failures: 0,
            resume_at: now,
        });
        self.fill(region, now);
    }

    fn fill(&mut self, region: usize, now: Time) {
        let region_bytes = self.settings.region_bytes();
        loop {
            let Task::Filling(filling) = &self.regions[region].task else {
                return;
            };
            let is_done = filling.next == region_bytes && filling.failed.is_empty();
            if is_planted(Planted::FlipBeforeCopy) || is_done && filling.under_way.is_empty() {
                return self.flip(region);
            }
            let is_full = filling.under_way.len() >= FILLS_AHEAD;
            if is_done || is_full || now < filling.resume_at {
                return;
            }
            self.ask_for_fill(region);
        }
    }

    fn ask_for_fill(&mut self, region: usize) {
        let slab_bytes = self.settings.slab_bytes;
        let Some(source) = self.regions[region].source().cloned() else {
            return;
        };
        let Task::Filling(filling) = &mut self.regions[region].task else {
            return;
        };
        let begin = filling.failed.pop_first().unwrap_or(filling.next);
        let slab = usize::try_from(begin / slab_bytes).expect("an index");
        let offset = begin % slab_bytes;
        let len_bytes = FILL_BYTES_MAX.min(slab_bytes - offset);
        filling.next = filling.next.max(begin + len_bytes);
        self.requests += 1;
        filling.under_way.push((self.requests, begin));
        self.actions.push_back(Action::Fill {
            host: filling.target.copy.host,
            request: self.requests,
            target: filling.target.copy.windows[slab],
            source: source.host,
            source_window: source.windows[slab],
            offset,
            len_bytes,
        });
    }

    pub(super) fn take_filled(
        &mut self,
        now: Time,
        host: HostIndex,
        request: u64,
        result: FillResult,
    ) {
        let found = self
            .regions
            .iter_mut()
            .enumerate()
            .find_map(|(at, region)| {
                let Task::Filling(filling) = &mut region.task else {
                    return None;
                };
                let is_it = |&(number, _): &(u64, u64)| number == request;
                let is_there = filling.target.copy.host == host;
                let index = filling
                    .under_way
                    .iter()
                    .position(is_it)
                    .filter(|_| is_there)?;
                Some((at, filling.under_way.swap_remove(index).1, filling))
            });
        let Some((region, begin, filling)) = found else {
            return;
        };
        match result {
            FillResult::Done => {}
            FillResult::SourceFailed { .. } | FillResult::Disagree
                if filling.failures < FAILURES_MAX =>
            {
                // Those under way together fail together.
                filling.failures += u32::from(now >= filling.resume_at);
                filling.failed.insert(begin);
                filling.resume_at = now.after(PAUSE);
            }
            _ => {
                self.hosts[host].avoid_until = now.after(PAUSE * 5);
                self.end_relocation(region);
            }
        }
    }

    /// The new copy holds everything: it counts, and what it replaces does not.
    fn flip(&mut self, region: usize) {
        let moved = &mut self.regions[region];
        let Task::Filling(filling) = std::mem::take(&mut moved.task) else {
            unreachable!("it was filled");
        };
        let target = filling.target;
        moved.copies.push(target.copy);
        if let Some(from) = target.replaces {
            let (gone, kept) = std::mem::take(&mut moved.copies)
                .into_iter()
                .partition(|copy| copy.host == from);
            moved.copies = kept;
            moved.retiring.extend::<Vec<_>>(gone);
        }
        self.switch(region);
    }

    /// Every client knows which copies count: the others go, and writes go on.
    fn end_switching(&mut self, region: usize, now: Time) {
        let switched = &self.regions[region];
        let is_recovering = switched.copies.iter().any(|copy| copy.is_recovered);
        if is_recovering || !self.is_known(region, now) {
            return;
        }
        for copy in std::mem::take(&mut self.regions[region].retiring) {
            self.unmap(&copy);
        }
        let switched = &mut self.regions[region];
        switched.task = Task::None;
        if !switched.copies.is_empty() {
            self.open(region);
        }
    }

    fn open(&mut self, region: usize) {
        self.regions[region].task = Task::None;
        self.publish(region, Access::Open);
    }

    /// Ends the relocations that need a host.
    pub(super) fn end_relocations_with(&mut self, host: HostIndex) {
        for at in 0..self.regions.len() {
            let region = &self.regions[at];
            let reads = |copy: &super::Copy| copy.host == host;
            let is_filling = matches!(region.task, Task::Draining(_) | Task::Filling(_));
            let is_source = is_filling && region.source().is_some_and(reads);
            if is_source || region.target_host() == Some(host) {
                self.end_relocation(at);
            }
        }
    }

    /// Gives a relocation up before its new copy counts: everything is as before.
    pub(super) fn end_relocation(&mut self, region: usize) {
        if self.drop_target(region) && self.regions[region].access == Access::Frozen {
            self.open(region);
        }
    }

    /// Gives the memory back that a region was to move to. False: it was to move nowhere.
    pub(super) fn drop_target(&mut self, region: usize) -> bool {
        let target = match &self.regions[region].task {
            Task::None | Task::Switching => return false,
            Task::Placing(placing) => {
                let windows = placing.windows.iter().copied().flatten().collect();
                super::Copy::new(placing.host, windows)
            }
            _ => {
                let target = self.regions[region].target();
                target.expect("it has memory").copy.clone()
            }
        };
        self.unmap(&target);
        self.regions[region].task = Task::None;
        true
    }
}
