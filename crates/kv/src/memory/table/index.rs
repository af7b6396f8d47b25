//! From hashes to slots, by extendible hashing.
//!
//! The top bits of a hash choose a segment by the directory; a segment is a small hash table of slots. One
//! that is full is split by the next bit, and two that are nearly empty become one: no insertion moves more
//! than a segment, whatever the table holds. Only the directory is ever doubled as a whole, 4 bytes for
//! each segment. Segments cover ranges of hashes in ascending order, which a walk relies on.
//!
//! Where many keys have the same top bits (somebody knows the hash and chose them), the directory does not
//! grow for them: their segment does, as far as the owner [lets](super::Table::is_crowded) it.
//! Knows slots and hashes, not keys: the caller compares, and hashes again where a segment moves.

use std::hint::black_box;

use hashbrown::HashTable;

use super::{ghost::Ghost, record::Hashes, slabs::Slot};

/// Slots of a segment: what a table of 512 buckets may hold. To split it, which an insertion waits for, takes
/// some 50 us.
const SEGMENT_SLOTS: usize = 448;

/// Fewer than these are made room for by sweeping out what removed slots left behind, ...
const SPLIT_SLOTS: usize = SEGMENT_SLOTS / 8 * 7;

/// ... and two segments that have no more together are joined.
const JOIN_SLOTS: usize = SEGMENT_SLOTS / 4;

/// Keys of a segment, on average and in the end, where keys come and go: one that should have more than 370
/// is full at some moment, by four deviations, and split; halves with more than a quarter are not joined.
const CHURNED_SLOTS: usize = 185;

/// Memory of a segment's slots: 512 buckets, their control bytes and a group of these.
const SLOTS_BYTES: usize = 512 * (size_of::<Slot>() + 1) + 16;

/// Entries of the directory for each segment, beyond which it is not doubled.
const DIRECTORY_SLACK: usize = 4;

/// Bits of a hash that a directory can be made of.
const DEPTH_MAX: u32 = 32;

/// Slots by hash.
pub(super) struct Index {
    /// Top `depth` bits of a hash -> segment.
    directory: Vec<u32>,
    depth: u32,
    segments: Vec<Segment>,
    /// Numbers of segments that were joined to others.
    unused: Vec<u32>,
    len: usize,
    /// Memory of the segments' tables and ghosts.
    segment_bytes: usize,
}

struct Segment {
    slots: HashTable<Slot>,
    /// Top bits that all hashes of the segment share.
    depth: u32,
    /// From the first eviction on.
    ghost: Option<Box<Ghost>>,
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            directory: vec![0],
            depth: 0,
            segments: vec![Segment::new()],
            unused: Vec::new(),
            len: 0,
            segment_bytes: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Memory taken.
    pub(super) fn resident_bytes(&self) -> u64 {
        let numbers = (self.directory.capacity() + self.unused.capacity()) * size_of::<u32>();
        let segments = self.segments.capacity() * size_of::<Segment>();
        (self.segment_bytes + numbers + segments) as u64
    }

    /// Memory that may be taken though there never are more keys than now, if others come in their place.
    pub(super) fn churned_bytes(&self) -> u64 {
        // A vector that grows has twice what it needs.
        let numbers = 2 * DIRECTORY_SLACK * size_of::<u32>();
        let segment = SLOTS_BYTES + size_of::<Ghost>() + 2 * size_of::<Segment>() + numbers;
        let segments = self.len / CHURNED_SLOTS + 1;
        self.resident_bytes().max((segments * segment) as u64)
    }

    /// As [`resident_bytes`](Self::resident_bytes), counted again.
    #[cfg(test)]
    pub(super) fn counted_bytes(&self) -> u64 {
        let counted: usize = self.segments.iter().map(Segment::bytes).sum();
        self.resident_bytes() - self.segment_bytes as u64 + counted as u64
    }

