//! One bit per page, in words that three bitmaps share block by block, so that all grow at the end.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::Words;

/// Words of one bitmap in a block: 4 KiB, the bits of 128 MiB.
pub(super) const BLOCK_WORDS: u64 = 512;
pub(super) const BLOCK_PAGES: u64 = BLOCK_WORDS * 64;
/// Bitmaps that share the words.
pub(super) const KINDS: u64 = 3;

/// Words that hold the bitmaps of so many pages.
pub(super) fn words(page_count: u64) -> usize {
    let blocks = page_count.div_ceil(BLOCK_PAGES);
    usize::try_from(blocks * BLOCK_WORDS * KINDS).expect("volume sizes fit the address space")
}

/// How many pages there is room for, of all bitmaps that share words. Behind that nothing is looked
/// at: all bits are clear.
#[derive(Clone)]
pub struct Room(Arc<AtomicU64>);

impl Room {
    /// For so many pages, in whole blocks.
    pub fn new(page_count: u64) -> Self {
        Self(Arc::new(AtomicU64::new(in_blocks(page_count))))
    }
}

fn in_blocks(page_count: u64) -> u64 {
    page_count.div_ceil(BLOCK_PAGES).saturating_mul(BLOCK_PAGES)
}

/// One bit per page of the volume.
pub struct Bitmap {
    words: Words,
    offset: u64,
    room: Room,
}

impl Bitmap {
    pub(super) fn new(words: Words, kind: u64, room: Room) -> Self {
        Self {
            words,
            offset: kind * BLOCK_WORDS,
            room,
        }
    }

    /// Pages that the words are for, in whole blocks.
    pub(super) fn pages(&self) -> u64 {
        self.words.as_slice().len() as u64 / (BLOCK_WORDS * KINDS) * BLOCK_PAGES
    }

    /// The words of a block, of all bitmaps that share it.
    pub(super) fn block(&self, block: u64) -> &[AtomicU64] {
        let len = BLOCK_WORDS * KINDS;
        let word = |at: u64| usize::try_from(at).expect("pages fit the address space");
        &self.words.as_slice()[word(block * len)..word((block + 1) * len)]
    }

    /// Pages that there is room for.
    pub fn room(&self) -> u64 {
        self.room.0.load(Ordering::Acquire)
    }

    /// There is room for so many pages, here and in those that share the words; for how many now.
    pub(super) fn grow(&self, page_count: u64) -> u64 {
        let room = in_blocks(page_count);
        self.room.0.fetch_max(room, Ordering::AcqRel).max(room)
    }

    #[inline]
    fn place(&self, page: u64) -> (&AtomicU64, u64) {
        let block = page / BLOCK_PAGES * (BLOCK_WORDS * KINDS);
        let word = block + self.offset + page % BLOCK_PAGES / 64;
        let index = usize::try_from(word).expect("pages fit the address space");
        (&self.words.as_slice()[index], 1 << (page % 64))
    }

    #[inline]
    pub fn contains(&self, page: u64) -> bool {
        let (word, bit) = self.place(page);
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Sets the bit; whether it was clear.
    #[inline]
    pub fn insert(&self, page: u64) -> bool {
        let (word, bit) = self.place(page);
        // Most writes overwrite: a load avoids a locked instruction.
        word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Clears the bit; whether it was set.
    #[inline]
    pub fn remove(&self, page: u64) -> bool {
        let (word, bit) = self.place(page);
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// The bits of the 64 pages that a page is among, the first one's lowest.
    pub fn word(&self, page: u64) -> u64 {
        self.place(page).0.load(Ordering::Relaxed)
    }

    /// The first page at or after `from` and before `end` whose bit is `set`.
    pub fn next(&self, from: u64, end: u64, set: bool) -> Option<u64> {
        let room = self.room();
        let mut page = from;
        while page < end.min(room) {
            let value = self.place(page).0.load(Ordering::Acquire);
            let wanted = if set { value } else { !value } & (u64::MAX << (page % 64));
            if wanted != 0 {
                let found = page / 64 * 64 + u64::from(wanted.trailing_zeros());
                return (found < end).then_some(found);
            }
            page = (page / 64 + 1) * 64;
        }
        (!set && page < end).then_some(page)
    }

    /// The bit of `page`, and the first page behind it and before `end` whose bit differs.
    pub fn run(&self, page: u64, end: u64) -> (bool, Option<u64>) {
        let is_set = self.contains(page);
        // A search from `page` itself could find that it changed meanwhile: an empty run.
        (is_set, self.next(page + 1, end, !is_set))
    }

    /// Every page below `end` with its bit set.
    pub fn all(&self, end: u64) -> impl Iterator<Item = u64> {
        self.range(0..end)
    }

    /// Every page of a range with its bit set.
    pub fn range(&self, pages: Range<u64>) -> impl Iterator<Item = u64> {
        let mut next = pages.start;
        std::iter::from_fn(move || {
            let page = self.next(next, pages.end, true)?;
            next = page + 1;
            Some(page)
        })
    }

    /// Pages with their bit set in `from..end`.
    pub fn count(&self, from: u64, end: u64) -> u64 {
        let end = end.min(self.room());
        let mut total = 0;
        let mut page = from;
        while page < end {
            let mut value = self.place(page).0.load(Ordering::Relaxed) & (u64::MAX << (page % 64));
            let next = (page / 64 + 1) * 64;
            if next > end {
                value &= u64::MAX >> (next - end);
            }
            total += u64::from(value.count_ones());
            page = next;
        }
        total
    }
}

/// Bits per page that no file stands behind.
pub struct PageBits {
    map: Arc<MmapRaw>,
    count: usize,
}

impl PageBits {
    /// Room for the bitmaps of so many pages, all clear. Takes memory where it is used.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn anonymous(page_count: u64) -> io::Result<Self> {
        let count = words(page_count);
        let map = MmapOptions::new().len(count * 8).map_anon()?;
        Ok(Self {
            map: Arc::new(map.into()),
            count,
        })
    }

    /// One of the bitmaps.
    pub fn bitmap(&self, kind: u64) -> Bitmap {
        let room = Room::new(u64::MAX);
        Bitmap::new(Words::new(&self.map, 0, self.count), kind, room)
    }
}
