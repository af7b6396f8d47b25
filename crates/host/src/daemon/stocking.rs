//! When slabs that nobody waits for are made: not beside fills.
//!
//! Making a slab takes a core for milliseconds, most of them the kernel's, which gives it up to nobody of
//! another process meanwhile. A fill needs that core, and so does the client that has its chunk fenced.
//! So what the ledger wants ahead is put off a moment after a grant, since a grant may be for a rebuild, and
//! until fills have ended. Once anybody waits for a slab, all that was put off is made at once.

use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::ledger::SlabIndex;

/// From a grant to the first fill of its slab: its client attaches it, and connects to nobody. With room
/// to spare.
const AFTER_GRANT: Duration = Duration::from_millis(20);
/// From one fill to the next of the same rebuild, where it yields to requests or tries again.
const AFTER_FILL: Duration = Duration::from_millis(250);

/// Slabs that are to be made, and are not asked of the keeper yet.
#[derive(Debug, Default)]
pub(super) struct Stocking {
    put_off: Vec<SlabIndex>,
    /// Nothing is made ahead before.
    quiet_at: Time,
}

impl Stocking {
    /// A slab was granted. Grants that follow each other put nothing off for longer: the stock is there for
    /// those.
    pub fn note_grant(&mut self, now: Time) {
        if self.put_off.is_empty() {
            self.quiet_at = self.quiet_at.max(now.after(AFTER_GRANT));
        }
    }

    /// A fill began, or ended.
    pub fn note_fill(&mut self, now: Time) {
        self.quiet_at = now.after(AFTER_FILL);
    }

    /// The ledger wants a slab made.
    pub fn put_off(&mut self, slab: SlabIndex) {
        self.put_off.push(slab);
    }

    /// What is to be made now; `is_awaited`: somebody waits for a slab.
    pub fn take(&mut self, now: Time, fills: usize, is_awaited: bool) -> Vec<SlabIndex> {
        if is_awaited || (fills == 0 && now >= self.quiet_at) {
            std::mem::take(&mut self.put_off)
        } else {
            Vec::new()
        }
    }

    /// When something may be made that is put off; while fills are under way their end tells.
    pub fn due(&self, fills: usize) -> Option<Time> {
        (fills == 0 && !self.put_off.is_empty()).then_some(self.quiet_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    #[test]
    fn without_fills_the_stock_is_made_a_moment_after_a_grant() {
        let mut stocking = Stocking::default();
        stocking.put_off(1);
        assert_eq!(stocking.take(at(0), 0, false), [1], "a host begins with it");
        stocking.note_grant(at(1000));
        stocking.put_off(2);
        assert_eq!(stocking.due(0), Some(at(1020)));
        stocking.note_grant(at(1015));
        stocking.put_off(3);
        assert!(stocking.take(at(1019), 0, false).is_empty());
        assert_eq!(
            stocking.take(at(1020), 0, false),
            [2, 3],
            "whoever comes meanwhile"
        );
        assert_eq!(stocking.due(0), None);
    }

    #[test]
    fn beside_fills_only_what_is_awaited_is_made() {
        let mut stocking = Stocking::default();
        stocking.note_grant(at(0));
        stocking.put_off(1);
        stocking.note_fill(at(5));
        assert_eq!(stocking.due(1), None, "the end of the fill tells");
        assert!(
            stocking.take(at(10_000), 1, false).is_empty(),
            "however long"
        );
        stocking.note_fill(at(10_000));
        assert!(
            stocking.take(at(10_249), 0, false).is_empty(),
            "between two"
        );
        assert_eq!(stocking.due(0), Some(at(10_250)));
        stocking.put_off(2);
        assert_eq!(stocking.take(at(10_010), 1, true), [1, 2], "somebody waits");
        assert!(stocking.take(at(10_250), 0, false).is_empty(), "made once");
    }
}
