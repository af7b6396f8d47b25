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

use super::Worker;
use super::verbs::bits;
use super::verdict::Verdict;
use crate::integrity::{Integrity, NUMBER_BLOCK, Tag, Tags};
use crate::marks::Soundness;
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
}

impl Worker {
    fn tags(&self) -> Option<&Tags> {
        self.core.pages.integrity.tags.as_ref()
    }

    /// Makes the tag of the page that is to be written, and encrypts it where it is sealed. Once per
    /// attempt, when nothing stands in the write's way any more.
    pub(super) fn protect(&mut self, op: u16) {
        let (is_tagged, is_sealed) = (self.tags().is_some(), self.core.pages.integrity.is_sealed());
        if !is_tagged {
            return;
        }
        self.prefetch_tag(op);
        let at = usize::from(op);
        let page = self.ops[at].chunk.page;
        let is_whole = self.ops[at].chunk.len_bytes == PAGE_BYTES && !self.is_discard(op);
        let bytes = if is_whole {
            self.target(op)
        } else {
            self.scratch(op)
        };
        if !is_sealed {
            // SAFETY: a whole page in the request's buffer or the operation's scratch, which nothing
            // writes while the operation lives.
            let bytes = unsafe { std::slice::from_raw_parts(bytes.cast_const(), PAGE_BYTES) };
            let tags = self.tags().expect("it is tagged");
            self.ops[at].tag = [tags.checksum(bytes), 0, 0];
            return;
        }
        let number = self.take_number();
        let scratch = self.scratch(op);
        if !is_whole {
            // SAFETY: the scratch begins with a whole page, which is this operation's alone.
            unsafe {
                self.guard
                    .plain
                    .as_mut_ptr()
                    .copy_from_nonoverlapping(scratch, PAGE_BYTES)
            };
        }
        let plain: *const u8 = if is_whole {
            bytes
        } else {
            self.guard.plain.as_ptr()
        };
        // SAFETY: a whole page each, the request's buffer or the guard's, and the operation's scratch;
        // they do not overlap, and nobody else touches them meanwhile.
        let (plain, sealed) = unsafe {
            (
                std::slice::from_raw_parts(plain, PAGE_BYTES),
                std::slice::from_raw_parts_mut(scratch, PAGE_BYTES),
            )
        };
        let sealer = self.tags().and_then(|tags| tags.sealer.as_ref());
        let sealer = sealer.expect("a sealed volume has a sealer");
        self.ops[at].tag = sealer.seal(page, number, plain, sealed);
        self.ops[at].memory.in_scratch = true;
    }

    /// Asks early for the page's tag, so that it comes while splits do.
    pub(super) fn prefetch_tag(&self, op: u16) {
        if let Some(tags) = self.tags() {
            tags.prefetch(self.ops[usize::from(op)].chunk.page);
        }
    }

    /// A number that no other page of this owner is sealed under.
    fn take_number(&mut self) -> u64 {
        if self.guard.next_number == self.guard.numbers_end {
            let sealer = self.tags().and_then(|tags| tags.sealer.as_ref());
            let first = sealer
                .expect("only sealed pages have numbers")
                .take_numbers();
            self.guard.next_number = first;
            self.guard.numbers_end = first + NUMBER_BLOCK;
        }
        let number = self.guard.next_number;
        self.guard.next_number += 1;
        number
    }

    /// Judges the splits that were read by the page's tag, when `more` others could be read besides.
    pub(super) fn verdict_by_tag(&mut self, op: u16, tag: Tag, more: usize) -> Verdict {
        let present = self.ops[usize::from(op)].verbs.acked;
        let (given, k) = (present.count_ones() as usize, self.cut(op).k());
        self.reconstruct(op);
        if self.accept_page(op, tag) {
            let wrong = if given > k {
                self.unlike_page(op, present)
            } else {
                0
            };
            return Verdict::Right { wrong };
        }
        if given > k && self.search(op, tag, present) {
            let wrong = self.unlike_candidate(op, present);
            self.take_candidate(op);
            return Verdict::Right { wrong };
        }
        if more > 0 {
            return Verdict::Ask(if given == k { 1 } else { more });
        }
        Verdict::Corrupt
    }

    /// Whether the page as it lies is what its tag, or a pending one, says; then its reader has it.
    fn accept_page(&mut self, op: u16, tag: Tag) -> bool {
        let page = self.page_buffer(op);
        self.accept(op, tag, page)
    }

