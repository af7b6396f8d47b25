//! When slabs that nobody waits for are made: not beside fills.
//!
//! Making a slab takes a core for milliseconds, most of them the kernel's, which gives it up to nobody of
//! another process meanwhile. A fill needs that core, and so does the client that has its chunk fenced.
//! So what the ledger wants ahead is put off a moment after a grant, since a grant may be for a rebuild, and
//! until fills have ended. As many as are waited for are made at once.

use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::ledger::SlabIndex;

/// From a grant to the first fill of its slab: its client attaches it, and connects to nobody. With room
/// to spare.
const AFTER_GRANT: Duration = Duration::from_millis(20);
/// From one fill to the next of the same rebuild, where it yields to requests or tries again.
const AFTER_FILL: Duration = Duration::from_millis(250);

/// Slabs that are to be made.
#[derive(Debug, Default)]
pub(super) struct Stocking {
    /// Not asked of the keeper yet, oldest first.
    put_off: Vec<SlabIndex>,
    /// Asked of it, and not there.
    making: usize,
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

    /// The keeper made a slab, or failed to. Who waited for it fills it now, however long it took.
    pub fn note_made(&mut self, now: Time) {
        self.making = self.making.saturating_sub(1);
        self.quiet_at = self.quiet_at.max(now.after(AFTER_GRANT));
    }

    /// What is to be made now; so many slabs are waited for.
    pub fn take(&mut self, now: Time, fills: usize, awaited: u32) -> Vec<SlabIndex> {
        let is_quiet = fills == 0 && now >= self.quiet_at;
        let count = match (awaited, is_quiet) {
            (0, true) => self.put_off.len(),
            // What else is made would be in the way of those who wait, and of the fills that follow.
            _ => (awaited as usize).saturating_sub(self.making),
        };
        let taken: Vec<_> = self
            .put_off
            .drain(..count.min(self.put_off.len()))
            .collect();
        self.making += taken.len();
        taken
    }

    /// When something may be made that is put off; while fills are under way, or slabs waited for, the
    /// end of those tells.
    pub fn due(&self, fills: usize, awaited: u32) -> Option<Time> {
        (fills == 0 && awaited == 0 && !self.put_off.is_empty()).then_some(self.quiet_at)
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
        assert_eq!(stocking.take(at(0), 0, 0), [1], "a host begins with it");
        stocking.note_grant(at(1000));
        stocking.put_off(2);
        assert_eq!(stocking.due(0, 0), Some(at(1020)));
        stocking.note_grant(at(1015));
        stocking.put_off(3);
        assert!(stocking.take(at(1019), 0, 0).is_empty());
        assert_eq!(
            stocking.take(at(1020), 0, 0),
            [2, 3],
            "whoever comes meanwhile"
        );
        assert_eq!(stocking.due(0, 0), None);
    }

    #[test]
    fn beside_fills_only_what_is_awaited_is_made() {
        let mut stocking = Stocking::default();
        stocking.note_grant(at(0));
        stocking.put_off(1);
        stocking.note_fill(at(5));
        assert_eq!(stocking.due(1, 0), None, "the end of the fill tells");
        assert!(stocking.take(at(10_000), 1, 0).is_empty(), "however long");
        stocking.note_fill(at(10_000));
        assert!(stocking.take(at(10_249), 0, 0).is_empty(), "between two");
        assert_eq!(stocking.due(0, 0), Some(at(10_250)));
        (2..=5).for_each(|slab| stocking.put_off(slab));
        assert_eq!(stocking.take(at(10_010), 1, 2), [1, 2], "two wait");
        assert!(stocking.take(at(10_011), 1, 2).is_empty(), "for these");
        assert_eq!(stocking.take(at(10_012), 1, 3), [3], "one more waits");
        for _ in 0..3 {
            stocking.note_made(at(20_000));
        }
        assert!(stocking.take(at(20_019), 0, 0).is_empty(), "they fill them");
        assert_eq!(stocking.due(0, 0), Some(at(20_020)));
        assert_eq!(stocking.take(at(20_020), 0, 0), [4, 5], "made once");
    }
}
