//! What a client tells its owner of a region, and the windows that it wants and has.

use std::collections::BTreeSet;
use std::time::Duration;

use cenote_fabric::{RemoteWindow, Time, WindowDescriptor};
use cenote_pool::control::Window;

use super::Client;
use super::piece::Progress;
use super::region::{RegionView, WindowName, name_of};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::owner::{Access, Copy, HostIndex};

impl Client {
    /// Changes a region's entry, and with it how many copies are on each host. Who connects asks at each step
    /// whether a host has any: a cache may have had many hosts, and have many regions.
    pub(super) fn change_entry<R>(
        &mut self,
        region: usize,
        change: impl FnOnce(&mut RegionView) -> R,
    ) -> R {
        let view = &mut self.regions[region];
        for copy in view.places() {
            self.links[copy.host].copies -= 1;
        }
        let changed = change(view);
        for copy in view.places() {
            self.links[copy.host].copies += 1;
        }
        changed
    }

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
        let is_it = |copy: &Copy| {
            copy.host == host && copy.windows.iter().any(|w| (w.id, w.generation) == name)
        };
        let is_to_come = |view: &RegionView| {
            let mut next = view.entry.iter().flat_map(|entry| &entry.next);
            next.any(is_it)
        };
        if let Some((region, _)) = asked
            && self.regions.get(region).is_some_and(is_to_come)
        {
            // It is to come no more: a hint, of which nobody is told the end.
            self.change_entry(region, |view| {
                view.entry.iter_mut().for_each(|entry| entry.next.clear());
            });
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
        let slabs = self.geometry.slabs_per_region as usize;
        let needed = self.links.iter().map(|link| link.copies).sum::<usize>() * slabs;
        if held <= needed + SLACK {
            return;
        }
        for view in &self.regions {
            for copy in view.places() {
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
