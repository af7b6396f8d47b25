//! A claim word: even when free, odd while a writer holds it, larger by two after each write.
//!
//! Every interleaving of writers and readers of a page is tried by `tests/protocols_loom.rs`, which
//! compiles this file with the model's atomics as `crate::sync`.

use crate::sync::{AtomicU64, Ordering, fence};

/// Who writes a page, and how often it was written.
#[derive(Debug)]
pub struct Word(AtomicU64);

impl Word {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes the page for writing; false while another writer has it.
    #[inline]
    pub fn try_claim(&self) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        seen & 1 == 0 && self.try_claim_at(seen)
    }

    /// Takes the page for writing if nobody has written it since `version` was taken.
    #[inline]
    pub fn try_claim_at(&self, version: u64) -> bool {
        let taken = self
            .0
            .compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if taken {
            // The odd value is visible before any byte of the write is.
            fence(Ordering::Release);
        }
        taken
    }

    /// Gives the page back; every byte written under the claim is visible before this.
    #[inline]
    pub fn release(&self) {
        // The holder is the only one who changes an odd word: no locked instruction is needed.
        self.0
            .store(self.0.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Starts a read: the version to pass to [`Word::unchanged`]; `None` while a writer has the page.
    #[inline]
    pub fn version(&self) -> Option<u64> {
        let seen = self.0.load(Ordering::Acquire);
        (seen & 1 == 0).then_some(seen)
    }

    /// The version under which a writer has the page, or one that shares its word; `None`: nobody.
    #[inline]
    pub fn held_version(&self) -> Option<u64> {
        let seen = self.0.load(Ordering::Acquire);
        (seen & 1 == 1).then_some(seen)
    }

    /// Whether no other writer held the page since its writer had it under `version`, which is odd.
    #[inline]
    pub fn unchanged_in_flight(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        let seen = self.0.load(Ordering::Relaxed);
        // It still has it, or has given it back.
        seen == version || seen == version + 1
    }

    /// Whether no writer held the page since `version` was taken.
    #[inline]
    pub fn unchanged(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == version
    }
}
