//! Splits that rot in the memory of hosts, of volumes that notice.
//!
//! One split of a page at a time: of a page that is at risk already nothing more rots until it is
//! written whole. Meanwhile it may be an error; other bytes it may never be, and where enough
//! splits are left to put it right, no error either. With tags that is one more than k, all the time.

use std::collections::BTreeMap;

use cenote_fabric::sim::{Net, NodeId};
use cenote_measure::random::Random;
use cenote_volume::{Mode, PAGE_BYTES, Protection, Stepped};

use super::super::model::{Cause, Excuse, SECTOR_BYTES};
use super::super::world::World;
use super::{Client, to_index};

impl World {
    /// Has a split of a client's volume rot, if it has one that may.
    pub fn rot(&mut self, client: usize) {
        self.steps += 1;
        let nodes: Vec<NodeId> = self.hosts.iter().map(|host| host.node).collect();
        let (net, step) = (self.net.clone(), self.steps);
        let client = &mut self.clients[client];
        // Without tags k splits are believed, and more than that are left for sure in gentle epochs.
        if !(client.is_tagged() || self.is_gentle && client.compares()) {
            return;
        }
        if let Some(what) = client.rot(&net, &nodes, &mut self.random, step) {
            let what = format!("rot {}: {what}", client.name);
            self.faults += 1;
            self.rotten_splits += 1;
            self.note(what);
        }
    }

    /// While `gone` hosts are away and all else is whole, what can be put right is no error.
    pub fn expect_right(&mut self, gone: usize) {
        for client in &mut self.clients {
            client.expect_right(gone);
        }
    }

    /// Anything may happen again.
    pub fn excuse_errors(&mut self) {
        for client in &mut self.clients {
            client.excuse = Excuse::Any;
        }
    }
}

impl Client {
    fn is_tagged(&self) -> bool {
        self.plan.protection != Protection::None
    }

    fn compares(&self) -> bool {
        matches!(
            self.plan.resilience.mode(),
            Mode::Detection | Mode::Correction
        )
    }

    /// Splits of a page beside k that it takes to put a wrong one right; `None`: it may stay an error.
    /// A tag tells with one: if no more than k were left at some time, see [`Client::note_few`].
    fn needed_to_right(&self) -> Option<usize> {
        let is_correcting = self.plan.resilience.mode() == Mode::Correction;
        match self.is_tagged() {
            true => Some(1),
            false => is_correcting.then(|| 2 * self.plan.resilience.delta()),
        }
    }

    /// Pages that rotted, and that nothing tells any more: no more than k splits are there.
    pub(super) fn note_few(&mut self) {
        let epoch = self.volume.as_ref().map_or(0, Stepped::epoch);
        // While it is taken over, what is there is still being found.
        if self.is_opening
            || !self.is_tagged()
            || std::mem::replace(&mut self.few_epoch, epoch) == epoch
        {
            return;
        }
        let Some(volume) = &self.volume else {
            return;
        };
        let mut live: BTreeMap<usize, usize> = BTreeMap::new();
        for seat in volume.seats().iter().filter(|seat| seat.is_live) {
            *live.entry(seat.extent).or_default() += 1;
        }
        // Where its extents are cut otherwise than others, each page counts where it is.
        for page in 0..to_index(self.plan.size_bytes) / PAGE_BYTES {
            let extent = volume.extent_of(page as u64);
            if live.get(&extent).copied().unwrap_or(0) <= volume.k_of(extent) {
                self.model.leave_few(page..page + 1);
            }
        }
    }

    fn expect_right(&mut self, gone: usize) {
        let left = self.plan.resilience.scheme().r().checked_sub(gone);
        let needed = self.needed_to_right();
        let is_right = needed.is_some_and(|needed| left.is_some_and(|left| left >= needed));
        self.excuse = if is_right {
            Excuse::AllButRot
        } else {
            Excuse::Any
        };
    }

    /// Wrong splits that its volumes named so far, and healed.
    pub fn errors(&self) -> (u64, u64) {
        let (wrong, healed) = self.errors_before;
        self.volume.as_ref().map_or((wrong, healed), |volume| {
            let now = volume.status().integrity;
            (wrong + now.wrong_splits, healed + now.healed_splits)
        })
    }

    fn rot(
        &mut self,
        net: &Net,
        hosts: &[NodeId],
        random: &mut Random,
        step: u64,
    ) -> Option<String> {
        let volume = self.volume.as_ref()?;
        let seats = volume.seats();
        let live: Vec<_> = seats.iter().filter(|seat| seat.is_live).collect();
        if live.is_empty() {
            return None;
        }
        let seat = **random.pick(&live);
        let split_bytes = volume.split_bytes_of(seat.extent);
        let extent_pages = self.plan.slab_bytes / split_bytes as u64;
        let index = random.below(extent_pages);
        let page = volume.page_at(seat.extent, index)?;
        let is_inside = (page + 1) * PAGE_BYTES as u64 <= self.plan.size_bytes;
        if !is_inside || self.model.is_at_risk(to_index(page)) {
            return None;
        }
        let (offset, len) = (index * split_bytes as u64, split_bytes.min(SECTOR_BYTES));
        let node = hosts[seat.host];
        // A host that is down, or has given the slab to somebody else since, has none to rot.
        net.corrupt(node, seat.window, seat.generation, offset, len)
            .ok()?;
        let of_extent = live.iter().filter(|other| other.extent == seat.extent);
        let is_among_few = of_extent.count() <= volume.k_of(seat.extent);
        let cause = match self.is_tagged() && is_among_few {
            true => Cause::RotAmongFew,
            false => Cause::Rot,
        };
        self.model.risk(to_index(page), cause, step);
        Some(format!("split {} of page {page}", seat.split))
    }
}
