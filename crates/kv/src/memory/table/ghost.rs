//! Keys that were evicted lately from the queue of newcomers, as fingerprints of 16 bits.
//!
//! One for each segment of the index, so that no table of them ever has to be resized: a segment has 225
//! to 450 items, and this remembers the last 256 that left it. Buckets of eight, each first in, first
//! out; a strange key is taken for a remembered one about once in 8000.

const BUCKET_COUNT: usize = 32;
const WAYS: usize = 8;

/// Fingerprints, newest first in each bucket; 0 for none.
#[derive(Clone)]
pub(super) struct Ghost([[u16; WAYS]; BUCKET_COUNT]);

impl Ghost {
    pub(super) fn new() -> Self {
        Self([[0; WAYS]; BUCKET_COUNT])
    }

    /// Remembers a key, and forgets the oldest of its bucket.
    pub(super) fn add(&mut self, hash: u64) {
        let (bucket, fingerprint) = locate(hash);
        let bucket = &mut self.0[bucket];
        // What is remembered already moves to the front.
        let last = bucket.iter().position(|other| *other == fingerprint);
        bucket[..=last.unwrap_or(WAYS - 1)].rotate_right(1);
        bucket[0] = fingerprint;
    }

    /// Whether a key is remembered; it is forgotten.
    pub(super) fn take(&mut self, hash: u64) -> bool {
        let (bucket, fingerprint) = locate(hash);
        let bucket = &mut self.0[bucket];
        let Some(at) = bucket.iter().position(|other| *other == fingerprint) else {
            return false;
        };
        bucket[at..].rotate_left(1);
        bucket[WAYS - 1] = 0;
        true
    }
}

/// Bits that the segment, which is chosen by the highest, does not depend on.
fn locate(hash: u64) -> (usize, u16) {
    let fingerprint = (hash & 0xffff) as u16;
    let bucket = (hash >> 32) as usize % BUCKET_COUNT;
    (bucket, fingerprint.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of one bucket.
    fn hash(number: u64) -> u64 {
        9 << 32 | number
    }

    #[test]
    fn a_bucket_forgets_the_oldest_first() {
        let mut ghost = Ghost::new();
        (1..=10).for_each(|number| ghost.add(hash(number)));
        assert!(!ghost.take(hash(1)) && !ghost.take(hash(2)));
        assert!(ghost.take(hash(3)), "the last eight are remembered");
        assert!(!ghost.take(hash(3)), "once");
        // There is room for one more now, and 5 becomes the newest.
        ghost.add(hash(11));
        ghost.add(hash(5));
        (12..=18).for_each(|number| ghost.add(hash(number)));
        assert!(ghost.take(hash(5)) && !ghost.take(hash(4)) && !ghost.take(hash(11)));
    }

    #[test]
    fn buckets_do_not_forget_for_each_other() {
        let mut ghost = Ghost::new();
        (0..256).for_each(|number| ghost.add((number % 32) << 32 | (number + 1)));
        let kept = (0..256).filter(|number| ghost.take((number % 32) << 32 | (number + 1)));
        assert_eq!(kept.count(), 256);
    }
}
