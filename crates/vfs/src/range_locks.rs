//! Locks on ranges of files' bytes: what keeps a reader's blocks its file's while it reads them.
//!
//! Held over the medium's I/O, and never while a table is locked. Shared by readers, exclusive for
//! whoever writes, frees or moves blocks.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex};

use crate::area::lock;
use crate::records::Ino;

/// Locks on ranges of every file.
pub struct RangeLocks {
    shards: [Shard; SHARDS],
}

impl Default for RangeLocks {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Shard::default()),
        }
    }
}

/// Arbitrary; files in different ones do not meet.
const SHARDS: usize = 64;

#[derive(Default)]
struct Shard {
    held: Mutex<HashMap<Ino, Vec<Held>>>,
    released: Condvar,
}

#[derive(Clone, Copy, Eq, PartialEq)]
struct Held {
    start: u64,
    end: u64,
    mode: Mode,
}

/// Who else may be in the range.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Others who share.
    Shared,
    /// Nobody.
    Exclusive,
}

/// A range that is locked, until this is dropped.
pub struct RangeGuard<'a> {
    shard: &'a Shard,
    ino: Ino,
    held: Held,
}

impl RangeLocks {
    /// Waits for bytes `start .. end` of a file.
    pub fn lock(&self, ino: Ino, start: u64, end: u64, mode: Mode) -> RangeGuard<'_> {
        let shard = &self.shards[(ino % SHARDS as u64) as usize];
        let wanted = Held { start, end, mode };
        let mut held = lock(&shard.held);
        while held.get(&ino).is_some_and(|all| {
            let clashes = |other: &Held| {
                let both_share = (mode, other.mode) == (Mode::Shared, Mode::Shared);
                other.start < end && start < other.end && !both_share
            };
            all.iter().any(clashes)
        }) {
            held = shard
                .released
                .wait(held)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        held.entry(ino).or_default().push(wanted);
        RangeGuard {
            shard,
            ino,
            held: wanted,
        }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut held = lock(&self.shard.held);
        if let Some(all) = held.get_mut(&self.ino) {
            if let Some(at) = all.iter().position(|held| *held == self.held) {
                all.swap_remove(at);
            }
            if all.is_empty() {
                held.remove(&self.ino);
            }
        }
        self.shard.released.notify_all();
    }
}
