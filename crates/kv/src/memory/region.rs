//! The bytes of values: an address space that is all zero at first and takes memory only where touched.
//!
//! A data process keeps its values in one, a parity process its parity, a recovery what it has rebuilt.
//! Bytes come in chunks, each behind a lock of its own, so that several threads can feed one parity
//! process. A call over several chunks locks them in order of address; calls that write hold one lock at a
//! time, so of two threads' writes to one range each chunk has one order, but not all chunks the same: an
//! owner is one thread, and a parity's sums have no order.
//!
//! Ranges outside of the region are the caller's bug. Which ranges are in use is the `allocator`'s.
//! Paper: \[cocytus16\] section 3.

use std::{
    ops::Range,
    sync::{
        LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use cenote_codec::Code;
use memmap2::MmapMut;

use super::reaper;

/// What memory is taken by: large enough that a value seldom spans two, small enough that a region that
/// is mostly empty costs little.
pub const CHUNK_BYTES: u64 = 1 << 20;

/// [`CHUNK_BYTES`] as a length of slices.
const CHUNK: usize = CHUNK_BYTES as usize;

/// What untouched chunks read as. Zeroed by the system when first read, and never resident.
static ZEROS: LazyLock<MmapMut> = LazyLock::new(zeroed_chunk);

/// An address space of bytes.
pub struct Region {
    bytes: u64,
    chunks: Box<[Mutex<Chunk>]>,
    touched_chunks: AtomicU64,
}

/// Its bytes, once one of them was not zero.
type Chunk = Option<MmapMut>;

/// The part of a call's range that lies in one chunk.
struct Part {
    chunk: usize,
    /// Within the chunk.
    at: Range<usize>,
    /// Within what the caller passed.
    of: Range<usize>,
}

impl Region {
    /// A region of zeros.
    pub fn new(bytes: u64) -> Self {
        let chunk_count =
            usize::try_from(bytes.div_ceil(CHUNK_BYTES)).expect("a region's chunks can be listed");
        Self {
            bytes,
            chunks: (0..chunk_count).map(|_| Mutex::new(None)).collect(),
            touched_chunks: AtomicU64::new(0),
        }
    }

    /// Its length, whether touched or not.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory that it has taken, in whole chunks.
    pub fn touched_bytes(&self) -> u64 {
        self.touched_chunks.load(Ordering::Relaxed) * CHUNK_BYTES
    }

    /// Whether memory was taken for any of the range; where not, it is zero.
    pub fn is_touched(&self, address: u64, bytes: usize) -> bool {
        self.parts(address, bytes)
            .any(|part| self.lock(part.chunk).is_some())
    }

    /// Memory that writing to a range may take.
    pub fn lacking_bytes(&self, address: u64, bytes: usize) -> u64 {
        let untouched = |part: &Part| self.lock(part.chunk).is_none();
        self.parts(address, bytes).filter(untouched).count() as u64 * CHUNK_BYTES
    }

    /// Shows the bytes of a range in one or more parts, which nobody changes meanwhile.
    ///
    /// `with` must not use this region: its chunks are locked.
    pub fn with_parts<R>(&self, address: u64, bytes: usize, with: impl FnOnce(&[&[u8]]) -> R) -> R {
        let mut parts = self.parts(address, bytes);
        let Some(first) = parts.next() else {
            return with(&[]);
        };
        let chunk = self.lock(first.chunk);
        let first_bytes = shown(&chunk, first.at);
        if first_bytes.len() == bytes {
            return with(&[first_bytes]);
        }
        let rest: Vec<_> = parts.map(|part| (self.lock(part.chunk), part.at)).collect();
        let mut all = vec![first_bytes];
        all.extend(rest.iter().map(|(chunk, at)| shown(chunk, at.clone())));
        with(&all)
    }

    /// Copies a range to `out`.
    pub fn copy_out(&self, address: u64, out: &mut [u8]) {
        for part in self.parts(address, out.len()) {
            let out = &mut out[part.of];
            match &*self.lock(part.chunk) {
                Some(bytes) => out.copy_from_slice(&bytes[part.at]),
                None => out.fill(0),
            }
        }
    }

    /// Replaces a range.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.change(address, bytes, |target, source| {
            target.copy_from_slice(source);
        });
    }

    /// Replaces a range by what `by` makes of each part of it, which is told where in the range that lies.
    pub fn fill(&self, address: u64, bytes: usize, mut by: impl FnMut(Range<usize>, &mut [u8])) {
        for part in self.parts(address, bytes) {
            let mut chunk = self.lock(part.chunk);
            if chunk.is_none() {
                self.touched_chunks.fetch_add(1, Ordering::Relaxed);
            }
            by(
                part.of,
                &mut chunk.get_or_insert_with(zeroed_chunk)[part.at],
            );
        }
    }

    /// Adds a delta to a range: an owner's new value is the old bytes XOR the delta.
    pub fn xor(&self, address: u64, delta: &[u8]) {
        self.change(address, delta, xor);
    }

    /// Brings the parity of a range up to date: this region is parity `row` of `code`, and its data split
    /// `split` changes by `delta`.
    ///
    /// # Panics
    /// If the code has no such row or split.
    pub fn add_scaled(&self, code: &Code, row: usize, split: usize, address: u64, delta: &[u8]) {
        self.change(address, delta, |target, delta| {
            code.update(row, split, delta, target);
        });
    }

    /// Makes a range zero again, and gives back the memory of chunks that it covers.
    pub fn release(&self, address: u64, bytes: u64) {
        let end = self.end(address, bytes);
        let mut from = address;
        while from < end {
            let number = from / CHUNK_BYTES;
            let to = end.min((number + 1) * CHUNK_BYTES);
            let is_whole =
                to - from == CHUNK_BYTES || (from.is_multiple_of(CHUNK_BYTES) && to == self.bytes);
            let mut chunk = self.lock(index(number));
            if is_whole {
                if chunk.take().is_some() {
                    self.touched_chunks.fetch_sub(1, Ordering::Relaxed);
                }
            } else if let Some(bytes) = &mut *chunk {
                let start = index(from % CHUNK_BYTES);
                bytes[start..start + index(to - from)].fill(0);
            }
            from = to;
        }
    }

    /// Lets `by` change each part of a range by the part of `source` that belongs to it. Zeros leave
    /// zeros alone, whether they replace or are added: they take no memory.
    fn change(&self, address: u64, source: &[u8], by: impl Fn(&mut [u8], &[u8])) {
        for part in self.parts(address, source.len()) {
            let source = &source[part.of];
            let mut chunk = self.lock(part.chunk);
            if chunk.is_none() {
                if is_zero(source) {
                    continue;
                }
                self.touched_chunks.fetch_add(1, Ordering::Relaxed);
            }
            by(&mut chunk.get_or_insert_with(zeroed_chunk)[part.at], source);
        }
    }

    /// The parts of a range in order of address.
    fn parts(&self, address: u64, bytes: usize) -> impl Iterator<Item = Part> + use<> {
        self.end(address, bytes as u64);
        let mut done = 0;
        std::iter::from_fn(move || {
            let from = address + done as u64;
            let start = index(from % CHUNK_BYTES);
            let length = (CHUNK - start).min(bytes - done);
            let part = Part {
                chunk: index(from / CHUNK_BYTES),
                at: start..start + length,
                of: done..done + length,
            };
            done += length;
            (length > 0).then_some(part)
        })
    }

    /// Where a range ends.
    fn end(&self, address: u64, bytes: u64) -> u64 {
        let end = address.checked_add(bytes);
        end.filter(|end| *end <= self.bytes)
            .expect("a range of the region")
    }

    /// A panic while a chunk is locked leaves bytes in it like any others.
    fn lock(&self, chunk: usize) -> MutexGuard<'_, Chunk> {
        let chunk = self.chunks[chunk].lock();
        chunk.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let touched_bytes = self.touched_bytes();
        if touched_bytes >= reaper::BYTES_MIN {
            reaper::reap(touched_bytes, std::mem::take(&mut self.chunks));
        }
    }
}

