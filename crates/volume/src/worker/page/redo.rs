//! Redoing a write that the last owner did not end: its page becomes what that owner's list says.
//!
//! As any write of a whole page, but under the place in the list that the write had, which says all along what
//! the page is to be: should this owner end as well, the next one redoes the same. A sealed page goes as it is,
//! under the tag that was staged for it.
//!
//! Invariants: before anything else of the volume is written, or an older page would come over a newer one;
//! what has a tag and does not fit it is not written.
//! Decision 46.

use super::protection;
use super::state::{Next, Page};
use super::write::Write;
use crate::core::Core;
use crate::marks::Unfinished;
use crate::worker::data_path::DataPath;
use crate::{IoError, PAGE_BYTES};

impl Write {
    pub(super) fn begin_redo(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        if !path.core.pages.claims.try_claim(page.number) {
            return Next::Park;
        }
        page.claim.held = true;
        page.locate(&path.core);
        // SAFETY: the operation's scratch block starts with one whole page and is used by it alone.
        let image = unsafe { std::slice::from_raw_parts_mut(page.memory.scratch(), PAGE_BYTES) };
        let unfinished = Unfinished {
            slot: page.listing.slot(),
            page: page.number,
        };
        path.core.pages.marks.image(unfinished, image);
        page.memory.in_scratch = true;
        match protection::accept_image(page, path) {
            true => self.scatter(page, path),
            false => Next::End(Err(IoError::Corrupt)),
        }
    }
}

/// A write of the last owner's is not redone: its page is marked, and its place is free.
pub(in crate::worker) fn give_up(core: &Core, unfinished: Unfinished) {
    let Unfinished { slot, page } = unfinished;
    let marks = &core.pages.marks;
    if let Some(tags) = &core.pages.integrity.tags
        && !tags.fail(slot)
    {
        marks.tear(page);
    }
    marks.fail_write(slot);
}
