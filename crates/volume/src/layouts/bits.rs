//! A bit per page that says its layout: in a file that outlives the process, or in memory.
//!
//! The file begins with what it is, whose, and of which life of the machine, as that of the marks does.
//! The layout is told in `docs/protocols/journal.md`.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_durable::allocate;
use memmap2::{MmapOptions, MmapRaw};

use crate::extents::LayoutId;
use crate::marks::{Bitmap, MarksError, Words, begin_file, begun_by};

/// The layout of each page: a bit, set for the second.
pub struct Bits {
    words: Words,
}

/// Words in front of a file of bits: what it is.
const HEADER_WORDS: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"cenoteS1");

impl Bits {
    /// Fresh ones in a file; what was in it is gone.
    pub fn create(file: &File, volume: u128, page_count: u64) -> io::Result<Self> {
        let words = usize::try_from(page_count.div_ceil(64)).expect("pages fit the address space");
        let len = (HEADER_WORDS + words) * 8;
        file.set_len(0)?;
        // A store to a page that the disk has no room for ends the process.
        allocate(file, len as u64).inspect_err(|_| {
            // The first error is the one to tell.
            drop(file.set_len(0));
        })?;
        let map = Arc::new(MmapRaw::map_raw(file)?);
        let header = Words::new(&map, 0, HEADER_WORDS);
        begin_file(header.as_slice(), MAGIC, volume)?;
        Ok(Self {
            words: Words::new(&map, HEADER_WORDS, words),
        })
    }

    /// Those that an earlier owner left.
    ///
    /// # Errors
    /// [`MarksError`]. A file that is refused stays as it was.
    pub fn take_over(file: &File, volume: u128, page_count: u64) -> Result<Self, MarksError> {
        begun_by(file, MAGIC, volume)?;
        let words = usize::try_from(page_count.div_ceil(64)).expect("pages fit the address space");
        let len = (HEADER_WORDS + words) * 8;
        // The volume may grow further than before.
        allocate(file, file.metadata()?.len().max(len as u64))?;
        let map = Arc::new(MmapRaw::map_raw(file)?);
        Ok(Self {
            words: Words::new(&map, HEADER_WORDS, words),
        })
    }

    /// Those of a volume whose owner leaves nothing.
    pub fn anonymous(page_count: u64) -> io::Result<Self> {
        let count = usize::try_from(page_count.div_ceil(64)).expect("pages fit the address space");
        let map = MmapOptions::new().len(count * 8).map_anon()?;
        Ok(Self {
            words: Words::new(&Arc::new(map.into()), 0, count),
        })
    }

    #[inline]
    fn word(&self, page: u64) -> &AtomicU64 {
        let index = usize::try_from(page / 64).expect("pages fit the address space");
        &self.words.as_slice()[index]
    }

    /// Where a page is.
    #[inline]
    pub fn id_of(&self, page: u64) -> LayoutId {
        LayoutId::BOTH[(self.word(page).load(Ordering::Acquire) >> (page % 64) & 1) as usize]
    }

    /// The page is in a layout from here on.
    pub fn set(&self, page: u64, layout_id: LayoutId) {
        let bit = 1 << (page % 64);
        match layout_id {
            LayoutId::First => self.word(page).fetch_and(!bit, Ordering::AcqRel),
            LayoutId::Second => self.word(page).fetch_or(bit, Ordering::AcqRel),
        };
    }

    /// All pages are in a layout.
    pub fn fill(&self, layout_id: LayoutId) {
        let value = match layout_id {
            LayoutId::First => 0,
            LayoutId::Second => u64::MAX,
        };
        for word in self.words.as_slice() {
            // Most are so already, and an untouched page of zeros takes no memory.
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Release);
            }
        }
    }

    /// Marked pages of a layout in `from..end`.
    pub fn count_in(&self, layout_id: LayoutId, marked: &Bitmap, from: u64, end: u64) -> u64 {
        let mut total = 0;
        let mut page = from;
        while page < end {
            let next = (page / 64 + 1) * 64;
            let value = self.word(page).load(Ordering::Relaxed);
            let on = match layout_id {
                LayoutId::First => !value,
                LayoutId::Second => value,
            };
            let mut both = on & marked.word(page) & (u64::MAX << (page % 64));
            if next > end {
                both &= u64::MAX >> (next - end);
            }
            total += u64::from(both.count_ones());
            page = next;
        }
        total
    }

    /// The first page at or after `from` and before `end` that is in a layout.
    pub fn next_in(&self, layout_id: LayoutId, from: u64, end: u64) -> Option<u64> {
        let mut page = from;
        while page < end {
            let value = self.word(page).load(Ordering::Acquire);
            let on = match layout_id {
                LayoutId::First => !value,
                LayoutId::Second => value,
            };
            let wanted = on & (u64::MAX << (page % 64));
            if wanted != 0 {
                let found = page / 64 * 64 + u64::from(wanted.trailing_zeros());
                return (found < end).then_some(found);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }
}
