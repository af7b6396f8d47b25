//! The claim word: who may write a page, and what a reader of it saw.
//!
//! Even when free, odd while a writer holds it, larger by two after each write: a sequence lock whose
//! writers take turns.
//!
//! Every interleaving is tried by `tests/interleavings.rs`, which compiles this file with the model's
//! atomics as `crate::sync`.

use crate::sync::{AtomicU64, Ordering, fence};

/// Orders the writers of one page, and lets readers notice them.
#[derive(Debug)]
pub struct ClaimWord(AtomicU64);

impl ClaimWord {
    /// Free.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes it for writing; false while another writer has it.
    pub fn try_claim(&self) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        seen & 1 == 0 && self.try_claim_at(seen)
    }

    /// Takes it for writing if nobody has written since `version` was taken.
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

    /// Gives it back; every byte written under the claim is visible before this.
    pub fn release(&self) {
        // The holder is the only one who changes an odd word: no locked instruction is needed.
        self.0
            .store(self.0.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Starts a read: the version to pass to [`ClaimWord::unchanged`]; `None` while a writer has it.
    pub fn version(&self) -> Option<u64> {
        let seen = self.0.load(Ordering::Acquire);
        (seen & 1 == 0).then_some(seen)
    }

    /// The version under which a writer has it; `None`: nobody.
    pub fn held_version(&self) -> Option<u64> {
        let seen = self.0.load(Ordering::Acquire);
        (seen & 1 == 1).then_some(seen)
    }

    /// Whether no other writer held it since its writer had it under `version`, which is odd.
    pub fn unchanged_in_flight(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        let seen = self.0.load(Ordering::Relaxed);
        // It still has it, or has given it back.
        seen == version || seen == version + 1
    }

    /// Whether no writer held it since `version` was taken.
    pub fn unchanged(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == version
    }
}
