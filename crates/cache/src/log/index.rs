//! The hash index: from a key's hash to the newest record of its chain.
//!
//! Buckets are cache lines of seven entries and a link to an overflow bucket. An entry is a word:
//! an address, and a tag of 14 more bits of the hash. Keys that share bucket and tag share a chain.
//! Entries change by compare-and-swap; no lock is taken but to add an overflow bucket.
//!
//! Invariant: at most one entry of a bucket has a given tag and is not tentative. Who adds a tag
//! marks the entry tentative, looks whether somebody else did the same, and steps back if so.
//! Paper: FASTER section 3.2, as \[redy22\] uses it.

use super::huge::array;
use super::sync::{AtomicU64, Mutex, Ordering, yield_now};

/// Entries of a bucket.
const ENTRIES: usize = 7;
/// Bits of a tag.
const TAG_BITS: u32 = 14;
/// An entry that is in use.
const TAKEN: u64 = 1 << 63;
/// An entry that its maker may still take back.
const TENTATIVE: u64 = 1 << 62;
const TAG_SHIFT: u32 = 48;
const ADDRESS: u64 = (1 << TAG_SHIFT) - 1;

/// Where a hash is looked up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// Number of the bucket.
    pub bucket: usize,
    /// Below 2^14.
    pub tag: u64,
}

/// An entry, and the word that it had when it was found.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    slot: &'a AtomicU64,
    word: u64,
}