    /// As [`Worker::accept_page`], of bytes that lie elsewhere.
    pub(super) fn accept(&mut self, op: u16, tag: Tag, bytes: *const u8) -> bool {
        let at = usize::from(op);
        let page = self.ops[at].chunk.page;
        let to = if self.goes_whole(op) {
            self.target(op)
        } else {
            self.guard.plain.as_mut_ptr()
        };
        let is_doubtful = self.core.pages.marks.soundness(page) == Soundness::Doubtful;
        // SAFETY: `bytes` is a whole page of the operation's buffers or the guard's, and no verb of the
        // operation is out. `to` is a whole page of the request's buffer or the guard's `plain`; it is
        // written only for a sealed volume, whose pages never lie in either.
        let found = unsafe {
            let bytes = std::slice::from_raw_parts(bytes, PAGE_BYTES);
            fitting(
                &self.core.pages.integrity,
                page,
                bytes,
                tag,
                is_doubtful,
                to,
            )
        };
        if let Some(tag) = found {
            self.ops[at].tag = tag;
        }
        found.is_some()
    }

    /// Whether the request's buffer takes the whole page.
    fn goes_whole(&self, op: u16) -> bool {
        let state = &self.ops[usize::from(op)];
        state.chunk.len_bytes == PAGE_BYTES && !state.claim.held && !self.is_scrub(op)
    }

    /// Puts the plain page of a sealed volume where the operation goes on with it.
    pub(super) fn hand_over(&mut self, op: u16) {
        // One that moves goes on as it is.
        let is_nobodys = self.is_scrub(op) || self.ops[usize::from(op)].aim.is_move;
        if !self.core.pages.integrity.is_sealed() || self.goes_whole(op) || is_nobodys {
            return;
        }
        let (start, len_bytes) = (
            self.ops[usize::from(op)].chunk.start,
            self.ops[usize::from(op)].chunk.len_bytes,
        );
        let plain = self.guard.plain.as_ptr();
        if !self.ops[usize::from(op)].claim.held {
            // SAFETY: the chunk lies inside the page, and the target is its part of the request's buffer.
            unsafe {
                self.target(op)
                    .copy_from_nonoverlapping(plain.add(start), len_bytes)
            };
        } else {
            // SAFETY: the scratch begins with a whole page; the guard's page does not overlap it.
            unsafe { self.scratch(op).copy_from_nonoverlapping(plain, PAGE_BYTES) };
        }
    }

    /// Looks for k of the splits that make the page of its tag, into the candidate.
    fn search(&mut self, op: u16, tag: Tag, present: u64) -> bool {
        let k = self.cut(op).k();
        if k == 1 {
            return bits(present).any(|copy| self.try_copy(op, tag, copy));
        }
        let (given, mut tries) = (present.count_ones() as usize, 0);
        (1..=given.saturating_sub(k)).any(|size| {
            subsets(present, size).any(|aside| {
                tries += 1;
                tries <= TRIES_MAX && self.try_without(op, tag, present & !aside)
            })
        })
    }

    fn try_copy(&mut self, op: u16, tag: Tag, copy: usize) -> bool {
        let from = self.landing(op, copy);
        let to = self.guard.candidate.as_mut_ptr();
        // SAFETY: a copy that was read is a whole page, and so is the candidate, which is apart.
        unsafe { to.copy_from_nonoverlapping(from, PAGE_BYTES) };
        self.accept(op, tag, to)
    }

    fn try_without(&mut self, op: u16, tag: Tag, present: u64) -> bool {
        let (page, parities) = (self.page_buffer(op), self.parities(op));
        let parity_bytes = self.parity_bytes(op);
        // SAFETY: the operation's page and parities, whole; no verb of it is out, so nothing writes them.
        let (page, parities) = unsafe {
            (
                std::slice::from_raw_parts(page.cast_const(), PAGE_BYTES),
                std::slice::from_raw_parts(parities.cast_const(), parity_bytes),
            )
        };
        let candidate = &mut self.guard.candidate[..PAGE_BYTES];
        candidate.copy_from_slice(page);
        let state = &self.ops[usize::from(op)];
        let (cut, count) = (state.place.cut, state.view.parities.into());
        let code = self.core.codes.with(cut, count).expect("k is above 1");
        let decoded = code.reconstruct(present, candidate, parities);
        decoded.expect("k splits of a valid code are present");
        let candidate = self.guard.candidate.as_ptr();
        self.accept(op, tag, candidate)
    }