    /// The slot with this hash for which `is_it`.
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(Slot) -> bool) -> Option<Slot> {
        let slots = &self.segments[self.segment_of(hash)].slots;
        slots.find(spread(hash), |slot| is_it(*slot)).copied()
    }

    /// Adds a slot that is not there. `hashes` is asked about those that move.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot, hashes: &Hashes<'_>) {
        let number = self.make_room(hash, hashes);
        let slots = &mut self.segments[number].slots;
        let before = slots.allocation_size();
        slots.insert_unique(spread(hash), slot, |slot| spread(hashes.hash(*slot)));
        self.segment_bytes += slots.allocation_size() - before;
        self.len += 1;
    }

    /// Takes the slot with this hash for which `is_it` out.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        mut is_it: impl FnMut(Slot) -> bool,
        hashes: &Hashes<'_>,
    ) -> Option<Slot> {
        let number = self.segment_of(hash);
        let slots = &mut self.segments[number].slots;
        let found = slots.find_entry(spread(hash), |slot| is_it(*slot)).ok()?;
        let (slot, _) = found.remove();
        self.len -= 1;
        if self.segments[number].slots.len() < JOIN_SLOTS / 2 {
            self.join(hash, hashes);
        }
        Some(slot)
    }

    /// Slots of the segment that holds `hash`.
    pub(super) fn segment_len(&self, hash: u64) -> usize {
        self.segments[self.segment_of(hash)].slots.len()
    }

    /// The slots of the segment that holds `hash`, and the first hash beyond it.
    pub(super) fn segment(&self, hash: u64) -> (impl Iterator<Item = Slot> + '_, Option<u64>) {
        let segment = &self.segments[self.segment_of(hash)];
        let last = hash | u64::MAX >> segment.depth;
        (segment.slots.iter().copied(), last.checked_add(1))
    }

    /// The segment of `hash` remembers an eviction.
    pub(super) fn note_eviction(&mut self, hash: u64) {
        let number = self.segment_of(hash);
        let ghost = &mut self.segments[number].ghost;
        if ghost.is_none() {
            self.segment_bytes += size_of::<Ghost>();
        }
        ghost
            .get_or_insert_with(|| Box::new(Ghost::new()))
            .add(hash);
    }

    /// Whether it remembers one; it forgets it.
    pub(super) fn take_eviction(&mut self, hash: u64) -> bool {
        let number = self.segment_of(hash);
        let ghost = &mut self.segments[number].ghost;
        ghost.as_mut().is_some_and(|ghost| ghost.take(hash))
    }

    /// The place of a hash in the directory.
    fn place_of(&self, hash: u64) -> usize {
        // By two shifts, since none may be by 64.
        (hash >> 1 >> (u64::BITS - 1 - self.depth)) as usize
    }

    fn segment_of(&self, hash: u64) -> usize {
        self.directory[self.place_of(hash)] as usize
    }

    /// The segment for a slot with this hash, which has room without growing beyond its size if that
    /// can be.
    fn make_room(&mut self, hash: u64, hashes: &Hashes<'_>) -> usize {
        loop {
            let number = self.segment_of(hash);
            let segment = &self.segments[number];
            let (len, capacity) = (segment.slots.len(), segment.slots.capacity());
            if len < capacity || capacity < SEGMENT_SLOTS / 2 {
                return number;
            }
            if len > SPLIT_SLOTS && self.may_split(segment.depth) {
                self.split(hash, hashes);
            } else {
                if len <= SPLIT_SLOTS {
                    let swept = table(&hashed(&[segment], hashes));
                    self.replace(number, swept);
                }
                return number;
            }
        }
    }

    fn may_split(&self, depth: u32) -> bool {
        let segment_count = self.segments.len() - self.unused.len();
        depth < self.depth
            || (depth < DEPTH_MAX && self.directory.len() < DIRECTORY_SLACK * segment_count)
    }

    /// Splits the segment of `hash` in two, by the first bit that its hashes do not share.
    fn split(&mut self, hash: u64, hashes: &Hashes<'_>) {
        let number = self.segment_of(hash);
        let depth = self.segments[number].depth;
        if depth == self.depth {
            let doubled = self.directory.iter().flat_map(|number| [*number, *number]);
            self.directory = doubled.collect();
            self.depth += 1;
        }
        let bit = u64::BITS - 1 - depth;
        let slots = hashed(&[&self.segments[number]], hashes);
        let halves = slots
            .into_iter()
            .partition(|(hash, _)| hash >> bit & 1 == 0);
        let (lower, upper): (Vec<_>, Vec<_>) = halves;
        self.replace(number, table(&lower));
        let segment = &mut self.segments[number];
        segment.depth += 1;
        // Both halves remember all that was evicted: what is the other's is never asked for.
        let other = Segment {
            slots: table(&upper),
            depth: depth + 1,
            ghost: segment.ghost.clone(),
        };
        self.segment_bytes += other.bytes();
        let other = if let Some(unused) = self.unused.pop() {
            self.segments[unused as usize] = other;
            unused
        } else {
            self.segments.push(other);
            u32::try_from(self.segments.len() - 1).expect("segments have numbers of 32 bits")
        };
        let places = self.places(hash, depth);
        let middle = places.start.midpoint(places.end);
        self.directory[middle..places.end].fill(other);
    }

    /// Joins the segment of `hash` with the other half of what they were split from, if that is not split
    /// further and they are few.
    fn join(&mut self, hash: u64, hashes: &Hashes<'_>) {
        let number = self.segment_of(hash);
        let depth = self.segments[number].depth;
        if depth == 0 {
            return;
        }
        let other = self.segment_of(hash ^ 1 << (u64::BITS - depth));
        let pair = [&self.segments[number], &self.segments[other]];
        let len: usize = pair.iter().map(|segment| segment.slots.len()).sum();
        if pair[1].depth != depth || len > JOIN_SLOTS {
            return;
        }
        let joined = table(&hashed(&pair, hashes));
        self.replace(number, joined);
        self.segments[number].depth = depth - 1;
        let places = self.places(hash, depth - 1);
        self.directory[places].fill(number as u32);
        self.segment_bytes -= self.segments[other].bytes();
        self.segments[other] = Segment::new();
        self.unused.push(other as u32);
    }

    fn replace(&mut self, number: usize, slots: HashTable<Slot>) {
        let old = &mut self.segments[number].slots;
        self.segment_bytes = self.segment_bytes - old.allocation_size() + slots.allocation_size();
        *old = slots;
    }

    /// The part of the directory for the first `depth` bits of `hash`.
    fn places(&self, hash: u64, depth: u32) -> std::ops::Range<usize> {
        let count = 1 << (self.depth - depth);
        let first = self.place_of(hash) & !(count - 1);
        first..first + count
    }
}

