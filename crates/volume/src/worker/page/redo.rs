//! Redoing a write that the last owner did not end: its page becomes what that owner's list says.
//!
//! `Parked -> Writing -> [Holding -> Writing ->] [Settling ->] (done)`, as any write of a whole page, but under the
//! place in the list that the write had, which says all along what the page is to be: should this owner end
//! as well, the next one redoes the same. A sealed page goes as it is, under the tag that was staged for it.
//!
//! Invariants: before anything else of the volume is written, or an older page would come over a newer one;
//! what has a tag and does not fit it is not written.
//! Decision 46.

use super::Worker;
use crate::marks::Unfinished;
use crate::worker::requests::Kind;
use crate::{IoError, PAGE_BYTES};

impl Worker {
    pub(super) fn is_redo(&self, op: u16) -> bool {
        self.requests[usize::from(self.ops[usize::from(op)].request)].kind == Kind::Redo
    }

    pub(super) fn begin_redo(&mut self, op: u16) {
        let at = usize::from(op);
        let page = self.ops[at].chunk.page;
        if !self.core.pages.claims.try_claim(page) {
            return self.park(op);
        }
        self.ops[at].claim.held = true;
        self.locate(op);
        let slot = self.list_slot(op);
        let scratch = self.scratch(op);
        // SAFETY: the operation's scratch block starts with one whole page and is used by it alone.
        let image = unsafe { std::slice::from_raw_parts_mut(scratch, PAGE_BYTES) };
        self.core
            .pages
            .marks
            .image(Unfinished { slot, page }, image);
        self.ops[at].memory.in_scratch = true;
        if !self.accept_image(op, slot) {
            return self.finish(op, Err(IoError::Corrupt));
        }
        self.begin_scatter(op);
    }

    /// A write of the last owner's is not redone: its page is marked, and its place is free.
    pub(in crate::worker) fn give_up(&mut self, unfinished: Unfinished) {
        let Unfinished { slot, page } = unfinished;
        if let Some(tags) = &self.core.pages.integrity.tags
            && !tags.fail(slot)
        {
            self.core.pages.marks.tear(page);
        }
        self.core.pages.marks.fail_write(slot);
    }

    /// Whether the image in the operation's scratch is what the tag says that it was listed with; any, where
    /// pages have no tags.
    fn accept_image(&mut self, op: u16, slot: usize) -> bool {
        let page = self.ops[usize::from(op)].chunk.page;
        let Some(tags) = &self.core.pages.integrity.tags else {
            return true;
        };
        // The last owner may have ended when it had stored the tag and not yet taken the page off the list.
        let known = [tags.staged(slot, page), Some(tags.load(page))];
        let scratch = self.scratch(op);
        known
            .into_iter()
            .flatten()
            .any(|tag| self.accept(op, tag, scratch))
    }
}
