//! Which pages hold data. A page whose bit is clear reads as zeros without touching a host.
//!
//! A bit changes only under the page's claim, so a reader that finds its claim version
//! unchanged saw the right bit.

use std::sync::atomic::{AtomicU64, Ordering};

/// One bit per page of the volume; grows with it up to a limit fixed at the start.
#[derive(Debug)]
pub struct Bitmap {
    // Zeroed pages of the allocator: a sparse volume's bitmap costs memory only where it was written.
    words: Box<[AtomicU64]>,
}

impl Bitmap {
    pub fn new(page_count: u64) -> Self {
        let words =
            usize::try_from(page_count.div_ceil(64)).expect("volume sizes fit the address space");
        let zeroed = vec![0_u64; words].into_boxed_slice();
        let raw = Box::into_raw(zeroed) as *mut [AtomicU64];
        // SAFETY: AtomicU64 has the size, alignment and bit validity of u64, and the box is owned.
        // WHY UNSAFE: collecting atomics would touch 32 MiB for a 1 TiB volume; this leaves the pages unbacked.
        let words = unsafe { Box::from_raw(raw) };
        Self { words }
    }

    fn place(page: u64) -> (usize, u64) {
        (
            usize::try_from(page / 64).expect("pages fit the address space"),
            1 << (page % 64),
        )
    }

    pub fn contains(&self, page: u64) -> bool {
        let (word, bit) = Self::place(page);
        self.words[word].load(Ordering::Acquire) & bit != 0
    }

    pub fn insert(&self, page: u64) {
        let (word, bit) = Self::place(page);
        // Most writes overwrite: a load avoids a locked instruction.
        if self.words[word].load(Ordering::Relaxed) & bit == 0 {
            self.words[word].fetch_or(bit, Ordering::Release);
        }
    }

    pub fn remove(&self, page: u64) {
        let (word, bit) = Self::place(page);
        self.words[word].fetch_and(!bit, Ordering::Release);
    }

    /// The first page at or after `from` and before `end` whose bit is `set`.
    pub fn next(&self, from: u64, end: u64, set: bool) -> Option<u64> {
        let mut page = from;
        while page < end {
            let (word, _) = Self::place(page);
            let value = self.words[word].load(Ordering::Acquire);
            let wanted = if set { value } else { !value } & (u64::MAX << (page % 64));
            if wanted != 0 {
                let found = page / 64 * 64 + u64::from(wanted.trailing_zeros());
                return (found < end).then_some(found);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }

    /// Pages with data in `from..end`.
    pub fn count(&self, from: u64, end: u64) -> u64 {
        let mut total = 0;
        let mut page = from;
        while page < end {
            let (word, _) = Self::place(page);
            let mut value = self.words[word].load(Ordering::Relaxed) & (u64::MAX << (page % 64));
            let next = (page / 64 + 1) * 64;
            if next > end {
                value &= u64::MAX >> (next - end);
            }
            total += u64::from(value.count_ones());
            page = next;
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_and_count_match_a_plain_array() {
        let bitmap = Bitmap::new(300);
        let pages = [0_u64, 1, 63, 64, 127, 200, 299];
        pages.iter().for_each(|&page| bitmap.insert(page));
        bitmap.insert(5);
        bitmap.remove(5);
        for from in 0..300 {
            for end in [from, from + 1, 64, 65, 250, 300] {
                let model = pages
                    .iter()
                    .copied()
                    .filter(|&page| page >= from && page < end);
                assert_eq!(
                    bitmap.next(from, end, true),
                    model.clone().min(),
                    "{from}..{end}"
                );
                if end >= from {
                    assert_eq!(
                        bitmap.count(from, end),
                        model.count() as u64,
                        "{from}..{end}"
                    );
                }
            }
        }
        assert_eq!(bitmap.next(63, 300, false), Some(65));
    }
}
