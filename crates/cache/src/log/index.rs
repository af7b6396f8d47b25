//! The hash index: from a key's hash to the newest record of its chain.
//!
//! Buckets are cache lines of seven entries and a link to an overflow bucket. An entry is a word:
//! an address, and a tag of 14 more bits of the hash. Keys that share first bucket and tag share a
//! chain. Entries change by compare-and-swap; a lock is taken to add an overflow bucket, and to
//! grow.
//!
//! It grows while it is used, by one bucket at a time (linear hashing): bucket b of n is split, and
//! entries whose tag has the next bit set go to bucket b + n. Chains stay what they are, so nothing
//! of the log is read. Who adds entries splits; who only finds them never waits. Between splits all
//! entries of a tag are in one bucket; while one is moved it is *frozen* where it was: still found,
//! and not replaced.
//!
//! Invariant: at most one entry of a bucket has a given tag and is not tentative. Who adds a tag
//! marks the entry tentative, looks whether somebody else did the same, and steps back if so.
//! Paper: FASTER section 3.2, as \[redy22\] uses it; it doubles its table, decision 84.

use super::huge;
use super::sync::{AtomicU64, Mutex, Ordering, fence, yield_now};

/// Entries of a bucket.
const ENTRIES: usize = 7;
/// Words of a bucket: its entries, and the number of its overflow bucket plus one, or 0.
const WORDS: usize = ENTRIES + 1;
/// Bits of a tag.
pub const TAG_BITS: u32 = 14;
/// Entries for each bucket before there is another bucket: lines are half full on average.
const ENTRIES_PER_BUCKET: u64 = 3;
/// Two bits of an entry: 0 and 0 is an empty one.
const STATE: u64 = TAKEN | TENTATIVE;
/// An entry that is in use.
const TAKEN: u64 = 1 << 63;
/// With `TAKEN`: an entry that its maker may still take back.
const TENTATIVE: u64 = 1 << 62;
/// Without `TAKEN`: an entry that is being moved to another bucket.
const FROZEN: u64 = TENTATIVE;
const TAG_SHIFT: u32 = 48;
const ADDRESS: u64 = (1 << TAG_SHIFT) - 1;

