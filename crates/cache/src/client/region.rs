//! One region as a client knows it, and what it tells its owner.

use std::collections::BTreeSet;
use std::time::Duration;

use cenote_fabric::{Time, WindowDescriptor};
use cenote_pool::control::Window;

use super::piece::name_of;
use super::queue::{Lets, Queue};
use super::{
    Access, Client, Entry, HostIndex, InjectedFault, Progress, RemoteWindow, WindowName,
    is_injected,
};
use crate::owner::Copy;

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
    known: u64,
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

    /// Whether it is on the host, or will be.
    pub fn uses(&self, host: HostIndex) -> bool {
        let is_on = |entry: &Entry| entry.places().any(|copy| copy.host == host);
        self.entry.as_ref().is_some_and(is_on)
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
        if view.queue.under_way().any(is_older) && !is_injected(InjectedFault::NoDrain) {
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

    /// Has the windows of a region attached that are not yet; those of a copy to come ahead, or reads would
    /// wait for them when it counts.
    pub(super) fn want_windows(&mut self, region: usize) {
        let Some(entry) = &self.regions[region].entry else {
            return;
        };
        for copy in entry.places() {
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

    /// A window that was wanted can be used.
    pub fn handle_window(&mut self, host: HostIndex, window: RemoteWindow) {
        let name = name_of(&window);
        let Some(link) = self.links.get_mut(host) else {
            return;
        };
        link.windows.insert(name, window);
        let asked = link.asked.get(&name);
        if let Some(&(region, slab)) = asked
            && let Some(view) = self.regions.get_mut(region)
        {
            view.queue.note_window(slab);
            self.touched.insert(region);
        }
    }

    /// A window that was wanted is not to be had: its region's entry is old, its owner has to look,
    /// or this machine lacks something for the moment. It is wanted again after a pause, if the
    /// entry still has it.
    pub fn handle_no_window(&mut self, now: Time, host: HostIndex, window: WindowDescriptor) {
        /// Owners look at their books each time. Arbitrary.
        const PAUSE: Duration = Duration::from_secs(1);
        let name = (window.id.0, window.generation.0);
        let asked = self.links.get_mut(host).map(|link| &mut link.asked);
        let asked = asked.and_then(|asked| asked.remove(&name));
        let entry = asked.and_then(|(region, _)| self.regions.get_mut(region)?.entry.as_mut());
        let is_it = |copy: &Copy| {
            copy.host == host && copy.windows.iter().any(|w| (w.id, w.generation) == name)
        };
        if let Some(entry) = entry
            && entry.next.iter().any(is_it)
        {
            // It is to come no more: a hint, of which nobody is told the end.
            entry.next.clear();
            return;
        }
        self.troubled.insert(host);
        if let Some((region, _)) = asked {
            self.wanted_again.insert((now.after(PAUSE), region));
        }
    }

    /// Has windows attached whose pause is over.
    pub(super) fn want_again(&mut self, now: Time) {
        while let Some(&(at, region)) = self.wanted_again.first()
            && at <= now
        {
            self.wanted_again.pop_first();
            self.want_windows(region);
        }
    }

    /// Mappings of memory that is used no more would keep it from the machine.
    fn drop_windows(&mut self) {
        /// Windows beyond those in use that are kept: a sweep costs as much as there are regions.
        const SLACK: usize = 64;
        let mut used: Vec<BTreeSet<WindowName>> = vec![BTreeSet::new(); self.links.len()];
        let held: usize = self.links.iter().map(|link| link.windows.len()).sum();
        let copies = |view: &RegionView| view.entry.as_ref().map_or(0, |e| e.places().count());
        let slabs = self.geometry.slabs_per_region as usize;
        let needed: usize = self.regions.iter().map(copies).sum::<usize>() * slabs;
        if held <= needed + SLACK {
            return;
        }
        for view in &self.regions {
            for copy in view.entry.iter().flat_map(Entry::places) {
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