impl Entry<'_> {
    /// The newest record of the chain; 0 if there is none.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.word & ADDRESS
    }

    /// Puts `address` in front of the chain if it is as it was found.
    #[must_use]
    pub fn replace(&self, address: u64) -> bool {
        let word = self.word & !ADDRESS | address;
        self.slot
            .compare_exchange(self.word, word, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

#[repr(align(64))]
struct Bucket {
    entries: [AtomicU64; ENTRIES],
    /// Number of the overflow bucket plus one, or 0.
    link: AtomicU64,
}

impl Bucket {
    fn new() -> Self {
        Self {
            entries: std::array::from_fn(|_| AtomicU64::new(0)),
            link: AtomicU64::new(0),
        }
    }
}

/// All buckets. See the module.
pub struct Index {
    buckets: Box<[Bucket]>,
    overflow: Box<[Bucket]>,
    /// How many overflow buckets are in use.
    overflow_used: Mutex<usize>,
}

/// Every overflow bucket is in use, and a key needs one more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Full;

impl Index {
    /// An empty index.
    ///
    /// # Panics
    /// If `buckets` is no power of two: the settings' mistake.
    #[must_use]
    pub fn new(buckets: usize, overflow: usize) -> Self {
        assert!(buckets.is_power_of_two());
        Self {
            buckets: array(buckets, |_| Bucket::new()),
            overflow: array(overflow, |_| Bucket::new()),
            overflow_used: Mutex::new(0),
        }
    }

    /// Where a hash is looked up.
    #[inline]
    #[must_use]
    pub fn place(&self, hash: u64) -> Place {
        Place {
            bucket: hash as usize & (self.buckets.len() - 1),
            tag: hash >> (64 - TAG_BITS),
        }
    }

    /// How many buckets there are, without those that overflow.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// The entry of a tag, if there is one.
    #[inline]
    #[must_use]
    pub fn find(&self, place: Place) -> Option<Entry<'_>> {
        let wanted = TAKEN | place.tag << TAG_SHIFT;
        let mut bucket = &self.buckets[place.bucket];
        loop {
            for slot in &bucket.entries {
                let word = slot.load(Ordering::Acquire);
                if word & !ADDRESS == wanted {
                    return Some(Entry { slot, word });
                }
            }
            bucket = self.next(bucket)?;
        }
    }

    /// The entry of a tag; a new one has address 0.
    ///
    /// # Errors
    /// [`Full`].
    pub fn find_or_add(&self, place: Place) -> Result<Entry<'_>, Full> {
        let wanted = TAKEN | place.tag << TAG_SHIFT;
        loop {
            if let Some(entry) = self.find(place) {
                return Ok(entry);
            }
            let slot = self.free_slot(place.bucket)?;
            if slot
                .compare_exchange(0, wanted | TENTATIVE, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            // A read-modify-write of the bucket's other entries would do as well; the fence makes
            // one of two who add the same tag see the other.
            super::sync::fence(Ordering::SeqCst);
            if self.is_elsewhere(place, slot) {
                slot.store(0, Ordering::Release);
                yield_now();
                continue;
            }
            slot.store(wanted, Ordering::Release);
            return Ok(Entry { slot, word: wanted });
        }
    }

    /// Empties entries whose whole chain is below `begin`.
    pub fn sweep(&self, begin: u64) {
        for slot in self.slots() {
            let word = slot.load(Ordering::Acquire);
            // Who is about to put a record in front finds that the word has changed, and adds the
            // tag again.
            if word & TAKEN != 0 && word & TENTATIVE == 0 && word & ADDRESS < begin {
                let _is_swept = slot.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Bucket, tag and address of each entry that has a chain, while others change them.
    pub fn for_each(&self, mut each: impl FnMut(Place, u64)) {
        for number in 0..self.buckets.len() {
            let mut bucket = &self.buckets[number];
            loop {
                for slot in &bucket.entries {
                    let word = slot.load(Ordering::Acquire);
                    if word & TENTATIVE == 0 && word & ADDRESS != 0 {
                        let tag = word >> TAG_SHIFT & ((1 << TAG_BITS) - 1);
                        each(
                            Place {
                                bucket: number,
                                tag,
                            },
                            word & ADDRESS,
                        );
                    }
                }
                match self.next(bucket) {
                    Some(next) => bucket = next,
                    None => break,
                }
            }
        }
    }

    fn next(&self, bucket: &Bucket) -> Option<&Bucket> {
        match bucket.link.load(Ordering::Acquire) {
            0 => None,
            link => Some(&self.overflow[link as usize - 1]),
        }
    }

    /// An entry that was empty when it was looked at.
    fn free_slot(&self, bucket: usize) -> Result<&AtomicU64, Full> {
        let mut bucket = &self.buckets[bucket];
        loop {
            for slot in &bucket.entries {
                if slot.load(Ordering::Acquire) == 0 {
                    return Ok(slot);
                }
            }
            bucket = match self.next(bucket) {
                Some(next) => next,
                None => self.add_overflow(bucket)?,
            };
        }
    }

    /// The bucket behind `last`, new unless somebody was faster.
    fn add_overflow(&self, last: &Bucket) -> Result<&Bucket, Full> {
        let mut used = self.overflow_used.lock().expect("nobody panics with it");
        if let Some(next) = self.next(last) {
            return Ok(next);
        }
        let bucket = self.overflow.get(*used).ok_or(Full)?;
        *used += 1;
        last.link.store(*used as u64, Ordering::Release);
        Ok(bucket)
    }

    /// Whether another entry than `mine` has the tag, tentative or not.
    fn is_elsewhere(&self, place: Place, mine: &AtomicU64) -> bool {
        let mut bucket = &self.buckets[place.bucket];
        let wanted = TAKEN | place.tag << TAG_SHIFT;
        loop {
            for slot in &bucket.entries {
                let word = slot.load(Ordering::Acquire);
                if word & !(ADDRESS | TENTATIVE) == wanted && !std::ptr::eq(slot, mine) {
                    return true;
                }
            }
            match self.next(bucket) {
                Some(next) => bucket = next,
                None => return false,
            }
        }
    }

    fn slots(&self) -> impl Iterator<Item = &AtomicU64> {
        let buckets = self.buckets.iter().chain(&self.overflow);
        buckets.flat_map(|bucket| &bucket.entries)
    }
}
