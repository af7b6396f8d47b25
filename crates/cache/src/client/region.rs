//! One region as a client knows it.

use std::collections::BTreeSet;

use cenote_fabric::RemoteWindow;
use cenote_pool::control::Window;

use super::queue::{Lets, Queue};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::owner::{Access, Copy, Entry, HostIndex};

/// A window of a host: its id, and its generation.
pub type WindowName = (u32, u64);

pub fn name_of(window: &RemoteWindow) -> WindowName {
    (window.descriptor.id.0, window.descriptor.generation.0)
}

/// One region, with the pieces of requests for it.
#[derive(Debug, Default)]
pub struct RegionView {
    pub entry: Option<Entry>,
    former: Vec<Copy>,
    pub queue: Queue,
    /// A host said that this generation is over: nothing is started until another is told.
    pub blocked_at: u64,
    /// The owner was last told of a doubt under this generation: no write is started under it any
    /// more.
    pub doubted_at: u64,
    /// Windows in which a write may land late. None is started while the entry has one of them: a
    /// fence gives it another name, and a generation alone says nothing.
    late: BTreeSet<(HostIndex, WindowName)>,
    /// Of what the owner was told.
    pub known: u64,
}

impl RegionView {
    /// Takes what the owner says: the losses if they are news, and whether anything is.
    pub fn learn(&mut self, entry: Entry) -> (Option<u32>, bool) {
        let generation = self.entry.as_ref().map_or(0, |known| known.generation);
        if entry.generation <= generation {
            // Told again, to a client that joined again or for the copy to come: it hears of it again, too.
            self.known = self.known.min(entry.generation.saturating_sub(1));
            if let Some(known) = self
                .entry
                .as_mut()
                .filter(|known| known.generation == entry.generation)
            {
                known.next = entry.next;
            }
            return (None, entry.generation == generation);
        }
        let is_first = self.entry.is_none();
        let losses = self.entry.as_ref().map_or(0, |known| known.losses);
        let is_lost = !is_first && entry.losses > losses;
        let news = is_lost.then_some(entry.losses);
        if let Some(former) = self.entry.replace(entry) {
            self.former = former.copies;
        }
        self.forget_late();
        (news, true)
    }

    /// A write that was under way in a window may land late.
    pub fn note_late(&mut self, host: HostIndex, window: WindowName) {
        self.late.insert((host, window));
        self.forget_late();
    }

    /// Whether a write may land late where writes go now.
    pub fn is_late(&self) -> bool {
        !self.late.is_empty() && self.windows().any(|window| self.late.contains(&window))
    }

    /// Forgets windows that are not used any more. Those of a copy that retires may come back until
    /// writes go on.
    fn forget_late(&mut self) {
        let is_open = |entry: &Entry| entry.access == Access::Open;
        if !self.late.is_empty() && self.entry.as_ref().is_some_and(is_open) {
            let used: BTreeSet<(HostIndex, WindowName)> = self.windows().collect();
            self.late.retain(|window| used.contains(window));
        }
    }

    /// The windows of its copies.
    fn windows(&self) -> impl Iterator<Item = (HostIndex, WindowName)> {
        let copies = self.entry.iter().flat_map(|entry| &entry.copies);
        copies.flat_map(|copy| {
            let of_host = move |window: &Window| (copy.host, (window.id, window.generation));
            copy.windows.iter().map(of_host)
        })
    }

    /// How many times its bytes were lost.
    pub fn losses(&self) -> u32 {
        self.entry.as_ref().map_or(0, |entry| entry.losses)
    }

    /// Since when its bytes are those of a checkpoint; 0: they are not; `None`: nothing was told of it.
    pub fn fell_back_ms(&self) -> Option<u64> {
        self.entry.as_ref().map(|entry| entry.fell_back_ms)
    }

    pub fn is_there(&self) -> bool {
        let is_there = |entry: &Entry| entry.access != Access::Cut;
        self.entry.as_ref().is_some_and(is_there)
    }

    /// Which pieces may be started, as the region's entry says.
    pub fn lets(&self) -> Lets {
        let Some(entry) = &self.entry else {
            return Lets::default();
        };
        let is_blocked = self.blocked_at == entry.generation;
        let is_doubted = self.doubted_at == entry.generation || self.is_late();
        let is_doubted = is_doubted && !is_injected(InjectedFault::RedoneUnfenced);
        let writes_on = entry.access == Access::Open || is_injected(InjectedFault::WriteDuringMove);
        let drops = entry.access == Access::Frozen && is_injected(InjectedFault::QueueDropped);
        match entry.access {
            Access::Open | Access::Frozen => Lets {
                reads: !is_blocked,
                writes: writes_on && !is_blocked && !is_doubted || drops,
            },
            Access::Absent | Access::Cut => Lets::default(),
        }
    }

    /// Whether its entry lets clients read, at least.
    pub fn is_readable(&self) -> bool {
        let is_readable = |entry: &Entry| matches!(entry.access, Access::Open | Access::Frozen);
        self.entry.as_ref().is_some_and(is_readable)
    }

    /// Its copies, and the one to come.
    pub fn places(&self) -> impl Iterator<Item = &Copy> {
        self.entry.iter().flat_map(Entry::places)
    }

    /// Whether what was read of a window under a generation is of a copy that does not count any
    /// more. Not a matter of its host: a region may have gone and come back to another window there.
    pub fn has_left(&self, generation: u64, host: HostIndex, window: WindowName) -> bool {
        let Some(entry) = &self.entry else {
            return true;
        };
        entry.generation != generation && self.windows().all(|used| used != (host, window))
    }

    /// For an injected fault: where it was before.
    pub fn stale_copies(&self) -> Option<&[Copy]> {
        (!self.former.is_empty()).then_some(&self.former[..])
    }
}
