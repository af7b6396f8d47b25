//! Pages of the volume, each with a count of the address spaces whose page it holds.

use cenote_volume::PAGE_BYTES;

/// No slot.
pub const NONE: u32 = u32::MAX;

/// Slots that are free again before pages go out again, after there was none: at most so many, and
/// at most this part of a small volume's.
const SLACK: u32 = 1024;
const SLACK_PART: u32 = 16;

/// The slots of a volume.
pub struct Slots {
    counts: Vec<u32>,
    free: Vec<u32>,
    count: u32,
}

impl Slots {
    /// Of a volume of so many bytes.
    pub fn of_volume(size_bytes: u64) -> Self {
        let count = size_bytes / PAGE_BYTES as u64;
        Self::new(count.min(u64::from(NONE - 1)) as u32)
    }

    /// So many slots, all free.
    pub fn new(count: u32) -> Self {
        Self {
            counts: Vec::new(),
            free: Vec::new(),
            count,
        }
    }

    /// A slot for the next bytes of a page that is in `slot` so far: another, if others share that.
    pub fn renew(&mut self, slot: u32) -> Option<u32> {
        if slot != NONE && self.counts[slot as usize] == 1 {
            return Some(slot);
        }
        let new = match self.free.pop() {
            Some(new) => {
                self.counts[new as usize] = 1;
                new
            }
            None if (self.counts.len() as u32) < self.count => {
                self.counts.push(1);
                self.counts.len() as u32 - 1
            }
            None => return None,
        };
        self.release(slot);
        Some(new)
    }

    /// One more address space has what is in a slot.
    pub fn share(&mut self, slot: u32) {
        if slot != NONE {
            self.counts[slot as usize] += 1;
        }
    }

    /// One less.
    pub fn release(&mut self, slot: u32) {
        if slot != NONE {
            let count = &mut self.counts[slot as usize];
            *count -= 1;
            if *count == 0 {
                self.free.push(slot);
            }
        }
    }

    /// Slots that there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether fewer are free than are to be, before pages go out again after there was none.
    pub fn are_scarce(&self) -> bool {
        let slack = SLACK.min(self.count / SLACK_PART).max(1);
        self.count - self.used() < slack
    }

    /// Slots in use.
    pub fn used(&self) -> u32 {
        (self.counts.len() - self.free.len()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_slot_is_left_alone_and_free_ones_come_back() {
        let mut slots = Slots::new(2);
        let first = slots.renew(NONE).unwrap();
        assert_eq!(slots.renew(first), Some(first));
        slots.share(first);
        let second = slots.renew(first).unwrap();
        assert_ne!(first, second);
        assert_eq!(slots.renew(NONE), None);
        assert_eq!(slots.used(), 2);
        slots.release(first);
        assert_eq!(slots.renew(NONE), Some(first));
    }

    #[test]
    fn a_small_volume_that_has_slots_again_takes_pages_again() {
        for (count, enough) in [
            (1, 1),
            (64, 4),
            (1024, 64),
            (16 * 1024, 1024),
            (65_536, 1024),
        ] {
            let mut slots = Slots::new(count);
            let taken: Vec<u32> = std::iter::from_fn(|| slots.renew(NONE)).collect();
            assert_eq!(taken.len() as u32, count);
            for free in 0..enough {
                assert!(slots.are_scarce(), "{free} of {count} are free");
                slots.release(taken[free as usize]);
            }
            assert!(!slots.are_scarce(), "{enough} of {count} are free");
        }
    }

    #[test]
    fn the_largest_volume_has_slots_for_pages() {
        assert!(!Slots::of_volume(u64::MAX).are_scarce());
    }
}
