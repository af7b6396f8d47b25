//! Pages that the client keeps a tag of: made when they are written, asked for when they are read.
//!
//! A page whose splits do not make what its tag says is asked for one more, then for all (`guard`).
//!
//! Invariant: a tag is loaded before it is asked whether a writer was in between: both are of one write.

use std::sync::atomic::Ordering;

use super::state::{Next, Page};
use crate::integrity::{Integrity, Tag};
use crate::worker::data_path::DataPath;
use crate::worker::guard::{Guard, Sought};
use crate::worker::verdict::Verdict;
use crate::{IoError, PAGE_BYTES};

/// Makes the tag of the page that is to be written, and encrypts it where it is sealed. Once per
/// attempt, when nothing stands in the write's way any more.
pub(super) fn protect(page: &mut Page, path: &mut DataPath) {
    let Some(tags) = &path.core.pages.integrity.tags else {
        return;
    };
    tags.prefetch(page.number);
    let is_in_target = page.memory.is_whole() && !page.is_discard();
    let (target, scratch) = (page.memory.target(), page.memory.scratch());
    let Some(sealer) = &tags.sealer else {
        let bytes = if is_in_target { target } else { scratch };
        // SAFETY: a whole page in the request's buffer or the operation's scratch, which nothing
        // writes while the operation lives.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast_const(), PAGE_BYTES) };
        page.tag = [tags.checksum(bytes), 0, 0];
        return;
    };
    // SAFETY: a whole page each, the request's buffer and the operation's scratch; they do not overlap, and
    // nobody else touches them meanwhile.
    let (plain, sealed) = unsafe {
        (
            is_in_target.then(|| std::slice::from_raw_parts(target.cast_const(), PAGE_BYTES)),
            std::slice::from_raw_parts_mut(scratch, PAGE_BYTES),
        )
    };
    page.tag = path.guard.seal(sealer, page.number, plain, sealed);
    page.memory.in_scratch = true;
}

/// Whether the request's buffer takes the whole page.
fn goes_whole(page: &Page) -> bool {
    page.memory.is_whole() && !page.claim.held && !page.is_nobodys()
}

/// The page with this tag.
fn sought(page: &Page, tag: Tag) -> Sought {
    Sought {
        page: page.number,
        tag,
        to: goes_whole(page).then(|| page.memory.target()),
    }
}

/// Judges the splits that were read by the page's tag, when `more` others could be read besides.
pub(super) fn verdict(page: &mut Page, path: &mut DataPath, tag: Tag, more: usize) -> Verdict {
    let present = page.verbs.acked;
    let is_more_than_k = present.count_ones() as usize > page.cut().k();
    let made = page.splits(path).reconstruct(present);
    let DataPath {
        core,
        guard,
        scratch,
        ..
    } = path;
    let (pages, splits) = (&core.pages, page.splits_in(scratch, core));
    let sought = sought(page, tag);
    if let Some(tag) = guard.accept(pages, sought, splits.page) {
        page.tag = tag;
        let wrong = match is_more_than_k {
            true => guard.unlike_page(&splits, present),
            false => 0,
        };
        return Verdict::Right { wrong, made };
    }
    if is_more_than_k && let Some((tag, wrong)) = guard.search(pages, sought, &splits, present) {
        page.tag = tag;
        return Verdict::Right { wrong, made };
    }
    path.note_made(made);
    match more {
        0 => Verdict::Corrupt,
        more => Verdict::Ask(if is_more_than_k { more } else { 1 }),
    }
}

/// Puts the plain page of a sealed volume where the operation goes on with it.
pub(super) fn hand_over(page: &Page, guard: &Guard, integrity: &Integrity) {
    // One that moves goes on as it is.
    if !integrity.is_sealed() || goes_whole(page) || page.is_nobodys() {
        return;
    }
    let plain = guard.plain().as_ptr();
    // SAFETY: the guard's is a whole page, and overlaps neither the request's buffer nor the scratch.
    unsafe {
        match page.claim.held {
            false => page.memory.hand_over(plain),
            true => page.memory.fill_scratch(plain),
        }
    }
}

/// Whether the image in the operation's scratch is what the tag says that it was listed with; any, where
/// pages have no tags.
pub(super) fn accept_image(page: &mut Page, path: &mut DataPath) -> bool {
    let DataPath { core, guard, .. } = path;
    let Some(tags) = &core.pages.integrity.tags else {
        return true;
    };
    // The last owner may have ended when it had stored the tag and not yet taken the page off the list.
    let slot = page.listing.slot();
    let staged = tags.staged(slot, page.number);
    let mut known = staged.into_iter().chain([tags.load(page.number)]);
    let image = page.memory.scratch();
    let found = known.find_map(|tag| guard.accept(&core.pages, sought(page, tag), image));
    page.tag = found.unwrap_or(page.tag);
    found.is_some()
}

/// The disk has read a page that may have a tag, into `bytes`, a whole page. Where it is tagged it is in
/// scratch then, and a sealed one where the operation goes on with it.
///
/// # Errors
/// How the operation goes on if the page is not what its tag says, or a read if it was written meanwhile.
pub(super) fn accept_fetched(
    page: &mut Page,
    path: &mut DataPath,
    bytes: *const u8,
) -> Result<(), Next> {
    let Some(tags) = path.tags() else {
        return Ok(());
    };
    // Before it is asked whether a writer was in between.
    let tag = tags.load(page.number);
    if !page.claim.held && !page.is_unchanged(&path.core) {
        path.count_repeat();
        return Err(Next::Park);
    }
    let DataPath { core, guard, .. } = path;
    let (pages, integrity) = (&core.pages, &core.pages.integrity);
    page.memory.in_scratch |= integrity.is_sealed() || page.is_scrub();
    // SAFETY: the disk's buffer, which nobody writes before it is given back.
    unsafe { page.memory.fill_scratch(bytes) };
    if !pages.marks.written.contains(page.number) {
        // It holds nothing, and has no tag.
        page.memory.clear_scratch();
        guard.clear_plain();
        if goes_whole(page) {
            page.memory.hand_over_zeros();
        }
    } else {
        let Some(tag) = guard.accept(pages, sought(page, tag), page.memory.scratch()) else {
            let counters = &integrity.counters;
            counters.corrupt_reads.fetch_add(1, Ordering::Relaxed);
            let page = page.number;
            tracing::warn!(page, "the disk's bytes of a page are wrong");
            return Err(Next::End(Err(IoError::Corrupt)));
        };
        page.tag = tag;
    }
    hand_over(page, guard, integrity);
    Ok(())
}
