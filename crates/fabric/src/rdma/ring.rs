//! Space in a ring, given out in order and taken back in the same order. Pure.

/// Which bytes of a ring are in use. Positions grow for ever; a place is a position in the ring.
#[derive(Debug)]
pub(super) struct Ring {
    len_bytes: u64,
    head: u64,
    tail: u64,
}

/// A range that was given out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Range {
    /// Where it starts, a multiple of [`ALIGN`].
    pub(super) at: usize,
    /// What [`Ring::release`] takes, for this range and all before it.
    pub(super) end: u64,
}

impl Ring {
    /// A free ring; its length is a multiple of [`ALIGN`].
    pub(super) fn new(len_bytes: usize) -> Self {
        assert!(len_bytes.is_multiple_of(ALIGN));
        Self {
            len_bytes: len_bytes as u64,
            head: 0,
            tail: 0,
        }
    }

    /// A contiguous range, or none until earlier ones are released.
    pub(super) fn take(&mut self, len_bytes: usize) -> Option<Range> {
        let len = len_bytes.next_multiple_of(ALIGN) as u64;
        if self.head == self.tail {
            self.tail = self.tail.next_multiple_of(self.len_bytes);
            self.head = self.tail;
        }
        let mut start = self.tail;
        let place = start % self.len_bytes;
        if place + len > self.len_bytes {
            start += self.len_bytes - place;
        }
        let end = start + len;
        if end - self.head > self.len_bytes {
            return None;
        }
        self.tail = end;
        Some(Range {
            at: (start % self.len_bytes) as usize,
            end,
        })
    }

    /// The end of the range given out last.
    pub(super) fn end(&self) -> u64 {
        self.tail
    }

    /// Frees everything up to `end`.
    pub(super) fn release(&mut self, end: u64) {
        debug_assert!(end <= self.tail);
        // A range that took no bytes may have ended where a free ring then began again.
        self.head = self.head.max(end);
    }

    /// Frees everything.
    pub(super) fn clear(&mut self) {
        self.head = self.tail;
    }
}

/// A cache line, so that no two ranges share one.
pub(super) const ALIGN: usize = 64;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_does_not_wrap() {
        let mut ring = Ring::new(256);
        let first = ring.take(150).unwrap();
        assert_eq!(ring.take(128), None);
        ring.release(first.end);
        assert_eq!(ring.take(128).unwrap().at, 0);
        assert_eq!(ring.take(64).unwrap().at, 128);
        assert_eq!(ring.take(64).unwrap().at, 192);
        assert_eq!(ring.take(64), None);
        ring.clear();
        assert_eq!(ring.take(256).unwrap().at, 0);
    }

    proptest! {
        #[test]
        fn ranges_in_use_do_not_overlap(steps in proptest::collection::vec(0_usize..600, 1..300)) {
            let mut ring = Ring::new(1024);
            let mut used: VecDeque<(Range, usize)> = VecDeque::new();
            for len in steps {
                if len % 3 == 0 && let Some((range, _)) = used.pop_front() {
                    ring.release(range.end);
                    continue;
                }
                let Some(range) = ring.take(len) else {
                    prop_assert!(!used.is_empty(), "a free ring refused {len} bytes");
                    continue;
                };
                prop_assert!(range.at + len <= 1024 && range.at % ALIGN == 0);
                for (other, other_len) in &used {
                    prop_assert!(range.at + len <= other.at || other.at + other_len <= range.at);
                }
                used.push_back((range, len));
            }
        }
    }
}
