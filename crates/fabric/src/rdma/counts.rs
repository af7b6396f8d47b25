//! How far the messages of two rings went, in bytes that never wrap. Pure.
//!
//! Each side has the count of what it put into the other's ring, and of what it took out of its
//! own. What the other says of its counts is checked: one that lies harms nothing but its connection.

use crate::calls::Broken;

/// The ring at the other side, which this one writes.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Bytes put in so far; told up to `told`.
    tail: u64,
    told: u64,
    /// Bytes that the other side has taken out, as it said last.
    head: u64,
}

impl Outgoing {
    /// Bytes that still fit.
    pub(super) fn room(&self) -> usize {
        RING_BYTES - (self.tail - self.head) as usize
    }

    /// The count at which the next byte goes in.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// The count up to which the other side was told.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// Puts `len` bytes in.
    ///
    /// # Panics
    /// If they do not fit.
    pub(super) fn put(&mut self, len: usize) {
        assert!(len <= self.room());
        self.tail += len as u64;
    }

    /// The other side is told of all that is in; the number that says so.
    pub(super) fn tell(&mut self) -> u32 {
        self.told = self.tail;
        self.tail as u32
    }

    /// The other side says how much it took out.
    pub(super) fn hear(&mut self, head: u64) -> Result<(), Broken> {
        if head < self.head || head > self.told {
            return Err(Broken::Protocol("a reader's count that cannot be"));
        }
        self.head = head;
        Ok(())
    }
}

/// The ring here, which the other side writes.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// Bytes taken out so far; said up to `said`.
    head: u64,
    said: u64,
    /// Bytes that the other side has put in.
    tail: u64,
}

impl Incoming {
    /// The count at which the next byte comes out.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Bytes that are here.
    pub(super) fn there(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Takes `len` bytes out.
    ///
    /// # Panics
    /// If they are not here.
    pub(super) fn take(&mut self, len: usize) {
        assert!(len <= self.there());
        self.head += len as u64;
    }

    /// The other side says how far it put bytes in, by the low half of its count.
    pub(super) fn hear(&mut self, tail: u32) -> Result<(), Broken> {
        let more = tail.wrapping_sub(self.tail as u32) as usize;
        if self.there() + more > RING_BYTES {
            return Err(Broken::Protocol("a writer's count that cannot be"));
        }
        self.tail += more as u64;
        Ok(())
    }

    /// Whether the other side is to be told of room though there is nothing else to tell: it knows
    /// of at least three quarters of the ring without it.
    pub(super) fn owes_room(&self) -> bool {
        self.head - self.said >= RING_BYTES as u64 / 4
    }

    /// Says how much was taken out.
    pub(super) fn say(&mut self) -> u64 {
        self.said = self.head;
        self.head
    }
}

/// The two parts of `len` bytes at a count: place in the ring and length of each.
pub(super) fn parts(count: u64, len: usize) -> [(usize, usize); 2] {
    let at = (count % RING_BYTES as u64) as usize;
    let first = len.min(RING_BYTES - at);
    [(at, first), (0, len - first)]
}

/// Bytes of each ring, a power of two so that half a count says where it is.
pub(super) const RING_BYTES: usize = 512 * 1024;
const _: () = assert!(RING_BYTES.is_power_of_two());
const _: () = assert!(RING_BYTES >= 4 * crate::calls::CALL_BYTES_MAX);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Both sides agree on what is in the ring, over more bytes than half a count holds.
        #[test]
        fn what_goes_in_comes_out(steps in prop::collection::vec((0..80_000_usize, any::<bool>()), 1..200)) {
            let base = (1_u64 << 32) - 1_000_000;
            let mut out = Outgoing { tail: base, told: base, head: base };
            let mut come = Incoming { head: base, said: base, tail: base };
            for (len, takes) in steps {
                if len <= out.room() {
                    out.put(len);
                    come.hear(out.tell()).unwrap();
                }
                if takes {
                    come.take(come.there());
                }
                if come.owes_room() {
                    out.hear(come.say()).unwrap();
                }
                prop_assert_eq!(out.tail(), come.tail);
                // Whoever waits for room has got three quarters, or what it gets is on its way.
                prop_assert!(out.room() + come.there() > RING_BYTES * 3 / 4);
            }
        }

        /// Any numbers from the other side: an end, or counts that fit the ring.
        #[test]
        fn counts_survive_what_the_peer_says(says in prop::collection::vec((any::<u32>(), any::<u64>()), 1..50)) {
            let (mut out, mut come) = (Outgoing::default(), Incoming::default());
            for (tail, head) in says {
                let len = out.room().min(1000);
                out.put(len);
                out.tell();
                let _refused = (out.hear(head), come.hear(tail));
                prop_assert!(out.room() <= RING_BYTES && come.there() <= RING_BYTES);
                come.take(come.there() / 2);
            }
        }
    }

    #[test]
    fn parts_cover_their_bytes_and_end_at_the_ring() {
        let ring = RING_BYTES as u64;
        assert_eq!(parts(5 * ring + 10, 20), [(10, 20), (0, 0)]);
        assert_eq!(parts(ring - 4, 20), [(RING_BYTES - 4, 4), (0, 16)]);
    }
}