    /// Splits that were read and differ from what the page as it lies makes of them.
    fn unlike_page(&mut self, op: u16, present: u64) -> u64 {
        let page = self.page_buffer(op);
        let candidate = self.guard.candidate.as_mut_ptr();
        // SAFETY: a whole page each, which do not overlap.
        unsafe { candidate.copy_from_nonoverlapping(page, PAGE_BYTES) };
        self.unlike_candidate(op, present)
    }

    /// Splits that were read and differ from what the candidate makes of them.
    fn unlike_candidate(&mut self, op: u16, present: u64) -> u64 {
        let cut = self.cut(op);
        let (k, len) = (cut.k(), cut.split_bytes());
        let parity_bytes = self.parity_bytes(op);
        let (page, parities) = self.guard.candidate.split_at_mut(PAGE_BYTES);
        let count = self.ops[usize::from(op)].view.parities.into();
        if let Some(code) = self.core.codes.with(cut, count) {
            code.encode(page, &mut parities[..parity_bytes]);
        }
        let differs = |split: usize| {
            let right = match split {
                _ if k == 1 => &self.guard.candidate[..PAGE_BYTES],
                split => &self.guard.candidate[split * len..][..len],
            };
            self.split(op, split) != right
        };
        let wrong = bits(present).filter(|&split| differs(split));
        wrong.fold(0, |wrong, split| wrong | 1 << split)
    }

    /// The candidate is the page.
    fn take_candidate(&mut self, op: u16) {
        let page = self.page_buffer(op);
        // SAFETY: a whole page each, which do not overlap; no verb of the operation is out.
        unsafe { page.copy_from_nonoverlapping(self.guard.candidate.as_ptr(), PAGE_BYTES) };
    }

    /// The disk has read a page that has a tag: says whether the operation goes on with it. If not,
    /// it has been seen to.
    pub(super) fn judge_fetched(&mut self, op: u16, bytes: *const u8) -> bool {
        let at = usize::from(op);
        let Some(tags) = self.tags() else {
            return true;
        };
        let tag = tags.load(self.ops[at].chunk.page);
        if !self.ops[at].claim.held && !self.is_unchanged(op) {
            self.count_repeat();
            self.park(op);
            return false;
        }
        let scratch = self.scratch(op);
        let is_sealed = self.core.pages.integrity.is_sealed();
        self.ops[at].memory.in_scratch |= is_sealed || self.ops[at].aim.is_scrub;
        // SAFETY: the scratch begins with a whole page, and so does the disk's buffer.
        unsafe { scratch.copy_from_nonoverlapping(bytes, PAGE_BYTES) };
        if !self
            .core
            .pages
            .marks
            .written
            .contains(self.ops[at].chunk.page)
        {
            // It holds nothing, and has no tag.
            // SAFETY: as above.
            unsafe { scratch.write_bytes(0, PAGE_BYTES) };
            self.guard.plain.fill(0);
            if self.goes_whole(op) {
                // SAFETY: the request's buffer takes a whole page.
                unsafe { self.target(op).write_bytes(0, PAGE_BYTES) };
            }
        } else if !self.accept(op, tag, scratch) {
            let counters = &self.core.pages.integrity.counters;
            counters.corrupt_reads.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                page = self.ops[at].chunk.page,
                "the disk's bytes of a page are wrong"
            );
            self.finish(op, Err(IoError::Corrupt));
            return false;
        }
        self.hand_over(op);
        true
    }

    /// The page's write is whole, or ended unknown. Before the page is unlisted.
    pub(super) fn settle_tag(&self, op: u16, slot: usize, is_whole: bool) {
        let Some(tags) = self.tags() else { return };
        let state = &self.ops[usize::from(op)];
        if is_whole {
            tags.commit(slot, state.chunk.page, &state.tag);
        } else if !tags.fail(slot) {
            self.core.pages.marks.tear(state.chunk.page);
        }
    }

    /// Notes the tag that the page is to have, before it is listed.
    pub(super) fn stage_tag(&self, op: u16, slot: usize) {
        if let Some(tags) = self.tags() {
            let state = &self.ops[usize::from(op)];
            tags.stage(slot, state.chunk.page, &state.tag);
        }
    }

    /// The page was found to be what this operation's tag says. Under its claim.
    pub(super) fn decide_tag(&self, op: u16) {
        if let Some(tags) = self.tags() {
            let state = &self.ops[usize::from(op)];
            tags.decide(state.chunk.page, &state.tag);
        }
    }

    /// The page holds nothing any more. Under its claim.
    pub(in crate::worker) fn forget_tag(&self, page: u64) {
        if let Some(tags) = self.tags() {
            tags.forget_pending(page);
        }
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
