//! The list of pages in flight: what a page is to be, from before its first verb until its splits agree, or
//! it is marked as one whose splits may not. A volume that ends in between leaves it there for the next
//! owner.

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::state::Page;
use crate::PAGE_BYTES;
use crate::limits::{IN_FLIGHT_MAX, OPS_MAX};
use crate::worker::data_path::DataPath;

/// An operation's place in the list of pages in flight.
#[derive(Clone, Copy, Default)]
pub(super) struct Listing {
    // Its own, or that of the write that it redoes.
    slot: u32,
    // Whether the page is listed there.
    listed: bool,
}

/// The place in the list of whatever an operation writes by itself.
pub(super) fn own_slot(worker: usize, op: u16) -> u32 {
    const { assert!(IN_FLIGHT_MAX <= u32::MAX as usize) };
    (worker * OPS_MAX) as u32 + u32::from(op)
}

impl Listing {
    /// Nothing is listed there yet.
    pub fn at(slot: u32) -> Self {
        Self {
            slot,
            listed: false,
        }
    }

    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// Of the operation that goes on with the page: this one's place is another's as soon as its last verb
    /// has ended.
    pub fn of_other(self, worker: usize, op: u16) -> Self {
        if is_injected(InjectedFault::ShareSlot) {
            return self;
        }
        Self {
            slot: own_slot(worker, op),
            ..self
        }
    }
}

impl Page {
    /// Lists the page as being written, and what it is to be. One that is redone is listed.
    pub(super) fn list(&mut self, path: &DataPath) {
        if !self.is_redo() {
            let slot = self.listing.slot();
            if let Some(tags) = path.tags() {
                tags.stage(slot, self.number, &self.tag);
            }
            // SAFETY: the page is the request's buffer, the scratch page or an entry's, whole in each case,
            // and nothing writes it while the operation lives.
            let bytes =
                unsafe { std::slice::from_raw_parts(self.memory.page().cast_const(), PAGE_BYTES) };
            path.core.pages.marks.begin_write(slot, self.number, bytes);
        }
        self.listing.listed = true;
    }

    /// Takes the page off the list, if it is there.
    pub(super) fn unlist(&mut self, path: &DataPath, is_whole: bool) {
        self.unlist_at_end(path, is_whole, false);
    }

    /// `is_over`: this worker begins nothing any more, and no other has its places.
    pub(super) fn unlist_at_end(&mut self, path: &DataPath, is_whole: bool, is_over: bool) {
        if !std::mem::take(&mut self.listing.listed) {
            return;
        }
        if !is_whole && self.is_redo() {
            // What its place says is done again, or given up by whoever asked (`redo`).
            return;
        }
        let marks = &path.core.pages.marks;
        let is_over = is_over || path.is_closed();
        if !is_whole && is_over && marks.has_images() {
            // The next owner redoes it. Till then nobody else is to write the page: its claim stays.
            self.withdraw_landed(&path.core);
            self.claim.held = false;
            return;
        }
        let slot = self.listing.slot();
        if is_whole {
            if let Some(tags) = path.tags() {
                tags.commit(slot, self.number, &self.tag);
            }
            marks.end_write(slot, self.number);
        } else {
            if let Some(tags) = path.tags()
                && !tags.fail(slot)
            {
                marks.tear(self.number);
            }
            marks.fail_write(slot);
        }
    }

    /// No host has anything of a write that the disk has refused: what slabs have of the page is as it was.
    pub(super) fn retract(&mut self, path: &DataPath) {
        if !std::mem::take(&mut self.listing.listed) {
            return;
        }
        let slot = self.listing.slot();
        if let Some(tags) = path.tags() {
            tags.retract(slot);
        }
        path.core.pages.marks.retract_write(slot);
    }

    /// The next owner would know that the write is acknowledged.
    pub(super) fn commit_listing(&self, path: &DataPath) {
        path.core.pages.marks.commit(self.listing.slot());
    }

    /// The page was found to be what this operation's tag says. Under its claim.
    pub(super) fn decide_tag(&self, path: &DataPath) {
        if let Some(tags) = path.tags() {
            tags.decide(self.number, &self.tag);
        }
    }
}
