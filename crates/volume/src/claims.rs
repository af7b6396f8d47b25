//! One writer per page at a time, and reads that notice a writer.
//!
//! A claim word per page slot ([`Word`]). Pages share words by hash; a collision only makes one wait
//! for the other. Without this, two overlapping writes leave a stripe whose splits come from both,
//! and a later loss decodes to bytes that nobody wrote.
//!
//! A holder whose write waits for slabs that are out of reach says so (**stranded**): nobody knows when it
//! ends, and requests that meet its claim are errors meanwhile.
//!
//! Concurrency: lock-free, any thread. A holder never waits for another claim, so there is
//! no cycle.

mod word;

use std::sync::atomic::{AtomicU64, Ordering};

pub use word::Word;

/// Claim words of one volume.
#[derive(Debug)]
pub struct Claims {
    words: Box<[Word]>,
    // A bit for each word.
    stranded: Box<[AtomicU64]>,
}

/// Words per volume: 128 KiB stays in the second-level cache, and with 256 requests in
/// flight two of them meet by chance in 1.6% of cases.
pub const WORD_COUNT: usize = 1 << 14;

const BITS: usize = u64::BITS as usize;

impl Claims {
    pub fn new() -> Self {
        Self {
            words: (0..WORD_COUNT).map(|_| Word::new()).collect(),
            stranded: (0..WORD_COUNT / BITS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Which of the words is the page's.
    pub fn index(page: u64) -> usize {
        // Neighbouring pages get different words and share a cache line, which suits runs.
        let mixed = page ^ (page >> 14) ^ (page >> 28);
        usize::try_from(mixed & (WORD_COUNT as u64 - 1)).expect("masked to 14 bits")
    }

    /// The page's word.
    pub fn word(&self, page: u64) -> &Word {
        &self.words[Self::index(page)]
    }

    /// See [`Word::try_claim`].
    pub fn try_claim(&self, page: u64) -> bool {
        self.word(page).try_claim()
    }

    /// See [`Word::try_claim_at`].
    pub fn try_claim_at(&self, page: u64, version: u64) -> bool {
        self.word(page).try_claim_at(version)
    }

    /// See [`Word::release`].
    pub fn release(&self, page: u64) {
        self.word(page).release();
    }

    /// See [`Word::version`].
    pub fn version(&self, page: u64) -> Option<u64> {
        self.word(page).version()
    }

    /// See [`Word::unchanged_in_flight`].
    pub fn unchanged_in_flight(&self, page: u64, version: u64) -> bool {
        self.word(page).unchanged_in_flight(version)
    }

    /// Says whether the write that has the page's claim waits for slabs that are out of reach. Under the
    /// claim, which goes only when none does.
    pub fn set_stranded(&self, page: u64, is_stranded: bool) {
        let index = Self::index(page);
        let (bits, bit) = (&self.stranded[index / BITS], 1 << (index % BITS));
        match is_stranded {
            true => bits.fetch_or(bit, Ordering::AcqRel),
            false => bits.fetch_and(!bit, Ordering::AcqRel),
        };
    }

    /// Whether who has the page's claim waits for slabs that are out of reach.
    pub fn is_stranded(&self, page: u64) -> bool {
        let index = Self::index(page);
        self.stranded[index / BITS].load(Ordering::Acquire) >> (index % BITS) & 1 == 1
    }

    /// See [`Word::unchanged`].
    pub fn unchanged(&self, page: u64, version: u64) -> bool {
        self.word(page).unchanged(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_page_refuses_writers_and_readers() {
        let claims = Claims::new();
        let version = claims.version(7).unwrap();
        assert!(claims.try_claim(7));
        assert!(!claims.try_claim(7));
        assert_eq!(claims.version(7), None);
        claims.release(7);
        assert!(
            !claims.unchanged(7, version),
            "a read across a write is taken again"
        );
        assert!(claims.try_claim(7));
        claims.release(7);
    }

    #[test]
    fn a_page_is_stranded_as_long_as_its_writer_says_so_and_its_neighbours_are_not() {
        let claims = Claims::new();
        claims.set_stranded(7, true);
        assert!(claims.is_stranded(7) && !claims.is_stranded(6) && !claims.is_stranded(8));
        claims.set_stranded(8, true);
        claims.set_stranded(7, false);
        assert!(!claims.is_stranded(7) && claims.is_stranded(8));
    }

    #[test]
    fn pages_of_one_run_do_not_collide() {
        let claims = Claims::new();
        assert!((0..WORD_COUNT as u64).all(|page| claims.try_claim(page)));
    }
}