/// Mapped on its own: what is given back is the system's at once, whatever lies beside it.
fn zeroed_chunk() -> MmapMut {
    MmapMut::map_anon(CHUNK).expect("the system has memory")
}

fn shown(chunk: &Chunk, at: Range<usize>) -> &[u8] {
    &chunk.as_ref().unwrap_or(&ZEROS)[at]
}

/// A number that is less than the chunks of a region or the bytes of one.
fn index(number: u64) -> usize {
    usize::try_from(number).expect("chunks were counted as they were made")
}

/// Whether all bytes are zero; ends at the first that is not.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (lanes, rest) = bytes.as_chunks();
    lanes.iter().all(|lane| u128::from_ne_bytes(*lane) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Bytes by 32, so that they are added by vectors of whatever width the CPU surely has.
fn xor(target: &mut [u8], delta: &[u8]) {
    let (lanes, rest) = target.as_chunks_mut::<32>();
    let (delta_lanes, delta_rest) = delta.as_chunks::<32>();
    for (lane, delta) in lanes.iter_mut().zip(delta_lanes) {
        for (byte, delta) in lane.iter_mut().zip(delta) {
            *byte ^= delta;
        }
    }
    for (byte, delta) in rest.iter_mut().zip(delta_rest) {
        *byte ^= delta;
    }
}

#[cfg(test)]
mod tests;
