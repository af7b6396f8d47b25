//! Pages that the client keeps a tag of: made when they are written, asked for when they are read.
//!
//! With a checksum a page is what it was; with a seal it leaves encrypted, into the operation's
//! scratch, and is believed only as what the seal says. Splits that make no page of its tag are
//! asked for one more, then for all, and set aside in turn until the rest makes it.
//!
//! Invariants:
//! - A tag is loaded before it is asked whether a writer was in between: both are of one write.
//! - Nothing sealed is decrypted in place: what goes to the reader was authenticated.
//! - A page whose last write ended unknown is what it was or what was written, as a whole.

use std::sync::atomic::Ordering;

use super::gather::note_made;
use super::splits::Splits;
use super::verbs::bits;
use super::verdict::Verdict;
use super::{Next, Page};
use crate::core::Pages;
use crate::integrity::{Integrity, NUMBER_BLOCK, Sealer, Tag};
use crate::marks::Soundness;
use crate::worker::data_path::DataPath;
use crate::{IoError, PAGE_BYTES};
use cenote_codec::PARITY_MAX;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

/// A worker's own part of protecting pages: room, and numbers for seals.
pub(in crate::worker) struct Guard {
    /// A page in the making, then its parities.
    candidate: Box<[u8]>,
    /// A page decrypted that does not go to its reader as it is.
    plain: Box<[u8; PAGE_BYTES]>,
    next_number: u64,
    numbers_end: u64,
    /// Splits that scrubbing found wrong, ...
    pub wrong_count: u64,
    /// ... and wrote again.
    pub healed_count: u64,
}

/// Sets of splits that are tried without before a page is given up; among (32,8) those of two.
const TRIES_MAX: usize = 1024;

impl Guard {
    /// For pages of any cut.
    pub fn new() -> Self {
        Self {
            candidate: vec![0; PAGE_BYTES * (1 + PARITY_MAX)].into(),
            plain: Box::new([0; PAGE_BYTES]),
            next_number: 0,
            numbers_end: 0,
            wrong_count: 0,
            healed_count: 0,
        }
    }

    /// A number that no other page of this owner is sealed under.
    fn take_number(&mut self, sealer: &Sealer) -> u64 {
        if self.next_number == self.numbers_end {
            self.next_number = sealer.take_numbers();
            self.numbers_end = self.next_number + NUMBER_BLOCK;
        }
        self.next_number += 1;
        self.next_number - 1
    }

    /// Encrypts the operation's page into its scratch.
    fn seal(&mut self, sealer: &Sealer, page: &mut Page) {
        let number = self.take_number(sealer);
        let is_in_target = page.has_whole_target();
        if !is_in_target {
            // SAFETY: the scratch begins with a whole page, which is this operation's alone.
            let scratch = unsafe { std::slice::from_raw_parts(page.memory.scratch(), PAGE_BYTES) };
            self.plain.copy_from_slice(scratch);
        }
        let plain: *const u8 = match is_in_target {
            true => page.memory.target(),
            false => self.plain.as_ptr(),
        };
        // SAFETY: a whole page each, the request's buffer or the guard's, and the operation's scratch;
        // they do not overlap, and nobody else touches them meanwhile.
        let (plain, sealed) = unsafe {
            (
                std::slice::from_raw_parts(plain, PAGE_BYTES),
                std::slice::from_raw_parts_mut(page.memory.scratch(), PAGE_BYTES),
            )
        };
        page.tag = sealer.seal(page.number, number, plain, sealed);
        page.memory.in_scratch = true;
    }

    /// Whether these bytes are what the page's tag, or a pending one, says; then its reader has them, where
    /// it takes the whole page, or else the guard does.
    ///
    /// `bytes` is a whole page of the operation's buffers or the guard's, and no verb of the operation is out.
    fn accept(&mut self, pages: &Pages, page: &mut Page, tag: Tag, bytes: *const u8) -> bool {
        let to = match page.goes_whole() {
            true => page.memory.target(),
            false => self.plain.as_mut_ptr(),
        };
        let is_doubtful = pages.marks.soundness(page.number) == Soundness::Doubtful;
        // SAFETY: `bytes` as the caller says. `to` is a whole page of the request's buffer or the guard's
        // `plain`; it is written only for a sealed volume, whose pages never lie in either.
        let found = unsafe {
            let bytes = std::slice::from_raw_parts(bytes, PAGE_BYTES);
            fitting(&pages.integrity, page.number, bytes, tag, is_doubtful, to)
        };
        page.tag = found.unwrap_or(page.tag);
        found.is_some()
    }

