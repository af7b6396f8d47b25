//! Pages that the client keeps a tag of: bytes are sealed, and believed only with their tag.
//!
//! With a checksum a page is what it was; with a seal it leaves encrypted and is believed only as what the
//! seal says. Splits that make no page of its tag are set aside in turn until the rest makes it.
//!
//! Invariants:
//! - Nothing sealed is decrypted in place: what goes to the reader was authenticated.
//! - A page whose last write ended unknown is what it was or what was written, as a whole.

use cenote_codec::PARITY_MAX;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::splits::Splits;
use super::verbs::bits;
use crate::PAGE_BYTES;
use crate::core::Pages;
use crate::integrity::{Integrity, NUMBER_BLOCK, Sealer, Tag};
use crate::marks::Soundness;

/// A worker's own part of protecting pages: room, and numbers for seals.
pub struct Guard {
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

/// A page whose bytes are to be those of its tag.
#[derive(Clone, Copy)]
pub struct Sought {
    pub page: u64,
    pub tag: Tag,
    /// Where its plain bytes go, if it is sealed: a whole page that nothing else refers to; to the guard
    /// without.
    pub to: Option<*mut u8>,
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

    /// The plain page of a sealed volume that was accepted last and went to nobody.
    pub fn plain(&self) -> &[u8; PAGE_BYTES] {
        &self.plain
    }

    /// As if a page of zeros had been accepted.
    pub fn clear_plain(&mut self) {
        self.plain.fill(0);
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

    /// Encrypts a page into `sealed`, or what `sealed` has where there is no `plain`: its tag.
    pub fn seal(
        &mut self,
        sealer: &Sealer,
        page: u64,
        plain: Option<&[u8]>,
        sealed: &mut [u8],
    ) -> Tag {
        let number = self.take_number(sealer);
        let plain = plain.unwrap_or_else(|| {
            self.plain.copy_from_slice(sealed);
            &*self.plain
        });
        sealer.seal(page, number, plain, sealed)
    }

    /// The tag that these bytes have, if it is the page's or a pending one.
    ///
    /// `bytes` is a whole page that nothing writes meanwhile.
    pub fn accept(&mut self, pages: &Pages, sought: Sought, bytes: *const u8) -> Option<Tag> {
        let Sought { page, tag, to } = sought;
        let to = to.unwrap_or(self.plain.as_mut_ptr());
        let is_doubtful = pages.marks.soundness(page) == Soundness::Doubtful;
        // SAFETY: `bytes` as the caller says. `to` is a whole page of whoever reads or the guard's own; it is
        // written only for a sealed volume, whose pages never lie in either.
        unsafe {
            let bytes = std::slice::from_raw_parts(bytes, PAGE_BYTES);
            fitting(&pages.integrity, page, bytes, tag, is_doubtful, to)
        }
    }

    /// Looks for k of the splits that make the page of its tag: that tag, and the splits that differ from what
    /// these make. The page is made whole of them.
    pub fn search(
        &mut self,
        pages: &Pages,
        sought: Sought,
        splits: &Splits<'_>,
        present: u64,
    ) -> Option<(Tag, u64)> {
        let found = match splits.cut.k() {
            1 => self.search_copies(pages, sought, splits, present),
            _ => self.search_sets(pages, sought, splits, present),
        };
        let wrong = found.map(|tag| (tag, self.unlike_candidate(splits, present)));
        if wrong.is_some() {
            // SAFETY: a whole page each, which do not overlap; no verb of the operation is out.
            unsafe {
                splits
                    .page
                    .copy_from_nonoverlapping(self.candidate.as_ptr(), PAGE_BYTES)
            };
        }
        wrong
    }

    fn search_copies(
        &mut self,
        pages: &Pages,
        sought: Sought,
        splits: &Splits<'_>,
        present: u64,
    ) -> Option<Tag> {
        bits(present).find_map(|copy| {
            self.candidate[..PAGE_BYTES].copy_from_slice(splits.split(copy));
            self.accept(pages, sought, self.candidate.as_ptr())
        })
    }

    fn search_sets(
        &mut self,
        pages: &Pages,
        sought: Sought,
        splits: &Splits<'_>,
        present: u64,
    ) -> Option<Tag> {
        let spare = (present.count_ones() as usize).saturating_sub(splits.cut.k());
        let sets = (1..=spare).flat_map(|size| subsets(present, size));
        sets.take(TRIES_MAX).find_map(|aside| {
            self.make_candidate(splits, present & !aside);
            self.accept(pages, sought, self.candidate.as_ptr())
        })
    }

    /// Makes the candidate of these splits.
    fn make_candidate(&mut self, splits: &Splits<'_>, present: u64) {
        let candidate = &mut self.candidate[..PAGE_BYTES];
        candidate.copy_from_slice(splits.page_bytes());
        let code = splits.code().expect("k is above 1");
        let decoded = code.reconstruct(present, candidate, splits.parity_splits());
        decoded.expect("k splits of a valid code are present");
    }

    /// Splits that were read and differ from what the page as it lies makes of them.
    pub fn unlike_page(&mut self, splits: &Splits<'_>, present: u64) -> u64 {
        self.candidate[..PAGE_BYTES].copy_from_slice(splits.page_bytes());
        self.unlike_candidate(splits, present)
    }

    /// Splits that were read and differ from what the candidate makes of them.
    fn unlike_candidate(&mut self, splits: &Splits<'_>, present: u64) -> u64 {
        let (k, len) = (splits.cut.k(), splits.cut.split_bytes());
        let (page, parities) = self.candidate.split_at_mut(PAGE_BYTES);
        if let Some(code) = splits.code() {
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
