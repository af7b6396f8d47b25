//! The part of the log that is in memory: a circle of page frames, as words.
//!
//! Every word is an atomic that is loaded and stored relaxed: threads race for values by design,
//! and what they read is judged by the record's [`latch`]. Whoever asks for an address is pinned,
//! and found it at or above the head; so its frame still holds its page.

use super::huge;
use super::latch;
use super::record::{HEADER_BYTES, Link, Shape, VALUE_BYTES_MAX};
use super::sync::{AtomicU64, Ordering};

/// Page frames. An address is in frame `page % frames`.
pub struct Memory {
    words: Box<[AtomicU64]>,
    /// The page that each frame is for, once the frame is zeroed.
    ready: Box<[AtomicU64]>,
    page_bytes: u64,
    /// Bytes of all frames minus one.
    mask: u64,
}

impl Memory {
    /// `pages` frames, for the pages from `first` on. Both sizes are powers of two.
    #[must_use]
    pub fn new(page_bytes: usize, pages: usize, first: u64) -> Self {
        let count = pages as u64;
        let page_of = |frame: u64| first + (frame + count - first % count) % count;
        Self {
            words: huge::zeroed(page_bytes * pages / 8),
            ready: (0..count)
                .map(|frame| AtomicU64::new(page_of(frame)))
                .collect(),
            page_bytes: page_bytes as u64,
            mask: (page_bytes * pages) as u64 - 1,
        }
    }

    #[inline]
    fn word(&self, address: u64) -> &AtomicU64 {
        &self.words[((address & self.mask) >> 3) as usize]
    }

    #[inline]
    fn load(&self, address: u64) -> u64 {
        self.word(address).load(Ordering::Relaxed)
    }

    /// Whether there is a zeroed frame for a page.
    #[must_use]
    pub fn is_ready(&self, page: u64) -> bool {
        let frame = page as usize & (self.ready.len() - 1);
        self.ready[frame].load(Ordering::Acquire) == page
    }

    /// Gives the frame of `page`, which nobody looks at any more, to the page that is next in it.
    pub fn pass_on(&self, page: u64) {
        let first = (((page * self.page_bytes) & self.mask) >> 3) as usize;
        for word in &self.words[first..first + self.page_bytes as usize / 8] {
            word.store(0, Ordering::Relaxed);
        }
        let frame = page as usize & (self.ready.len() - 1);
        self.ready[frame].store(page + self.ready.len() as u64, Ordering::Release);
    }

    /// Copies the page at `address`.
    pub fn copy_page(&self, address: u64, target: &mut [u8]) {
        let first = ((address & self.mask) >> 3) as usize;
        for (bytes, word) in target.chunks_exact_mut(8).zip(&self.words[first..]) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
    }

    /// Has the processor fetch the record at `address`, if it is a short one.
    #[inline]
    pub fn prefetch(&self, address: u64) {
        huge::prefetch(self.word(address));
        // The end of most that begin in one line is in the next.
        huge::prefetch(self.word(address + HEADER_BYTES as u64 + 16));
    }

    /// Flags of a record, and the address before it.
    #[inline]
    #[must_use]
    pub fn link(&self, address: u64) -> Link {
        Link(self.load(address))
    }

    /// Whether a record has this key.
    #[inline]
    #[must_use]
    pub fn has_key(&self, address: u64, key: &[u8]) -> bool {
        let shape = Shape::of_word(self.load(address + 8));
        let first = address + HEADER_BYTES as u64;
        shape.key_bytes == key.len()
            && (first..)
                .step_by(8)
                .zip(key.chunks(8))
                .all(|(at, chunk)| self.load(at) == padded(chunk))
    }

    /// Reads the value of a record, whole. `false`: the record says that its key is gone.
    #[inline]
    pub fn read(&self, address: u64, value: &mut Vec<u8>) -> bool {
        loop {
            let word = self.word(address + 8);
            let seen = latch::begin_read(word);
            let is_deleted = self.link(address).is_deleted();
            self.copy_value(address, Shape::of_word(seen), value);
            if latch::is_unchanged(word, seen) {
                return !is_deleted;
            }
        }
    }

    /// Writes a record that nobody knows of yet.
    pub fn put(&self, address: u64, link: Link, key: &[u8], value: &[u8]) {
        let shape = Shape::of(key, value);
        self.word(address).store(link.0, Ordering::Relaxed);
        self.word(address + 8)
            .store(shape.word(), Ordering::Relaxed);
        self.put_bytes(address + HEADER_BYTES as u64, key);
        self.put_bytes(address + shape.value_offset() as u64, value);
    }

    /// Marks a record that did not come into its chain.
    pub fn void(&self, address: u64) {
        let link = self.link(address).voided();
        self.word(address).store(link.0, Ordering::Relaxed);
    }

    /// Locks a record for a change. `None` if it was replaced: the key is looked up again.
    #[must_use]
    pub fn lock(&self, address: u64) -> Option<Locked<'_>> {
        let seen = latch::lock(self.word(address + 8))?;
        Some(Locked {
            memory: self,
            address,
            seen,
            shape: Shape::of_word(seen),
            is_sealed: false,
        })
    }

    #[inline]
    fn copy_value(&self, address: u64, shape: Shape, value: &mut Vec<u8>) {
        value.clear();
        let first = address + shape.value_offset() as u64;
        for at in (first..first + shape.value_bytes as u64).step_by(8) {
            value.extend_from_slice(&self.load(at).to_le_bytes());
        }
        value.truncate(shape.value_bytes);
    }

    fn put_bytes(&self, address: u64, bytes: &[u8]) {
        for (at, chunk) in (address..).step_by(8).zip(bytes.chunks(8)) {
            self.word(at).store(padded(chunk), Ordering::Relaxed);
        }
    }
}

/// A record that its owner alone changes. Unlocks when it is dropped.
pub struct Locked<'a> {
    memory: &'a Memory,
    address: u64,
    seen: u64,
    shape: Shape,
    is_sealed: bool,
}

impl Locked<'_> {
    /// Copies the value out. `false`: the key is gone.
    pub fn read(&self, value: &mut Vec<u8>) -> bool {
        self.memory.copy_value(self.address, self.shape, value);
        !self.memory.link(self.address).is_deleted()
    }

    /// Puts another value in place. `false` if it needs another number of words, or is too long for
    /// a header.
    pub fn replace(&mut self, value: &[u8]) -> bool {
        let shape = Shape {
            value_bytes: value.len(),
            ..self.shape
        };
        let fits = shape.record_bytes() == self.shape.record_bytes();
        if !fits || shape.value_bytes > VALUE_BYTES_MAX {
            return false;
        }
        let first = self.address + shape.value_offset() as u64;
        self.memory.put_bytes(first, value);
        self.shape = shape;
        self.set_deleted(false);
        true
    }

    /// Says whether the key is gone.
    pub fn set_deleted(&self, is_deleted: bool) {
        let link = self.memory.link(self.address).with_deleted(is_deleted);
        let word = self.memory.word(self.address);
        word.store(link.0, Ordering::Relaxed);
    }

    /// Unlocks; nobody changes the record in place from here on.
    pub fn seal(mut self) {
        self.is_sealed = true;
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let word = self.memory.word(self.address + 8);
        latch::unlock(word, self.seen, self.shape.word(), self.is_sealed);
    }
}

/// Up to eight bytes as a word, with zeroes behind them.
#[inline]
fn padded(bytes: &[u8]) -> u64 {
    if let Ok(bytes) = bytes.try_into() {
        return u64::from_le_bytes(bytes);
    }
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}