/// Where a hash is looked up. It stays the same while the index grows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BucketTag {
    /// Number of the bucket among those that an index begins with.
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

    /// Whether it is on its way to another bucket: it cannot be replaced.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.word & STATE == FROZEN
    }

    /// Puts `address` in front of the chain if it is as it was found.
    #[must_use]
    pub fn replace(&self, address: u64) -> bool {
        let word = self.word & !ADDRESS | address;
        !self.is_frozen()
            && self
                .slot
                .compare_exchange(self.word, word, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
}

/// Buckets one after the other, each a cache line.
struct Buckets {
    words: Box<[AtomicU64]>,
    /// The first word of the first bucket.
    first: usize,
}

impl Buckets {
    fn new(count: usize) -> Self {
        let words = huge::zeroed(count * WORDS + WORDS - 1);
        let first = huge::first_in_line(&words);
        Self { words, first }
    }

    #[inline]
    fn bucket(&self, number: usize) -> &Bucket {
        let from = self.first + number * WORDS;
        let words: &[AtomicU64; WORDS] = self.words[from..from + WORDS]
            .try_into()
            .expect("as many words");
        words
    }
}

type Bucket = [AtomicU64; WORDS];

/// How far the index has grown: the number of buckets, and whether one is being split.
#[derive(Clone, Copy, Eq, PartialEq)]
struct Extent(u64);

impl Extent {
    fn new(buckets: usize, is_splitting: bool) -> Self {
        Self((buckets as u64) << 1 | u64::from(is_splitting))
    }

    #[inline]
    fn buckets(self) -> usize {
        (self.0 >> 1) as usize
    }

    /// The bucket that is split next, or now; its other half will be the first that is not there.
    fn source(self) -> usize {
        let buckets = self.buckets();
        buckets - (1 << buckets.ilog2())
    }

    fn is_split_now(self, bucket: usize) -> bool {
        self.0 & 1 == 1 && self.source() == bucket
    }
}

/// All buckets. See the module.
pub struct Index {
    buckets: Buckets,
    /// Logarithm of how many buckets there were first.
    first_bits: u32,
    buckets_max: usize,
    /// An [`Extent`].
    extent: AtomicU64,
    /// Entries in use, about.
    entries: AtomicU64,
    overflow: Buckets,
    overflow_max: usize,
    /// How many overflow buckets are in use.
    overflow_used: Mutex<usize>,
    /// Held by who splits a bucket, and by who needs that nobody does.
    growth: Mutex<()>,
}

/// Every overflow bucket is in use, a key needs one more, and the index can grow no more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Full;

impl Index {
    /// An empty index of `buckets`, that grows to `buckets_max`.
    ///
    /// # Panics
    /// If one of them is no power of two, or the index would grow by more than a tag has bits: the
    /// settings' mistake.
    #[must_use]
    pub fn new(buckets: usize, buckets_max: usize, overflow: usize) -> Self {
        assert!(buckets.is_power_of_two() && buckets_max.is_power_of_two());
        assert!(buckets <= buckets_max && buckets_max >> TAG_BITS <= buckets);
        Self {
            buckets: Buckets::new(buckets_max),
            first_bits: buckets.ilog2(),
            buckets_max,
            extent: AtomicU64::new(Extent::new(buckets, false).0),
            entries: AtomicU64::new(0),
            overflow: Buckets::new(overflow),
            overflow_max: overflow,
            overflow_used: Mutex::new(0),
            growth: Mutex::new(()),
        }
    }

    /// Where a hash is looked up.
    #[inline]
    #[must_use]
    pub fn place(&self, hash: u64) -> BucketTag {
        BucketTag {
            bucket: hash as usize & ((1 << self.first_bits) - 1),
            tag: hash >> (64 - TAG_BITS),
        }
    }

    /// How many buckets there were first: places are below this.
    #[must_use]
    pub fn first_buckets(&self) -> usize {
        1 << self.first_bits
    }

    /// How many buckets there are, without those that overflow.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.extent().buckets()
    }

    #[inline]
    fn extent(&self) -> Extent {
        Extent(self.extent.load(Ordering::Acquire))
    }

    /// The bucket of a place.
    #[inline]
    fn number(&self, place: BucketTag, extent: Extent) -> usize {
        let buckets = extent.buckets();
        let bits = buckets.ilog2() + 1 - self.first_bits;
        let number = place.bucket | (place.tag as usize & ((1 << bits) - 1)) << self.first_bits;
        if number < buckets {
            return number;
        }
        // That bucket is still one with its other half.
        number & ((1 << (self.first_bits + bits - 1)) - 1)
    }

    /// Has the processor fetch what [`Index::find`] will look at.
    #[inline]
    pub fn prefetch(&self, place: BucketTag) {
        let number = self.number(place, self.extent());
        huge::prefetch(&self.buckets.bucket(number)[0]);
    }

    /// The entry of a tag, if there is one.
    #[inline]
    #[must_use]
    pub fn find(&self, place: BucketTag) -> Option<Entry<'_>> {
        loop {
            let number = self.number(place, self.extent());
            if let Some(entry) = self.find_in(number, place.tag) {
                return Some(entry);
            }
            // It may have moved to another bucket while it was looked for in this one.
            if self.number(place, self.extent()) == number {
                return None;
            }
        }
    }

    #[inline]
    fn find_in(&self, number: usize, tag: u64) -> Option<Entry<'_>> {
        let tag = tag << TAG_SHIFT;
        let mut bucket = self.buckets.bucket(number);
        loop {
            for slot in &bucket[..ENTRIES] {
                let word = slot.load(Ordering::Acquire);
                let found = word & !ADDRESS;
                if found == TAKEN | tag || found == FROZEN | tag {
                    return Some(Entry { slot, word });
                }
            }
            bucket = self.next(bucket)?;
        }
    }

    /// The entry of a tag; a new one has address 0. The index may grow for it.
    ///
    /// # Errors
    /// [`Full`].
    pub fn find_or_add(&self, place: BucketTag) -> Result<Entry<'_>, Full> {
        let wanted = TAKEN | place.tag << TAG_SHIFT;
        let mut is_due = true;
        loop {
            match self.find(place) {
                Some(entry) if entry.is_frozen() => {
                    yield_now();
                    continue;
                }
                Some(entry) => return Ok(entry),
                None => {}
            }
            if std::mem::take(&mut is_due) && self.is_due() {
                self.split_next();
                continue;
            }
            let extent = self.extent();
            let number = self.number(place, extent);
            if extent.is_split_now(number) {
                yield_now();
                continue;
            }
            let slot = match self.free_slot(number) {
                Ok(slot) => slot,
                // The bucket's turn to be split comes.
                Err(Full) if self.grow_from(extent) => continue,
                Err(full) => return Err(full),
            };
            if slot
                .compare_exchange(0, wanted | TENTATIVE, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            // A read-modify-write of the bucket's other entries would do as well; the fence makes
            // one of two who add the same tag see the other, and with the one of `split_next`
            // either that one sees this entry, or this one that the bucket is split.
            fence(Ordering::SeqCst);
            if self.has_moved(place, number) || self.is_elsewhere(number, place.tag, slot) {
                slot.store(0, Ordering::Release);
                yield_now();
                continue;
            }
            slot.store(wanted, Ordering::Release);
            self.entries.fetch_add(1, Ordering::Relaxed);
            return Ok(Entry { slot, word: wanted });
        }
    }

    /// Whether nothing may be added to bucket `number` for this place any more.
    fn has_moved(&self, place: BucketTag, number: usize) -> bool {
        let extent = self.extent();
        self.number(place, extent) != number || extent.is_split_now(number)
    }

    fn is_due(&self) -> bool {
        let buckets = self.bucket_count();
        buckets < self.buckets_max
            && self.entries.load(Ordering::Relaxed) >= ENTRIES_PER_BUCKET * buckets as u64
    }

    /// Splits a bucket, unless somebody else does, or there is no room for its other half.
    pub fn split_next(&self) {
        if let Ok(_growth) = self.growth.try_lock() {
            self.split();
        }
    }

    /// Splits a bucket unless that was done since the index had this extent. Waits for who holds
    /// `growth`: none of them waits for an epoch. `false`: it can grow no more.
    fn grow_from(&self, seen: Extent) -> bool {
        let _growth = self.growth.lock().expect("nobody panics with it");
        self.extent() != seen || self.split()
    }

    /// Splits a bucket, for who holds `growth`. `false`: there is no room for its other half.
    fn split(&self) -> bool {
        let extent = self.extent();
        let (source, target) = (extent.source(), extent.buckets());
        if target >= self.buckets_max {
            return false;
        }
        let splitting = Extent::new(target, true);
        self.extent.store(splitting.0, Ordering::Release);
        // From here on nobody adds to the source: see `find_or_add`.
        fence(Ordering::SeqCst);
        let bit = 1 << (TAG_SHIFT + extent.buckets().ilog2() - self.first_bits);
        let mut moving = Vec::new();
        for slot in self.chain(source) {
            let mut word = slot.load(Ordering::Acquire);
            while word & STATE == STATE {
                yield_now();
                word = slot.load(Ordering::Acquire);
            }
            if word & TAKEN != 0 && word & bit != 0 {
                moving.push(slot);
            }
        }
        for slot in &moving {
            let Ok(free) = self.free_slot(target) else {
                self.take_back(source, target);
                return false;
            };
            free.store(freeze(slot) ^ STATE, Ordering::Relaxed);
        }
        let grown = Extent::new(target + 1, false);
        self.extent.store(grown.0, Ordering::Release);
        // Whoever misses them here finds that they have moved.
        for slot in moving {
            slot.store(0, Ordering::Release);
        }
        true
    }

    /// Undoes a split for whose target there was no room.
    fn take_back(&self, source: usize, target: usize) {
        for slot in self.chain(target) {
            slot.store(0, Ordering::Relaxed);
        }
        for slot in self.chain(source) {
            let word = slot.load(Ordering::Relaxed);
            if word & STATE == FROZEN {
                slot.store(word ^ STATE, Ordering::Release);
            }
        }
        let extent = Extent::new(target, false);
        self.extent.store(extent.0, Ordering::Release);
    }

    /// Empties entries whose whole chain is below `begin`.
    pub fn sweep(&self, begin: u64) {
        let _growth = self.growth.lock().expect("nobody panics with it");
        for number in 0..self.bucket_count() {
            for slot in self.chain(number) {
                let word = slot.load(Ordering::Acquire);
                // Who is about to put a record in front finds that the word has changed, and adds
                // the tag again.
                if word & STATE == TAKEN
                    && word & ADDRESS < begin
                    && slot
                        .compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
                {
                    self.entries.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// BucketTag and address of each entry that has a chain, while others change them.
    pub fn for_each(&self, mut each: impl FnMut(BucketTag, u64)) {
        let _growth = self.growth.lock().expect("nobody panics with it");
        for number in 0..self.bucket_count() {
            let bucket = number & (self.first_buckets() - 1);
            for slot in self.chain(number) {
                let word = slot.load(Ordering::Acquire);
                if word & STATE == TAKEN && word & ADDRESS != 0 {
                    let tag = word >> TAG_SHIFT & ((1 << TAG_BITS) - 1);
                    each(BucketTag { bucket, tag }, word & ADDRESS);
                }
            }
        }
    }

    /// The entries of a bucket and of those that it overflows into.
    fn chain(&self, number: usize) -> impl Iterator<Item = &AtomicU64> {
        let first = Some(self.buckets.bucket(number));
        std::iter::successors(first, |bucket| self.next(bucket))
            .flat_map(|bucket| &bucket[..ENTRIES])
    }

    fn next(&self, bucket: &Bucket) -> Option<&Bucket> {
        match bucket[ENTRIES].load(Ordering::Acquire) {
            0 => None,
            link => Some(self.overflow.bucket(link as usize - 1)),
        }
    }

    /// An entry that was empty when it was looked at.
    fn free_slot(&self, number: usize) -> Result<&AtomicU64, Full> {
        let mut bucket = self.buckets.bucket(number);
        loop {
            for slot in &bucket[..ENTRIES] {
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
        if *used == self.overflow_max {
            return Err(Full);
        }
        let bucket = self.overflow.bucket(*used);
        *used += 1;
        last[ENTRIES].store(*used as u64, Ordering::Release);
        Ok(bucket)
    }

    /// Whether another entry than `mine` has the tag, tentative or not.
    fn is_elsewhere(&self, number: usize, tag: u64, mine: &AtomicU64) -> bool {
        self.chain(number).any(|slot| {
            let word = slot.load(Ordering::Acquire);
            word & STATE != 0
                && word & !(ADDRESS | STATE) == tag << TAG_SHIFT
                && !std::ptr::eq(slot, mine)
        })
    }
}

/// Freezes an entry in use that nobody but its replacers changes. What it is then.
fn freeze(slot: &AtomicU64) -> u64 {
    let mut word = slot.load(Ordering::Acquire);
    loop {
        match slot.compare_exchange(word, word ^ STATE, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return word ^ STATE,
            Err(now) => word = now,
        }
    }
}
