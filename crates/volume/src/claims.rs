//! One writer per page at a time, and reads that notice a writer.
//!
//! A claim word per page slot: even when free, odd while a writer holds it, larger by two
//! after each write. Pages share words by hash; a collision only makes one wait for the
//! other. Without this, two overlapping writes leave a stripe whose splits come from both,
//! and a later loss decodes to bytes that nobody wrote.
//!
//! Concurrency: lock-free, any thread. A holder never waits for another claim, so there is
//! no cycle.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Claim words of one volume.
#[derive(Debug)]
pub struct Claims {
    words: Box<[AtomicU64]>,
}

/// Words per volume: 128 KiB stays in the second-level cache, and with 256 requests in
/// flight two of them meet by chance in 1.6% of cases.
pub const WORD_COUNT: usize = 1 << 14;

impl Claims {
    pub fn new() -> Self {
        Self {
            words: (0..WORD_COUNT).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Which of the words is the page's.
    pub fn index(page: u64) -> usize {
        // Neighbouring pages get different words and share a cache line, which suits runs.
        let mixed = page ^ (page >> 14) ^ (page >> 28);
        usize::try_from(mixed & (WORD_COUNT as u64 - 1)).expect("masked to 14 bits")
    }

    fn word(&self, page: u64) -> &AtomicU64 {
        &self.words[Self::index(page)]
    }

    /// Takes the page for writing; false while another writer has it.
    pub fn try_claim(&self, page: u64) -> bool {
        let word = self.word(page);
        let seen = word.load(Ordering::Relaxed);
        let taken = seen & 1 == 0
            && word
                .compare_exchange(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if taken {
            // The odd value is visible before any byte of the write is.
            fence(Ordering::Release);
        }
        taken
    }

    /// Takes the page for writing if nobody has written it since `version` was taken.
    pub fn try_claim_at(&self, page: u64, version: u64) -> bool {
        let taken = self
            .word(page)
            .compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if taken {
            fence(Ordering::Release);
        }
        taken
    }

    /// Gives the page back; every byte written under the claim is visible before this.
    pub fn release(&self, page: u64) {
        let word = self.word(page);
        // The holder is the only one who changes an odd word: no locked instruction is needed.
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Starts a read: the version to pass to [`Claims::unchanged`]; `None` while a writer has the page.
    pub fn version(&self, page: u64) -> Option<u64> {
        let seen = self.word(page).load(Ordering::Acquire);
        (seen & 1 == 0).then_some(seen)
    }

    /// The version under which a writer has the page, or one that shares its word; `None`: nobody.
    pub fn held_version(&self, page: u64) -> Option<u64> {
        let seen = self.word(page).load(Ordering::Acquire);
        (seen & 1 == 1).then_some(seen)
    }

    /// Whether no other writer held the page since its writer had it under `version`, which is odd.
    pub fn unchanged_in_flight(&self, page: u64, version: u64) -> bool {
        fence(Ordering::Acquire);
        let seen = self.word(page).load(Ordering::Relaxed);
        // It still has it, or has given it back.
        seen == version || seen == version + 1
    }

    /// Whether no writer held the page since `version` was taken.
    pub fn unchanged(&self, page: u64, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.word(page).load(Ordering::Relaxed) == version
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
