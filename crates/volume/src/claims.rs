//! One writer per page at a time, and reads that notice a writer.
//!
//! A claim word per page slot ([`Word`]). Pages share words by hash; a collision only makes one wait
//! for the other. Without this, two overlapping writes leave a stripe whose splits come from both,
//! and a later loss decodes to bytes that nobody wrote.
//!
//! Concurrency: lock-free, any thread. A holder never waits for another claim, so there is
//! no cycle.

mod word;

pub use word::Word;

/// Claim words of one volume.
#[derive(Debug)]
pub struct Claims {
    words: Box<[Word]>,
}

/// Words per volume: 128 KiB stays in the second-level cache, and with 256 requests in
/// flight two of them meet by chance in 1.6% of cases.
pub const WORD_COUNT: usize = 1 << 14;

impl Claims {
    pub fn new() -> Self {
        Self {
            words: (0..WORD_COUNT).map(|_| Word::new()).collect(),
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
    fn pages_of_one_run_do_not_collide() {
        let claims = Claims::new();
        assert!((0..WORD_COUNT as u64).all(|page| claims.try_claim(page)));
    }
}
