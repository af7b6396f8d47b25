//! Keys and values that can be worked out again: nothing that was stored is kept to check it.
//!
//! A value's bytes follow from the seed, its key's number and how often the key was written.

use crate::swapping::random::{STEP, mix};

/// The keys of a run, numbered from 0.
pub(super) struct Values {
    seed: u64,
    lens: Vec<u16>,
    total_bytes: u64,
}

impl Values {
    /// As many values of 1 to 3 KiB as hold `total_bytes` together.
    pub(super) fn new(seed: u64, total_bytes: u64) -> Self {
        let mut lens = Vec::new();
        let mut sum = 0;
        while sum < total_bytes {
            let len = LEN_MIN + (mix(seed ^ (lens.len() as u64) << 32) % LEN_SPAN) as u16;
            lens.push(len);
            sum += u64::from(len);
        }
        Self {
            seed,
            lens,
            total_bytes: sum,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.lens.len()
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Writes the value that `key` has after `writes` writes.
    pub(super) fn fill(&self, key: usize, writes: u32, out: &mut Vec<u8>) {
        let len = usize::from(self.lens[key]);
        let mut state = mix(self.seed ^ mix(key as u64) ^ (u64::from(writes) << 40));
        out.clear();
        while out.len() < len {
            state = state.wrapping_add(STEP);
            out.extend_from_slice(&mix(state).to_le_bytes());
        }
        out.truncate(len);
    }
}

/// Shortest value in bytes, and how many lengths there are: arbitrary, below a page, so that an
/// operation is about one page's paging.
const LEN_MIN: u16 = 1024;
const LEN_SPAN: u64 = 2049;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_told_from_every_other_of_its_length() {
        let values = Values::new(3, 1 << 20);
        assert!(values.total_bytes() >= 1 << 20);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        values.fill(5, 2, &mut one);
        values.fill(5, 2, &mut other);
        assert_eq!(one, other);
        assert!((1024..=3072).contains(&one.len()));
        for (key, writes) in [(5, 3), (6, 2), (5, 0)] {
            values.fill(key, writes, &mut other);
            assert_ne!(
                one[..1024],
                other[..1024],
                "key {key} written {writes} times"
            );
        }
    }
}
