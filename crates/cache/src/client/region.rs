//! One region as a client knows it, and what it tells its owner.

use std::collections::BTreeSet;

use cenote_pool::control::Window;

use super::queue::{Lets, Queue};
use super::{Access, Client, Entry, HostIndex, Planted, Progress, RemoteWindow, is_planted};
use crate::owner::Copy;

/// One region, with the pieces of requests for it.
#[derive(Debug, Default)]
pub struct RegionView {
    pub entry: Option<Entry>,
    former: Vec<Copy>,
    pub queue: Queue,
    /// A host said that this generation is over: nothing is started until another is told.
    pub blocked_at: u64,
    /// A write under this generation may land late: none is started under it any more.
    pub doubted_at: u64,
    /// Of what the owner was told.
    known: u64,
}

impl RegionView {
    /// Takes what the owner says: the losses if they are news, and whether anything is.
    pub fn learn(&mut self, entry: Entry) -> (Option<u32>, bool) {
        let generation = self.entry.as_ref().map_or(0, |known| known.generation);
        if entry.generation <= generation {
            // Told again, to a client that joined again: it hears of it again, too.
            self.known = self.known.min(entry.generation.saturating_sub(1));
            return (None, entry.generation == generation);
        }
        let is_first = self.entry.is_none();
        let losses = self.entry.as_ref().map_or(0, |known| known.losses);
        let is_lost = !is_first && entry.losses > losses;
        let news = is_lost.then_some(entry.losses);
        if let Some(former) = self.entry.replace(entry) {
            self.former = former.copies;
        }
        (news, true)
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
        let is_doubted = self.doubted_at == entry.generation;
        let is_doubted = is_doubted && !is_planted(Planted::RedoneUnfenced);
        let writes_on = entry.access == Access::Open || is_planted(Planted::WriteDuringMove);
        let drops = entry.access == Access::Frozen && is_planted(Planted::QueueDropped);
        match entry.access {
            Access::Open | Access::Frozen => Lets {
                reads: !is_blocked,
                writes: writes_on && !is_blocked && !is_doubted || drops,
            },
            Access::Absent | Access::Cut => Lets::default(),
        }
    }

    pub fn uses(&self, host: HostIndex) -> bool {
        let is_on = |entry: &Entry| entry.copies.iter().any(|copy| copy.host == host);
        self.entry.as_ref().is_some_and(is_on)
    }

    /// Whether what was read of a host under a generation is of a copy that does not count any more.
    pub fn has_left(&self, generation: u64, host: HostIndex) -> bool {
        let Some(entry) = &self.entry else {
            return true;
        };
        entry.generation != generation && !self.uses(host)
    }

    /// For a planted mistake: where it was before.
    pub fn stale_copies(&self) -> Option<&[Copy]> {
        (!self.former.is_empty()).then_some(&self.former[..])
    }
}

impl Client {
    /// Says that the newest generation is the only one that the client acts on, once that is so.
    pub(super) fn tell_known(&mut self, region: usize) {
        let view = &self.regions[region];
        let Some(entry) = &view.entry else { return };
        let generation = entry.generation;
        if view.known >= generation {
            return;
        }
        let is_older = |number: &u64| {
            let piece = &self.pieces[number];
            let begun = matches!(piece.progress, Progress::UnderWay { generation: begun, .. } if begun < generation);
            piece.is_write() && begun
        };
        if view.queue.under_way().any(is_older) && !is_planted(Planted::NoDrain) {
            return;
        }
        let number = entry.region;
        if entry.access == Access::Frozen && entry.copies.len() > 1 {
            // What is known is not waited for any more: should this client die now, nobody else knows
            // of a write that waits and one of the copies has.
            let left = |number: u64| self.pieces[&number].left_at();
            let left: Vec<u64> = view.queue.waiting().filter_map(left).collect();
            for begun_at in left {
                self.doubt(region, begun_at);
            }
        }
        self.regions[region].known = generation;
        self.known.push_back((number, generation));
    }

    /// Has the windows of a region attached that are not yet.
    pub(super) fn want_windows(&mut self, region: usize) {
        let Some(entry) = &self.regions[region].entry else {
            return;
        };
        for copy in &entry.copies {
            let link = &mut self.links[copy.host];
            if link.path.is_none() {
                continue;
            }
            for (slab, &window) in copy.windows.iter().enumerate() {
                let name = (window.id, window.generation);
                if link.windows.contains_key(&name) {
                    continue;
                }
                if link.asked.insert(name, (region, slab)).is_none() {
                    self.wanted.push_back((copy.host, window));
                }
            }
        }
        self.drop_windows();
    }

    /// Mappings of memory that is used no more would keep it from the machine.
    fn drop_windows(&mut self) {
        /// Windows beyond those in use that are kept: a sweep costs as much as there are regions.
        const SLACK: usize = 64;
        let mut used: Vec<BTreeSet<(u32, u64)>> = vec![BTreeSet::new(); self.links.len()];
        let held: usize = self.links.iter().map(|link| link.windows.len()).sum();
        let copies = |view: &RegionView| view.entry.as_ref().map_or(0, |e| e.copies.len());
        let slabs = self.geometry.slabs_per_region as usize;
        let needed: usize = self.regions.iter().map(copies).sum::<usize>() * slabs;
        if held <= needed + SLACK {
            return;
        }
        for view in &self.regions {
            for copy in view.entry.iter().flat_map(|entry| &entry.copies) {
                let names = copy.windows.iter().map(|w| (w.id, w.generation));
                used[copy.host].extend(names);
            }
        }
        for (link, used) in self.links.iter_mut().zip(used) {
            link.windows.retain(|name, _| used.contains(name));
            link.asked.retain(|name, _| used.contains(name));
        }
    }

    /// The window, where it can be used now.
    pub(super) fn attached(&self, host: HostIndex, window: Window) -> Option<RemoteWindow> {
        let link = self.links.get(host)?;
        if link.is_ending || link.path.as_ref()?.is_lost() {
            return None;
        }
        link.windows.get(&(window.id, window.generation)).cloned()
    }
}