    /// Puts the plain page of a sealed volume where the operation goes on with it.
    pub(super) fn hand_over(&self, integrity: &Integrity, page: &Page) {
        // One that moves goes on as it is.
        if !integrity.is_sealed() || page.goes_whole() || page.is_nobodys() {
            return;
        }
        let plain = self.plain.as_ptr();
        // SAFETY: the guard's is a whole page, and overlaps neither the request's buffer nor the scratch.
        unsafe {
            match page.claim.held {
                false => page.memory.hand_over(plain),
                true => page.memory.fill_scratch(plain),
            }
        }
    }

    /// Looks for k of the splits that make the page of its tag, into the candidate.
    fn search(
        &mut self,
        pages: &Pages,
        page: &mut Page,
        splits: &Splits<'_>,
        tag: Tag,
        present: u64,
    ) -> bool {
        let k = splits.cut.k();
        if k == 1 {
            return bits(present).any(|copy| {
                self.candidate[..PAGE_BYTES].copy_from_slice(splits.split(copy));
                self.accept(pages, page, tag, self.candidate.as_ptr())
            });
        }
        let (given, mut tries) = (present.count_ones() as usize, 0);
        (1..=given.saturating_sub(k)).any(|size| {
            subsets(present, size).any(|aside| {
                tries += 1;
                tries <= TRIES_MAX && {
                    self.make_candidate(splits, present & !aside);
                    self.accept(pages, page, tag, self.candidate.as_ptr())
                }
            })
        })
    }

    /// Makes the candidate of these splits.
    fn make_candidate(&mut self, splits: &Splits<'_>, present: u64) {
        let candidate = &mut self.candidate[..PAGE_BYTES];
        candidate.copy_from_slice(splits.page_bytes());
        let code = splits.code.expect("k is above 1");
        let decoded = code.reconstruct(present, candidate, splits.parity_splits());
        decoded.expect("k splits of a valid code are present");
    }

    /// Splits that were read and differ from what the page as it lies makes of them.
    fn unlike_page(&mut self, splits: &Splits<'_>, present: u64) -> u64 {
        self.candidate[..PAGE_BYTES].copy_from_slice(splits.page_bytes());
        self.unlike_candidate(splits, present)
    }

    /// Splits that were read and differ from what the candidate makes of them.
    fn unlike_candidate(&mut self, splits: &Splits<'_>, present: u64) -> u64 {
        let (k, len) = (splits.cut.k(), splits.cut.split_bytes());
        let (page, parities) = self.candidate.split_at_mut(PAGE_BYTES);
        if let Some(code) = splits.code {
            code.encode(page, &mut parities[..splits.parity_bytes()]);
        }
        let differs = |split: usize| {
            let right = match split {
                _ if k == 1 => &self.candidate[..PAGE_BYTES],
                split => &self.candidate[split * len..][..len],
            };
            splits.split(split) != right
        };
        let wrong = bits(present).filter(|&split| differs(split));
        wrong.fold(0, |wrong, split| wrong | 1 << split)
    }

    /// The candidate is the page.
    fn take_candidate(&self, splits: &Splits<'_>) {
        // SAFETY: a whole page each, which do not overlap; no verb of the operation is out.
        unsafe {
            splits
                .page
                .copy_from_nonoverlapping(self.candidate.as_ptr(), PAGE_BYTES)
        };
    }
}

impl Page {
    /// Whether the request's buffer has the whole page that is to be written.
    fn has_whole_target(&self) -> bool {
        self.memory.is_whole() && !self.is_discard()
    }

    /// Whether the request's buffer takes the whole page.
    fn goes_whole(&self) -> bool {
        self.memory.is_whole() && !self.claim.held && !self.is_nobodys()
    }
}

