//! Space for values in a region, handed out so that others can follow.
//!
//! A data process [allocates](Allocator::allocate). Its parity processes are told where, and
//! [carve](Allocator::carve) the same range out of their replica: they never choose, since they see
//! what is allocated and freed in another order than it was. What a data process picks depends on
//! the free pieces alone: the shortest that is long enough, and of these the lowest.
//!
//! Addresses are bytes from the start of the region. Pieces are multiples of [`ALIGN_BYTES`] and begin
//! at one. Invariant: every byte is free or used, and no two free pieces touch.
//! The bytes themselves are not here. Paper: \[cocytus16\] section 5; deviations in `docs/papers/cocytus.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What addresses and lengths are multiples of: coding works on 16 bytes at a time.
pub const ALIGN_BYTES: u64 = 16;

/// Pieces that are looked at for one that is where it is wanted.
const PIECES_LOOKED_AT: usize = 16;

/// Lengths of pieces that are looked at for one that is not where it is to be kept free.
const LENGTHS_LOOKED_AT: usize = 256;

/// The free pieces of one region.
///
/// Costs 32 bytes for each free piece in two trees, and up to twice that where their nodes are half
/// full; used pieces cost nothing. Every operation takes time in the logarithm of the free pieces.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Allocator {
    region_bytes: u64,
    free_bytes: u64,
    /// Address -> length.
    by_address: BTreeMap<u64, u64>,
    /// (length, address).
    by_length: BTreeSet<(u64, u64)>,
}

/// Why a range cannot be marked.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// It is not inside the region, or its address is no multiple of [`ALIGN_BYTES`].
    #[error("no range of the region")]
    Outside,
    /// Some of it is used: a carve would take what somebody has.
    #[error("not free")]
    Used,
    /// Some of it is free: it was freed before.
    #[error("not used")]
    Free,
}

/// A part of the region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Piece {
    /// Where it begins.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
    /// Whether it is free. Used pieces that touch are one.
    pub is_free: bool,
}

/// Bytes that a value of so many bytes takes: at least one unit, so that every value has a place of its
/// own. Nothing where that is more than can be counted.
pub fn piece_bytes(value_bytes: u64) -> Option<u64> {
    value_bytes.max(1).checked_next_multiple_of(ALIGN_BYTES)
}

/// Nothing is kept free.
pub const NOTHING: Range<u64> = 0..0;

/// Whether the first bytes of a piece have something of a range.
fn meets(range: &Range<u64>, address: u64, bytes: u64) -> bool {
    range.start.max(address) < range.end.min(address + bytes)
}

impl Allocator {
    /// A region without values. What its length has beyond a multiple of [`ALIGN_BYTES`] is left out.
    pub fn new(region_bytes: u64) -> Self {
        let region_bytes = region_bytes / ALIGN_BYTES * ALIGN_BYTES;
        let mut allocator = Self {
            region_bytes,
            free_bytes: 0,
            by_address: BTreeMap::new(),
            by_length: BTreeSet::new(),
        };
        allocator.put(0, region_bytes);
        allocator
    }

    /// Length of the region.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Bytes that are free, in however many pieces.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Where the last used piece ends.
    pub fn used_end(&self) -> u64 {
        match self.by_address.last_key_value() {
            Some((address, length)) if address + length == self.region_bytes => *address,
            _ => self.region_bytes,
        }
    }

    /// Whether nobody has anything of a range of the region.
    pub fn is_free(&self, address: u64, bytes: u64) -> bool {
        let around = self.by_address.range(..=address).next_back();
        around.is_some_and(|(start, length)| start + length >= address + bytes)
    }

    /// Bytes of a range that are free. Takes time in the free pieces there.
    pub fn free_bytes_of(&self, range: &Range<u64>) -> u64 {
        let before = self.by_address.range(..range.start).next_back();
        let pieces = before
            .into_iter()
            .chain(self.by_address.range(range.clone()));
        let free = pieces.map(|(start, length)| {
            let end = range.end.min(start + length);
            end.saturating_sub(range.start.max(*start))
        });
        free.sum()
    }

    /// Memory of the trees, their nodes being about two thirds full.
    pub fn resident_bytes(&self) -> u64 {
        self.by_address.len() as u64 * 56
    }

    /// Takes space for a value and returns its address; nothing if no free piece is long enough.
    pub fn allocate(&mut self, value_bytes: u64) -> Option<u64> {
        self.allocate_below(value_bytes, self.region_bytes, &NOTHING)
    }

    /// As [`allocate`](Self::allocate), of the first `limit_bytes` of the region: a data process that has
    /// memory for no more, so far. Where limits only grow, one piece at most is free beyond and looked at.
    /// Nothing is taken of what is `kept` free.
    pub fn allocate_below(
        &mut self,
        value_bytes: u64,
        limit_bytes: u64,
        kept: &Range<u64>,
    ) -> Option<u64> {
        let bytes = piece_bytes(value_bytes)?;
        let mut long_enough = self.long_enough(bytes, kept);
        let (length, address) = long_enough.find(|(_, address)| address + bytes <= limit_bytes)?;
        drop(long_enough);
        Some(self.split(address, length, bytes))
    }

    /// As [`allocate`](Self::allocate), of the first of some pieces whose address `fits`, and nothing of what
    /// is `kept` free.
    pub fn allocate_where(
        &mut self,
        value_bytes: u64,
        kept: &Range<u64>,
        fits: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let bytes = piece_bytes(value_bytes)?;
        let mut long_enough = self.long_enough(bytes, kept).take(PIECES_LOOKED_AT);
        let (length, address) = long_enough.find(|(_, address)| fits(*address))?;
        drop(long_enough);
        Some(self.split(address, length, bytes))
    }

