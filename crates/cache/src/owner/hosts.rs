//! What the owner knows of each host, and what follows when one goes or returns.

use cenote_fabric::Time;
use cenote_pool::control::{HeldSlab, Window};

use super::region::{Access, Copy, Task};
use super::{Action, Owner};
use crate::planted::{Planted, is_planted};

/// Index of a host in the cluster's list.
pub type HostIndex = usize;

/// One host.
#[derive(Debug)]
pub struct Host {
    pub domain: u32,
    reach: Reach,
    slabs_free: u32,
    leaving: Option<Leaving>,
    /// It refused a slab, or a fill there failed: nothing is asked of it before this.
    pub avoid_until: Time,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reach {
    /// Nothing of the cache is there.
    Ended,
    Up,
    /// What is there may come back.
    Silent {
        since: Time,
    },
}

#[derive(Clone, Copy, Debug)]
struct Leaving {
    deadline: Option<Time>,
}

impl Host {
    pub fn new(domain: u32) -> Self {
        Self {
            domain,
            reach: Reach::Ended,
            slabs_free: 0,
            leaving: None,
            avoid_until: Time(0),
        }
    }

    pub fn come_up(&mut self, slabs_free: u32) {
        self.reach = Reach::Up;
        self.slabs_free = slabs_free;
    }

    pub fn set_free(&mut self, slabs_free: u32) {
        self.slabs_free = slabs_free;
    }

    /// Slabs that it could lend at once.
    pub fn slabs_free(&self) -> u32 {
        self.slabs_free
    }

    /// One more of its slabs was asked for.
    pub fn count_asked(&mut self) {
        self.slabs_free = self.slabs_free.saturating_sub(1);
    }

    /// Whether that is news.
    pub fn fall_silent(&mut self, now: Time) -> bool {
        let is_news = !matches!(self.reach, Reach::Silent { .. });
        if is_news {
            self.reach = Reach::Silent { since: now };
        }
        is_news
    }

    pub fn end(&mut self) {
        self.reach = Reach::Ended;
        self.leaving = None;
    }

    pub fn leave(&mut self, deadline: Option<Time>) {
        self.leaving = Some(Leaving { deadline });
    }

    pub fn stay(&mut self) {
        self.leaving = None;
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// When it goes; the end of time if nobody said.
    pub fn deadline(&self) -> Time {
        let deadline = self.leaving.and_then(|leaving| leaving.deadline);
        deadline.unwrap_or(Time(u64::MAX))
    }

    pub fn is_up(&self) -> bool {
        self.reach == Reach::Up
    }

    pub fn is_silent_for(&self, now: Time, patience: std::time::Duration) -> bool {
        matches!(self.reach, Reach::Silent { since } if now.since(since) >= patience)
    }
}

impl Owner {
    /// Takes hosts for dead that were out of reach for too long.
    pub(super) fn give_hosts_up(&mut self, now: Time) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].is_silent_for(now, self.settings.give_up_after) {
                self.hosts[host].end();
                self.lose_host(host);
            }
        }
    }

    /// Nothing on the host is used any more, also if it returns.
    pub(super) fn lose_host(&mut self, host: HostIndex) {
        for region in 0..self.regions.len() {
            self.regions[region].retiring.retain(|c| c.host != host);
            self.lose_copies(region, |copy| copy.host == host);
        }
        self.end_relocations_with(host);
    }

    /// Drops copies of a region that are gone. Where that was the last one, what was written is lost,
    /// and clients learn it with the entry.
    fn lose_copies(&mut self, region: usize, is_lost: impl Fn(&Copy) -> bool) {
        if !self.regions[region].copies.iter().any(&is_lost) {
            return;
        }
        self.drop_target(region);
        let changed = &mut self.regions[region];
        changed.copies.retain(|copy| !is_lost(copy));
        if changed.copies.is_empty() {
            // What retires is as good until writes go on: none was made since it counted.
            match changed.retiring.pop() {
                Some(former) => changed.copies.push(former),
                None => changed.losses += u32::from(!is_planted(Planted::LossUntold)),
            }
        }
        self.switch(region);
    }

    /// Clients learn which copies count, and write once all know it.
    pub(super) fn switch(&mut self, region: usize) {
        let access = match self.regions[region].copies[..] {
            [] => Access::Absent,
            _ => Access::Frozen,
        };
        self.regions[region].task = Task::Switching;
        self.publish(region, access);
    }

    /// Brings what the host says and what is known here together: it is the truth about its slabs.
    pub(super) fn compare_books(&mut self, host: HostIndex, held: &[HeldSlab]) {
        self.learn_windows(host, held);
        let is_held = |window: &Window| held.iter().any(|slab| slab.window == *window);
        let is_gone = |copy: &Copy| copy.host == host && !copy.windows.iter().all(is_held);
        for region in 0..self.regions.len() {
            self.regions[region].retiring.retain(|c| !is_gone(c));
            self.lose_copies(region, is_gone);
        }
        self.end_relocations_with(host);
        for slab in held {
            let window = slab.window;
            let is_known = |copy: &Copy| copy.host == host && copy.windows.contains(&window);
            if !self.regions.iter().any(|r| r.holds(is_known)) {
                self.actions.push_back(Action::Unmap { host, window });
            }
        }
    }

    /// Copies of an earlier owner have new windows, that are known by what they are for.
    fn learn_windows(&mut self, host: HostIndex, held: &[HeldSlab]) {
        for slab in held {
            let (region, index) = self.place_of(slab);
            let Some(region) = self.regions.get_mut(region) else {
                continue;
            };
            for copy in &mut region.copies {
                if copy.host == host
                    && copy.is_recovered
                    && let Some(window) = copy.windows.get_mut(index)
                {
                    *window = slab.window;
                }
            }
        }
        let mut learned = Vec::new();
        for (index, region) in self.regions.iter_mut().enumerate() {
            for copy in &mut region.copies {
                if copy.host == host && copy.is_recovered {
                    copy.is_recovered = false;
                    learned.push(index);
                }
            }
        }
        for region in learned {
            self.switch(region);
        }
    }

    fn place_of(&self, slab: &HeldSlab) -> (usize, usize) {
        let slabs = self.settings.slabs_per_region;
        (
            (slab.extent / slabs) as usize,
            (slab.extent % slabs) as usize,
        )
    }
}
