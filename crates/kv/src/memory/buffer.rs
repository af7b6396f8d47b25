//! Buffers for units on their way, used again and again.
//!
//! A run of units is so long that the allocator asks the system for it and gives it back: without
//! these a recovery spends more on pages that are made and cleared than on copying and coding. Each
//! thread keeps its own; what it has not needed for a while it gives back ([`trim`]).

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;

/// The longest that are kept: a run of units, and what a message says besides.
const KEPT_BYTES: usize = (256 << 10) + (4 << 10);
/// What is shorter has one of its own length, so that nothing small keeps much more than itself.
const KEPT_BYTES_MIN: usize = KEPT_BYTES / 2;
/// Most that a thread keeps: as many as recoveries have under way.
const KEPT_MAX: usize = 64;

/// What a thread keeps.
#[derive(Default)]
struct Kept {
    free: Vec<Box<[u8]>>,
    /// The fewest that were free since the last [`trim`]: nobody needed them.
    idle: usize,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// Some bytes, which others may have used before.
#[derive(Debug)]
pub struct Buffer {
    bytes: Box<[u8]>,
    length: usize,
}

impl Buffer {
    /// One of `length` bytes, of any value.
    pub fn new(length: usize) -> Self {
        let kept = || {
            KEPT.with_borrow_mut(|kept| {
                let found = kept.free.pop();
                kept.idle = kept.idle.min(kept.free.len());
                found
            })
        };
        let fresh = |bytes| vec![0; bytes].into_boxed_slice();
        let bytes = match length {
            KEPT_BYTES_MIN..=KEPT_BYTES => kept().unwrap_or_else(|| fresh(KEPT_BYTES)),
            other => fresh(other),
        };
        Self { bytes, length }
    }

    /// The same bytes, shared.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.len() != KEPT_BYTES {
            return;
        }
        // At the end of a thread there may be nobody to keep it.
        let kept = KEPT.try_with(|kept| {
            let free = &mut kept.borrow_mut().free;
            if free.len() < KEPT_MAX {
                free.push(bytes);
            }
        });
        kept.unwrap_or_default();
    }
}

/// Gives back what this thread has not needed since it last did so. To be called now and then.
pub fn trim() {
    KEPT.with_borrow_mut(|kept| {
        let needed = kept.free.len() - kept.idle;
        kept.free.truncate(needed);
        kept.idle = needed;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free() -> usize {
        KEPT.with_borrow(|kept| kept.free.len())
    }

    #[test]
    fn what_was_used_is_used_again_and_given_back_when_nobody_needs_it() {
        let lengths = KEPT_BYTES_MIN..KEPT_BYTES_MIN + KEPT_MAX + 3;
        let all: Vec<Buffer> = lengths.clone().map(Buffer::new).collect();
        let mut same = all.iter().zip(lengths);
        assert!(same.all(|(buffer, length)| buffer.len() == length));
        let shared = Buffer::new(KEPT_BYTES).freeze();
        drop(all);
        assert_eq!(free(), KEPT_MAX);
        let part = shared.slice(1..3);
        drop(shared);
        assert_eq!(part.len(), 2, "a part keeps the whole");
        trim();
        assert_eq!(free(), KEPT_MAX, "all of them were in use since the start");
        drop((Buffer::new(KEPT_BYTES), Buffer::new(KEPT_BYTES)));
        trim();
        assert_eq!(free(), 2);
        trim();
        assert_eq!(free(), 0);
    }

    #[test]
    fn others_have_their_own_length_and_are_not_kept() {
        for length in [0, 1, KEPT_BYTES_MIN - 1, KEPT_BYTES + 1] {
            let buffer = Buffer::new(length);
            assert_eq!((buffer.len(), buffer.bytes.len()), (length, length));
        }
        assert_eq!(free(), 0);
    }
}
