//! Numbers of address spaces, of 24 bits: what is under way for one says whose it is by these.

use std::collections::HashSet;

const MASK: u32 = 0x00ff_ffff;

/// The numbers that are in use, and which comes next.
pub struct Ids {
    last: u32,
    used: HashSet<u32>,
    /// Address spaces that are served at once.
    most: usize,
}

impl Ids {
    pub fn new(most: usize) -> Self {
        Self {
            last: 0,
            used: HashSet::new(),
            most,
        }
    }

    /// Whether no other address space is served. One that is not served takes a number, too.
    pub fn is_full(&self) -> bool {
        self.used.len() >= self.most
    }

    /// A number that no address space has; 0 is none. There are fewer address spaces than numbers:
    /// each has a descriptor.
    pub fn take(&mut self) -> u32 {
        loop {
            self.last = ((self.last + 1) & MASK).max(1);
            if self.used.insert(self.last) {
                return self.last;
            }
        }
    }

    /// The address space is gone.
    pub fn release(&mut self, id: u32) {
        self.used.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_in_use_are_passed_over_when_they_begin_again() {
        let mut ids = Ids::new(3);
        let (first, second) = (ids.take(), ids.take());
        assert_eq!((first, second), (1, 2));
        ids.last = MASK - 1;
        assert_eq!(ids.take(), MASK);
        ids.release(second);
        assert_eq!(ids.take(), second);
        assert!(ids.is_full());
        assert_eq!(ids.take(), 3);
    }
}
