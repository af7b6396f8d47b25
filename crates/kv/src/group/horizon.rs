//! The time of a partition and its flushes, as they are once what is under way is committed.

use super::operation::Effect;
use super::owner::{Owner, comes_before};
use super::replica::Xid;
use crate::memory::table::Entry;

/// The time and the flushes after an operation that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Horizon {
    pub(super) xid: Xid,
    /// Seconds since 1970.
    pub(super) now: u32,
    /// A flush that is still to come then.
    pub(super) flush_at: Option<u32>,
    /// Items whose cas numbers [come before](comes_before) this one are gone.
    pub(super) flushed_below: u64,
}

impl Horizon {
    pub(super) fn is_live(&self, entry: &Entry) -> bool {
        let is_expired = entry.expiry != 0 && entry.expiry <= self.now;
        !is_expired && !comes_before(entry.cas, self.flushed_below)
    }
}

impl Owner {
    /// Moves the partition's time on, if it is another: at most once a second.
    pub fn tick(&mut self, now: u32) {
        if now <= self.proposed_now() || self.check_open().is_err() {
            return;
        }
        let cas = self.next_cas();
        let mut after = self.after_backlog();
        after.now = now;
        if after.flush_at.is_some_and(|at| at <= now) {
            (after.flush_at, after.flushed_below) = (None, cas);
        }
        self.push_with(Effect::Tick { now, cas }, after);
    }

    /// Pushes a change of the time or of the flushes, which are so after it.
    pub(super) fn push_with(&mut self, effect: Effect, after: Horizon) -> Xid {
        let xid = self.push(0, b"", effect, None);
        if !self.backlog.is_empty() {
            self.horizon = Some(Horizon { xid, ..after });
        }
        xid
    }

    /// The time and the flushes once everything under way is committed.
    pub(super) fn after_backlog(&self) -> Horizon {
        self.horizon.unwrap_or(Horizon {
            xid: 0,
            now: self.now(),
            flush_at: self.replica.flush_at(),
            flushed_below: 0,
        })
    }

    /// The time once everything under way is committed.
    pub(crate) fn proposed_now(&self) -> u32 {
        self.horizon.map_or(self.now(), |horizon| horizon.now)
    }
}
