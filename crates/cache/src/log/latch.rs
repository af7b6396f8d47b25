//! Lock, version and lengths of one record in memory, in the record's second word.
//!
//! Who changes the value in place locks; who reads it takes the word before and after, and reads
//! again when it changed. Who replaces a record for good seals it: whoever waits for the lock then
//! looks the key up again.

use super::sync::{AtomicU64, Ordering, fence, yield_now};

const LOCKED: u64 = 1;
const SEALED: u64 = 1 << 1;
const VERSION: u64 = 1 << 2;
/// Lock, seal and version.
const LOW: u64 = u32::MAX as u64;

/// Waits until nobody holds the lock, and returns the word to hand to [`is_unchanged`].
#[inline]
pub fn begin_read(word: &AtomicU64) -> u64 {
    loop {
        let seen = word.load(Ordering::Acquire);
        if seen & LOCKED == 0 {
            return seen;
        }
        yield_now();
    }
}

/// Whether what was read since [`begin_read`] belongs together.
#[inline]
pub fn is_unchanged(word: &AtomicU64, seen: u64) -> bool {
    fence(Ordering::Acquire);
    word.load(Ordering::Relaxed) == seen
}

/// Locks. `None` if the record is sealed.
pub fn lock(word: &AtomicU64) -> Option<u64> {
    loop {
        let seen = word.load(Ordering::Relaxed);
        if seen & SEALED != 0 {
            return None;
        }
        if seen & LOCKED == 0
            && word
                .compare_exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            // No store to the value may be seen before the lock.
            fence(Ordering::Release);
            return Some(seen);
        }
        yield_now();
    }
}

/// Unlocks a word that was `seen` when it was locked, with `lengths` in its high half.
pub fn unlock(word: &AtomicU64, seen: u64, lengths: u64, is_sealed: bool) {
    let version = seen.wrapping_add(VERSION) & LOW & !(LOCKED | SEALED);
    let seal = if is_sealed { SEALED } else { 0 };
    word.store(lengths & !LOW | version | seal, Ordering::Release);
}