/// The tag, of those that the page may have, that these bytes have; a sealed page's plain bytes then
/// lie at `to`.
///
/// # Safety
/// Where pages are sealed, `to` is valid for writes of a page that nothing else refers to.
unsafe fn fitting(
    integrity: &Integrity,
    page: u64,
    bytes: &[u8],
    tag: Tag,
    is_doubtful: bool,
    to: *mut u8,
) -> Option<Tag> {
    let tags = integrity.tags.as_ref()?;
    let fits = |tag: &Tag| match &tags.sealer {
        None => tags.checksum(bytes) == tag[0] || is_injected(InjectedFault::SkipTag),
        Some(sealer) => {
            // SAFETY: the caller's.
            let plain = unsafe { std::slice::from_raw_parts_mut(to, PAGE_BYTES) };
            sealer.open(page, tag, bytes, plain)
        }
    };
    if fits(&tag) {
        return Some(tag);
    }
    let mut pending = tags.pending(page).filter(|_| is_doubtful);
    pending.find(|tag| fits(tag))
}

/// Every set of `size` of the bits of `mask`.
fn subsets(mask: u64, size: usize) -> impl Iterator<Item = u64> {
    let count = mask.count_ones();
    // Counts through the numbers with `size` bits below 2^count, ascending.
    let mut next = (size as u32 <= count && size > 0).then(|| (1_u64 << size) - 1);
    std::iter::from_fn(move || {
        let current = next?;
        let low = current & current.wrapping_neg();
        let ripple = current + low;
        let following = (((ripple ^ current) >> 2) / low) | ripple;
        next = (following < 1 << count).then_some(following);
        let chosen = bits(mask).enumerate();
        let chosen = chosen.filter(|(at, _)| current >> at & 1 == 1);
        Some(chosen.fold(0, |set, (_, bit)| set | 1 << bit))
    })
}

/// Makes the tag of the page that is to be written, and encrypts it where it is sealed. Once per
/// attempt, when nothing stands in the write's way any more.
pub(super) fn protect(page: &mut Page, path: &mut DataPath) {
    let Some(tags) = &path.core.pages.integrity.tags else {
        return;
    };
    tags.prefetch(page.number);
    if let Some(sealer) = &tags.sealer {
        return path.guard.seal(sealer, page);
    }
    let bytes = match page.has_whole_target() {
        true => page.memory.target(),
        false => page.memory.scratch(),
    };
    // SAFETY: a whole page in the request's buffer or the operation's scratch, which nothing
    // writes while the operation lives.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast_const(), PAGE_BYTES) };
    page.tag = [tags.checksum(bytes), 0, 0];
}

/// Judges the splits that were read by the page's tag, when `more` others could be read besides.
pub(super) fn verdict_by_tag(
    page: &mut Page,
    path: &mut DataPath,
    tag: Tag,
    more: usize,
) -> Verdict {
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
    if guard.accept(pages, page, tag, splits.page) {
        let wrong = match is_more_than_k {
            true => guard.unlike_page(&splits, present),
            false => 0,
        };
        return Verdict::Right { wrong, made };
    }
    if is_more_than_k && guard.search(pages, page, &splits, tag, present) {
        let wrong = guard.unlike_candidate(&splits, present);
        guard.take_candidate(&splits);
        return Verdict::Right { wrong, made };
    }
    note_made(path, made);
    match more {
        0 => Verdict::Corrupt,
        more => Verdict::Ask(if is_more_than_k { more } else { 1 }),
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
    let known = [tags.staged(slot, page.number), Some(tags.load(page.number))];
    let image = page.memory.scratch();
    let mut known = known.into_iter().flatten();
    known.any(|tag| guard.accept(&core.pages, page, tag, image))
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
        guard.plain.fill(0);
        if page.goes_whole() {
            page.memory.hand_over_zeros();
        }
    } else if !guard.accept(pages, page, tag, page.memory.scratch()) {
        let counters = &integrity.counters;
        counters.corrupt_reads.fetch_add(1, Ordering::Relaxed);
        let page = page.number;
        tracing::warn!(page, "the disk's bytes of a page are wrong");
        return Err(Next::End(Err(IoError::Corrupt)));
    }
    guard.hand_over(integrity, page);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::subsets;

    #[test]
    fn every_set_comes_once() {
        let sets: Vec<u64> = subsets(0b1011, 2).collect();
        assert_eq!(sets, [0b0011, 0b1001, 0b1010]);
        assert_eq!(subsets(0b1011, 1).count(), 3);
        assert_eq!(subsets(0b1011, 3).collect::<Vec<_>>(), [0b1011]);
        assert_eq!(subsets(0b1011, 4).count(), 0);
        assert_eq!(subsets((1 << 40) - 1, 2).count(), 780);
    }
}
