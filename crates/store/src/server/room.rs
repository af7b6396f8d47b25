//! When a shard's log is cleaned, and who is told that there is no room.

use super::shard::State;
use crate::medium::Medium;
use crate::pool::{Located, StoreError};
use crate::protocol::{Answer, Refusal};

/// What cleaning may leave out at least, where it is worth the copies of all that is left.
#[derive(Clone, Copy)]
struct Least {
    bytes: u64,
    keys: u64,
}

impl<M: Medium> State<M> {
    /// Whether cleaning goes on, or is to begin: not again for what was left by the last one.
    pub fn is_cleaning_due(&self) -> bool {
        let (used, all) = self.pool.log_bytes();
        let has_grown = used > self.used_after_cleaning + all / 64;
        self.pool.is_cleaning() || self.pool.is_cleaning_due() && has_grown
    }

    /// Whether cleaning is under way, or may leave out more than so much.
    fn may_leave_out(&self, least: Least) -> bool {
        let (used, _) = self.pool.log_bytes();
        self.pool.is_cleaning()
            || used > self.used_after_cleaning + least.bytes
            // Who deletes a few large values adds next to nothing to the log.
            || self.pool.replaced_bytes() > least.bytes
            || self.emptied > least.keys
    }

    /// Whether the log is cleaned for a client that asks for it. Any may, as often as it likes, and
    /// all that is left is copied: so if a part may be left out, or nobody knows what is there.
    pub fn is_worth_cleaning(&self) -> bool {
        let ((used, all), (_, places)) = (self.pool.log_bytes(), self.pool.hashing());
        let least = Least {
            bytes: (used / 64).max(all / 1024),
            keys: (self.pool.keys_in_log() / 64).max(places / 1024),
        };
        (self.used_after_cleaning == 0 && used > 0) || self.may_leave_out(least)
    }

    /// What a client is told; a log or an index that is full is cleaned if that may help.
    pub fn refuse(&mut self, error: &StoreError) -> Refusal {
        let ((_, all), (_, places)) = (self.pool.log_bytes(), self.pool.hashing());
        // For less than that of log or index, all that is left is not copied.
        let (bytes, keys) = (all / 64, places / 64);
        self.refuse_unless(error, Least { bytes, keys })
    }

    fn refuse_unless(&mut self, error: &StoreError, least: Least) -> Refusal {
        if !matches!(error, StoreError::Full) {
            return error.into();
        }
        if !self.is_cleaning_stuck && self.may_leave_out(least) {
            // Asked for while one is under way, another would begin after it.
            self.wants_cleaning |= !self.pool.is_cleaning();
            return Refusal::Busy;
        }
        Refusal::Full
    }

    /// What a client is told whose key does not take a value.
    pub fn refuse_value(&mut self, key: &[u8], value_bytes: usize, error: &StoreError) -> Answer {
        let is_full = matches!(error, StoreError::Full);
        let makes_room = is_full && self.pool.makes_room(key, value_bytes);
        self.refuse_version(key, makes_room, error)
    }

    /// The same of a deletion. One of a value makes room.
    pub fn refuse_deletion(&mut self, key: &[u8], error: &StoreError) -> Answer {
        let makes_room = !matches!(self.pool.locate(key, u64::MAX), Ok(Located::Absent));
        self.refuse_version(key, makes_room, error)
    }

    /// For a version that makes room the log is cleaned for whatever may be left out.
    fn refuse_version(&mut self, key: &[u8], makes_room: bool, error: &StoreError) -> Answer {
        self.want_newest_of(key);
        Answer::Refused(match makes_room {
            true => self.refuse_unless(error, Least { bytes: 0, keys: 0 }),
            false => self.refuse(error),
        })
    }

    /// A key that takes no values takes some again once its newest version is durable, which it is
    /// not by itself under each scheme. Any other is not waited for: groups get smaller by that.
    fn want_newest_of(&mut self, key: &[u8]) {
        if self.pool.is_closed_to_values(key) {
            self.wanted.extend(self.pool.newest_waiting(key));
        }
    }
}
