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
    claims: Mutex<Claims>,
    released: Condvar,
}

/// Ranges that are locked or waited for, of each file in the order in which they were asked for. One
/// is locked once none before it clashes: so a writer is not kept waiting by readers that come later.
#[derive(Default)]
struct Claims {
    next: u64,
    by_file: HashMap<Ino, Vec<Claim>>,
}

#[derive(Clone, Copy)]
struct Claim {
    number: u64,
    start: u64,
    end: u64,
    mode: Mode,
}

impl Claim {
    fn clashes(&self, other: &Self) -> bool {
        let both_share = (self.mode, other.mode) == (Mode::Shared, Mode::Shared);
        other.start < self.end && self.start < other.end && !both_share
    }
}

/// Who else may be in the range.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Others who share.
    Shared,
    /// Nobody.
    Exclusive,
}

/// A range that is locked, until this is dropped. A thread has one at a time: one that waited for a
/// second might wait for somebody who waits for its first.
pub struct RangeGuard<'a> {
    shard: &'a Shard,
    ino: Ino,
    number: u64,
}

impl RangeLocks {
    /// Waits for bytes `start .. end` of a file.
    pub fn lock(&self, ino: Ino, start: u64, end: u64, mode: Mode) -> RangeGuard<'_> {
        let shard = &self.shards[(ino % SHARDS as u64) as usize];
        let mut claims = lock(&shard.claims);
        let number = claims.add(ino, start, end, mode);
        while !claims.is_first(ino, number) {
            claims = shard
                .released
                .wait(claims)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        RangeGuard { shard, ino, number }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        lock(&self.shard.claims).remove(self.ino, self.number);
        self.shard.released.notify_all();
    }
}

impl Claims {
    fn add(&mut self, ino: Ino, start: u64, end: u64, mode: Mode) -> u64 {
        let number = self.next;
        self.next += 1;
        self.by_file.entry(ino).or_default().push(Claim {
            number,
            start,
            end,
            mode,
        });
        number
    }

    /// Whether none before it clashes with it.
    fn is_first(&self, ino: Ino, number: u64) -> bool {
        let all = self.by_file.get(&ino).map_or(&[][..], Vec::as_slice);
        let at = all.iter().position(|claim| claim.number == number);
        at.is_some_and(|at| !all[..at].iter().any(|before| before.clashes(&all[at])))
    }

    fn remove(&mut self, ino: Ino, number: u64) {
        if let Some(all) = self.by_file.get_mut(&ino) {
            all.retain(|claim| claim.number != number);
            if all.is_empty() {
                self.by_file.remove(&ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_that_come_later_wait_behind_a_writer_and_others_do_not() {
        let mut claims = Claims::default();
        let reader = claims.add(1, 0, 10, Mode::Shared);
        let writer = claims.add(1, 5, 15, Mode::Exclusive);
        let later = claims.add(1, 0, 20, Mode::Shared);
        let elsewhere = claims.add(1, 20, 30, Mode::Shared);
        let beside = claims.add(1, 0, 5, Mode::Shared);
        let other_file = claims.add(2, 0, 10, Mode::Exclusive);
        assert!(claims.is_first(1, reader));
        assert!(!claims.is_first(1, writer));
        assert!(!claims.is_first(1, later));
        assert!(claims.is_first(1, elsewhere));
        assert!(claims.is_first(1, beside));
        assert!(claims.is_first(2, other_file));
        claims.remove(1, reader);
        assert!(claims.is_first(1, writer));
        assert!(!claims.is_first(1, later));
        claims.remove(1, writer);
        assert!(claims.is_first(1, later));
        for number in [later, elsewhere, beside] {
            claims.remove(1, number);
        }
        claims.remove(2, other_file);
        assert!(claims.by_file.is_empty());
    }

    #[test]
    fn a_lock_keeps_its_place_while_it_waits() {
        let locks = RangeLocks::default();
        let order = Mutex::new(Vec::new());
        let waiting = || lock(&locks.shards[1].claims).by_file[&1].len();
        std::thread::scope(|scope| {
            let reader = locks.lock(1, 0, 10, Mode::Shared);
            for (count, mode) in [(2, Mode::Exclusive), (3, Mode::Shared)] {
                let (locks, order) = (&locks, &order);
                scope.spawn(move || {
                    let _range = locks.lock(1, 0, 10, mode);
                    lock(order).push(mode);
                });
                while waiting() < count {
                    std::thread::yield_now();
                }
            }
            drop(reader);
        });
        let order = order.into_inner().expect("no panic");
        assert_eq!(order, [Mode::Exclusive, Mode::Shared]);
    }
}