    /// Pieces of which the first so many bytes may be taken, the shortest first.
    fn long_enough(
        &self,
        bytes: u64,
        kept: &Range<u64>,
    ) -> impl Iterator<Item = (u64, u64)> + use<'_> {
        let mut from = (bytes, 0);
        let (kept, mut lengths) = (kept.clone(), 0);
        std::iter::from_fn(move || {
            while lengths < LENGTHS_LOOKED_AT {
                let (length, address) = *self.by_length.range(from..).next()?;
                if !meets(&kept, address, bytes) {
                    from = (length, address + 1);
                    return Some((length, address));
                }
                // Those of one length are in the order of their addresses.
                from = (length, kept.end);
                lengths += 1;
            }
            None
        })
    }

    /// Where some free pieces begin that are too short for a value, the longest first.
    pub fn longest_too_short(&self, value_bytes: u64) -> impl Iterator<Item = u64> + '_ {
        let bytes = piece_bytes(value_bytes).unwrap_or(u64::MAX);
        let too_short = self.by_length.range(..(bytes, 0)).rev();
        too_short
            .take(PIECES_LOOKED_AT)
            .map(|(_, address)| *address)
    }

    /// As [`allocate`](Self::allocate), of the first of the lowest pieces that is long enough: pieces far up come
    /// to be free as a whole where values come and go. Nothing is taken of what is `kept` free.
    pub fn allocate_low(&mut self, value_bytes: u64, kept: &Range<u64>) -> Option<u64> {
        let bytes = piece_bytes(value_bytes)?;
        let mut lowest = self.by_address.iter().take(PIECES_LOOKED_AT);
        let is_one = |address: u64, length: u64| length >= bytes && !meets(kept, address, bytes);
        let (address, length) = lowest.find(|(address, length)| is_one(**address, **length))?;
        let (address, length) = (*address, *length);
        Some(self.split(address, length, bytes))
    }

    /// Takes the front of a free piece.
    fn split(&mut self, address: u64, length: u64, bytes: u64) -> u64 {
        self.remove(address, length);
        self.put(address + bytes, length - bytes);
        address
    }

    /// Marks the space of a value at `address` as used.
    ///
    /// # Errors
    /// Where not all of it is free, and where it is not in the region. Nothing changes then.
    pub fn carve(&mut self, address: u64, value_bytes: u64) -> Result<(), RangeError> {
        let (bytes, end) = self.range(address, value_bytes)?;
        let around = self.by_address.range(..=address).next_back();
        let (start, length) = match around {
            Some((start, length)) if start + length >= end => (*start, *length),
            _ => return Err(RangeError::Used),
        };
        self.remove(start, length);
        self.put(start, address - start);
        self.put(end, length - (address - start) - bytes);
        Ok(())
    }

    /// Gives the space of a value at `address` back, and joins it with the free pieces that it touches.
    ///
    /// # Errors
    /// Where not all of it is used, and where it is not in the region. Nothing changes then.
    pub fn free(&mut self, address: u64, value_bytes: u64) -> Result<(), RangeError> {
        let (bytes, end) = self.range(address, value_bytes)?;
        let before = self.by_address.range(..end).next_back();
        let before = before.map(|(start, length)| (*start, *length));
        if before.is_some_and(|(start, length)| start + length > address) {
            return Err(RangeError::Free);
        }
        let mut joined = (address, bytes);
        if let Some((start, length)) = before.filter(|(start, length)| start + length == address) {
            self.remove(start, length);
            joined = (start, bytes + length);
        }
        if let Some(length) = self.by_address.get(&end).copied() {
            self.remove(end, length);
            joined.1 += length;
        }
        self.put(joined.0, joined.1);
        Ok(())
    }

    /// All of the region in the order of addresses, free and used pieces by turns.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        let mut address = 0;
        let mut free = self.by_address.iter().peekable();
        std::iter::from_fn(move || {
            let next = free.peek().map_or(self.region_bytes, |(start, _)| **start);
            let piece = if next > address {
                Piece {
                    address,
                    bytes: next - address,
                    is_free: false,
                }
            } else {
                let (start, length) = free.next()?;
                Piece {
                    address: *start,
                    bytes: *length,
                    is_free: true,
                }
            };
            address = piece.address + piece.bytes;
            Some(piece)
        })
    }

    /// Length and end of a value's space, if the region has it.
    fn range(&self, address: u64, value_bytes: u64) -> Result<(u64, u64), RangeError> {
        let bytes = piece_bytes(value_bytes).ok_or(RangeError::Outside)?;
        let end = address.checked_add(bytes).ok_or(RangeError::Outside)?;
        if end > self.region_bytes || !address.is_multiple_of(ALIGN_BYTES) {
            return Err(RangeError::Outside);
        }
        Ok((bytes, end))
    }

    /// Adds a free piece, unless it is empty.
    fn put(&mut self, address: u64, bytes: u64) {
        if bytes > 0 {
            self.by_address.insert(address, bytes);
            self.by_length.insert((bytes, address));
            self.free_bytes += bytes;
        }
    }

    fn remove(&mut self, address: u64, bytes: u64) {
        self.by_address.remove(&address);
        self.by_length.remove(&(bytes, address));
        self.free_bytes -= bytes;
    }
}

#[cfg(test)]
mod tests;