impl Segment {
    fn new() -> Self {
        Self {
            slots: HashTable::new(),
            depth: 0,
            ghost: None,
        }
    }

    fn bytes(&self) -> usize {
        let ghost = self.ghost.as_ref().map_or(0, |_| size_of::<Ghost>());
        self.slots.allocation_size() + ghost
    }
}

/// The slots of segments, each with its hash.
fn hashed(segments: &[&Segment], hashes: &Hashes<'_>) -> Vec<(u64, Slot)> {
    let slots = segments.iter().flat_map(|segment| &segment.slots);
    let mut hashed: Vec<_> = slots.map(|slot| (0, *slot)).collect();
    // Keys lie far apart. To touch all of them first takes a fraction of what it takes to fetch each when
    // it is hashed: the CPU has many such loads under way.
    let touched = hashed
        .iter()
        .map(|(_, slot)| u64::from(hashes.touch(*slot)));
    black_box(touched.sum::<u64>());
    for (hash, slot) in &mut hashed {
        *hash = hashes.hash(*slot);
    }
    hashed
}

/// A table of the size of a segment, or larger where there are too many.
fn table(slots: &[(u64, Slot)]) -> HashTable<Slot> {
    let mut table = HashTable::with_capacity(SEGMENT_SLOTS.max(slots.len()));
    for (hash, slot) in slots {
        table.insert_unique(spread(*hash), *slot, |_| unreachable!("there is room"));
    }
    table
}

/// The hash within a segment, whose hashes share their highest bits: a product's low bits depend on the
/// lowest alone, and its high ones on all.
fn spread(hash: u64) -> u64 {
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
