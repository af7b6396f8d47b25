//! Transforms already made, found again without a lock.
//!
//! A table of fixed size that only grows: an entry, once written, stays until
//! the code is dropped, so a hit is a few loads. When the few places of a key
//! are taken by others, its transform is made again each time.
//!
//! Bound: [`SLOTS`] entries, each `48 k` bytes per target: for (8,2) with all its
//! 44 ways to decode 34 KiB, and never more than 12 MiB, at (32,8).
//! Concurrency: any number of threads; two that make the same entry keep one.

use std::{borrow::Cow, sync::OnceLock};

use crate::{code::Shape, transform::Transform};

/// Transforms of one code by sources and targets.
pub(crate) struct TransformCache {
    slots: Box<[OnceLock<Box<Entry>>]>,
}

impl TransformCache {
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The transform of `shape` from `sources` to `targets`; allocates when it is new.
    #[inline]
    pub(crate) fn transform(&self, shape: Shape, sources: u64, targets: u64) -> Cow<'_, Transform> {
        let key = (sources, targets);
        // Inlined, as a call that answers through memory is felt beside the decoding of a page.
        match self.slots[place(key)].get() {
            Some(entry) if entry.key == key => Cow::Borrowed(&entry.transform),
            _ => self.transform_elsewhere(shape, key),
        }
    }

    /// The same, where it is not in the first place of its key.
    #[cold]
    fn transform_elsewhere(&self, shape: Shape, key: (u64, u64)) -> Cow<'_, Transform> {
        let (sources, targets) = key;
        let start = place(key);
        for step in 0..PROBES {
            let entry = self.slots[(start + step) % SLOTS].get_or_init(|| {
                Box::new(Entry {
                    key,
                    transform: Transform::new(shape, sources, targets),
                })
            });
            if entry.key == key {
                return Cow::Borrowed(&entry.transform);
            }
        }
        Cow::Owned(Transform::new(shape, sources, targets))
    }
}

struct Entry {
    key: (u64, u64),
    transform: Transform,
}

/// Entries at most. All ways to lose up to `r` splits of (8,3) are 164, of (16,3) 1,016.
const SLOTS: usize = 1024;

/// Places looked at for one key; arbitrary, a cache line or two of pointers.
const PROBES: usize = 8;

/// First place of a key: the top bits of a product with odd constants.
fn place((sources, targets): (u64, u64)) -> usize {
    let mixed = sources
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(targets)
        .wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> (u64::BITS - SLOTS.ilog2())) as usize
}

const _: () = assert!(SLOTS.is_power_of_two());

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::{SLOTS, TransformCache};
    use crate::code::Shape;

    #[test]
    fn a_second_look_finds_the_same_transform() {
        let cache = TransformCache::new();
        let shape = Shape { k: 8, r: 2 };
        let (Cow::Borrowed(first), Cow::Borrowed(second)) = (
            cache.transform(shape, 0x1fe, 1),
            cache.transform(shape, 0x1fe, 1),
        ) else {
            panic!("an empty cache keeps what it makes")
        };
        assert!(std::ptr::eq(first, second));
    }

    #[test]
    fn stays_bounded_and_right_when_full() {
        let cache = TransformCache::new();
        let shape = Shape { k: 12, r: 8 };
        let mut owned = 0;
        for low in 0u64..1 << 12 {
            let sources = low | (((1 << (12 - low.count_ones().max(4))) - 1) << 12);
            let targets = shape.data() & !sources;
            if sources.count_ones() != 12 || targets == 0 {
                continue;
            }
            let found = cache.transform(shape, sources, targets);
            let fresh = crate::transform::Transform::new(shape, sources, targets);
            assert_eq!(found.coefs(), fresh.coefs());
            owned += usize::from(matches!(found, Cow::Owned(_)));
        }
        let used = cache.slots.iter().filter(|slot| slot.get().is_some());
        assert!(owned > 0, "the cache never filled");
        assert!(used.count() <= SLOTS);
    }
}
