//! What is known of each page: whether it holds data, and whether its splits agree.
//!
//! In memory that a file may stand behind, so that it survives the process (not the machine):
//! a store is all it costs, and a copy of each page that is written. Then the next owner finds which pages
//! hold data, which were being written when this process ended and what they were to be ([`List`]), and which
//! can no longer be read.
//!
//! A page is **doubtful** when a write of it ended unknown: its data splits are each old or new,
//! its parities may fit neither. It is read from its data splits alone. Once one of those is lost
//! it is **torn**: an error until it is written whole. Pages whose write is to be redone are so only until then.
//!
//! A `written` bit changes only under the page's claim, so a reader that finds its claim version
//! unchanged saw the right bit.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_durable::{allocate, allocate_range};
use cenote_pool::injected_faults::{InjectedFault, is_injected};
use memmap2::{MmapOptions, MmapRaw};

use crate::limits::IN_FLIGHT_MAX;

mod bitmap;
mod header;
mod list;
mod sums;

use bitmap::Room;
pub use bitmap::{Bitmap, PageBits};
pub use header::{begin_file, begun_by, description, header_of};
pub use list::Unfinished;

use list::{Images, List, Listed};

/// The marks of one volume.
pub struct Marks {
    /// Pages that hold data. A page whose bit is clear reads as zeros without touching a host.
    pub written: Bitmap,
    doubtful: Bitmap,
    torn: Bitmap,
    list: List,
    header: Words,
    /// Pages that are doubtful or torn; mostly none.
    troubled: AtomicU64,
    /// Held to change how such a page may be read.
    changes: Mutex<()>,
    /// What stands behind the map, if anything does.
    file: Option<File>,
    /// Epoch of the owner that stores to them; see [`sums`].
    owner: u64,
}

/// Pages that tables are for.
#[derive(Clone, Copy, Debug)]
pub struct PageCount {
    /// That the volume has: the disk keeps room for what is noted of them.
    pub now: u64,
    /// That it may grow to: addresses, and no more.
    pub max: u64,
}

impl From<u64> for PageCount {
    fn from(count: u64) -> Self {
        let (now, max) = (count, count);
        Self { now, max }
    }
}

/// The files that stand behind marks.
#[derive(Clone, Copy)]
pub struct MarksFiles<'a> {
    /// Of the list and the bits.
    pub pages: &'a File,
    /// Of the images of pages under way.
    pub images: &'a File,
    /// Owners so far: sums of the marks count if they are the last one's.
    pub epoch: u64,
}

/// How a page may be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Soundness {
    /// From any k splits.
    Sound,
    /// From its data splits alone.
    Doubtful,
    /// Not at all.
    Torn,
}

/// Why marks cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum MarksError {
    /// The system refused.
    #[error("list of pages: {0}")]
    Io(#[from] io::Error),
    /// It is not this volume's.
    #[error("list of pages: it belongs to another volume, or to none")]
    Foreign,
    /// The machine was started again since: what was in memory and not in the file is gone.
    #[error("list of pages: this machine was restarted since it was written")]
    Restarted,
    /// The end of the file is gone, and with it which pages hold data.
    #[error("list of pages: the file was cut short")]
    CutShort,
    /// Bits flipped on the disk, and which pages were being written is not known.
    #[error("list of pages damaged at byte {at}: which pages were being written is not known")]
    Damaged {
        /// Where the part of the file begins that is not what it was.
        at: usize,
    },
}

/// Words in front of all else: what the file is.
const HEADER_WORDS: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"cenoteP2");
/// The word with the pages that the file is long enough for; 0: an earlier version made it.
const COVERED: usize = 5;

impl Marks {
    /// Marks of a volume whose owner leaves nothing.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn anonymous(page_count: u64) -> io::Result<Self> {
        let map = MmapOptions::new().len(len_bytes(page_count)?).map_anon()?;
        let map = Arc::new(map.into());
        Ok(Self::over(map, page_count.into(), None, None))
    }

    /// Fresh marks in files; what was in them is gone.
    ///
    /// # Errors
    /// The system refuses, above all for want of room.
    pub fn create(
        files: MarksFiles<'_>,
        volume: u128,
        pages: impl Into<PageCount>,
    ) -> io::Result<Self> {
        let (file, pages) = (files.pages, pages.into());
        file.set_len(0)?;
        let room = len_bytes(pages.now)? as u64;
        allocate(file, room).inspect_err(|_| {
            // The first error is the one to tell; what is there is of no use to anybody.
            drop(file.set_len(0));
        })?;
        file.set_len(len_bytes(pages.max)? as u64)?;
        let (images, _) = Images::in_file(files.images, volume)?;
        let map = Arc::new(MmapRaw::map_raw(file)?);
        let header = Words::new(&map, 0, HEADER_WORDS);
        header.as_slice()[COVERED].store(pages.max, Ordering::Release);
        begin_file(header.as_slice(), MAGIC, volume)?;
        let file = Some(file.try_clone()?);
        let owner = files.epoch + 1;
        Ok(Self::over(map, pages, file, Some(images)).owned_by(owner))
    }

    /// Marks of a volume of which no slab holds anything: fresh ones, unless the files say that
    /// pages were written. Those are lost, and stay so.
    ///
    /// # Errors
    /// [`MarksError`], but not `Foreign`.
    pub fn without_slabs(
        files: MarksFiles<'_>,
        volume: u128,
        pages: impl Into<PageCount>,
    ) -> Result<Self, MarksError> {
        let pages = pages.into();
        match begun_by(files.pages, MAGIC, volume) {
            // Of another life of the machine it may still say that pages were written.
            Ok(()) | Err(MarksError::Restarted) => {}
            Err(MarksError::Foreign) => return Ok(Self::create(files, volume, pages)?),
            Err(error) => return Err(error),
        }
        let map = Self::map(files.pages, pages)?;
        let file = Some(files.pages.try_clone()?);
        let written = Self::over(map, pages, file, None).written;
        if written.next(0, pages.max, true).is_none() {
            return Ok(Self::create(files, volume, pages)?);
        }
        Self::take_over(files, volume, pages)
    }

    /// Whether a file has the marks of this volume, of an owner since the machine was started.
    ///
    /// # Errors
    /// [`MarksError::Io`].
    pub fn are_of_this_boot(file: &File, volume: u128) -> Result<bool, MarksError> {
        match begun_by(file, MAGIC, volume) {
            Ok(()) => Ok(true),
            Err(MarksError::Io(error)) => Err(error.into()),
            Err(_) => Ok(false),
        }
    }

    /// Says to the next owner that there is nothing to take over.
    pub fn disown(&self) {
        self.header.as_slice()[0].store(0, Ordering::Release);
    }

    /// Takes over the marks that an earlier owner left in files. Pages that were in flight are doubtful until
    /// their write is redone, or for good where it is not known what they were to be.
    ///
    /// # Errors
    /// [`MarksError`]. What the files say stays as it was.
    pub fn take_over(
        files: MarksFiles<'_>,
        volume: u128,
        pages: impl Into<PageCount>,
    ) -> Result<Self, MarksError> {
        let pages = pages.into();
        begun_by(files.pages, MAGIC, volume)?;
        let map = Self::map(files.pages, pages)?;
        let (images, are_left) = Images::in_file(files.images, volume)?;
        let file = Some(files.pages.try_clone()?);
        let marks = Self::over(map, pages, file, Some(images)).owned_by(files.epoch + 1);
        marks.check_sums(files.epoch, pages.now)?;
        let listed = (0..IN_FLIGHT_MAX).filter_map(|slot| marks.list.entry(slot));
        let last = listed.map(|listed| listed.page + 1).max().unwrap_or(0);
        if last > pages.max {
            return Err(MarksError::Foreign);
        }
        // An owner may have ended between growing and saying so.
        marks.reserve(last)?;
        for page in marks.doubtful.all(pages.max) {
            if marks.torn.contains(page) {
                marks.doubtful.remove(page);
            }
        }
        let troubled = marks.doubtful.count(0, pages.max) + marks.torn.count(0, pages.max);
        marks.troubled.store(troubled, Ordering::Release);
        for slot in 0..IN_FLIGHT_MAX {
            if !is_injected(InjectedFault::ForgetListed) {
                marks.inherit(slot, are_left);
            }
        }
        Ok(marks)
    }

    /// What becomes of a page that an earlier owner listed: it stays on the list if its write can be redone.
    fn inherit(&self, slot: usize, are_images_left: bool) {
        let Some(listed) = self.list.entry(slot) else {
            return;
        };
        // Of a page that held nothing and was not acknowledged, nothing is as good.
        let is_redone = listed.is_imaged
            && are_images_left
            && (listed.is_committed || !listed.is_fresh)
            && !is_injected(InjectedFault::SkipRedo);
        if is_redone {
            self.written.insert(listed.page);
            self.resolve(Listed {
                is_fresh: false,
                ..listed
            });
        } else {
            self.fail_write(slot);
        }
    }

    /// The writes that an earlier owner did not end, and that are to be redone before anything else is
    /// written.
    pub fn unfinished(&self) -> Vec<Unfinished> {
        let slots = 0..IN_FLIGHT_MAX;
        let listed = slots.filter_map(|slot| Some((slot, self.list.entry(slot)?)));
        listed
            .filter(|(_, listed)| listed.is_imaged && !is_injected(InjectedFault::ForgetListed))
            .map(|(slot, listed)| Unfinished {
                slot,
                page: listed.page,
            })
            .collect()
    }

    /// Whether the write in this slot is yet to be redone.
    pub fn is_unfinished(&self, slot: usize) -> bool {
        let listed = self.list.entry(slot);
        listed.is_some_and(|listed| listed.is_imaged)
    }

    /// What an unfinished write was to make of its page.
    pub fn image(&self, unfinished: Unfinished, into: &mut [u8]) {
        self.list.image(unfinished.slot, into);
    }

    /// Whether the next owner finds what is listed, and what that was to be.
    pub fn has_images(&self) -> bool {
        self.list.has_images()
    }

    /// The marks in a file that was begun for them.
    fn map(file: &File, pages: PageCount) -> Result<Arc<MmapRaw>, MarksError> {
        let covered = header_of(file)?.map_or(0, |header| header[COVERED]);
        if file.metadata()?.len() < len_bytes(covered)? as u64 {
            return Err(MarksError::CutShort);
        }
        // Before they are looked at: where files are in memory (tmpfs) even that needs room.
        allocate(file, len_bytes(pages.now)? as u64)?;
        // The volume may grow further than before.
        let len = len_bytes(pages.max)? as u64;
        file.set_len(len.max(file.metadata()?.len()))?;
        let map = Arc::new(MmapRaw::map_raw(file)?);
        let header = Words::new(&map, 0, HEADER_WORDS);
        header.as_slice()[COVERED].fetch_max(pages.max, Ordering::AcqRel);
        Ok(map)
    }

    /// Makes sure that the file has room for the marks of so many pages: a store to a page of it
    /// that the disk has no room for ends the process.
    ///
    /// # Errors
    /// The disk is full.
    pub fn reserve(&self, page_count: u64) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let before = self.written.room();
        if page_count <= before {
            return Ok(());
        }
        // What is in use stays untouched.
        let (from, to) = (len_bytes(before)? as u64, len_bytes(page_count)? as u64);
        allocate_range(file, from..to)?;
        let room = self.written.grow(page_count);
        // Of pages that the volume had before it was smaller.
        let troubled = self.doubtful.count(before, room) + self.torn.count(before, room);
        self.troubled.fetch_add(troubled, Ordering::AcqRel);
        Ok(())
    }

    /// Makes sure that these slots of the list have room for what their pages will be.
    ///
    /// # Errors
    /// The disk is full.
    pub fn reserve_slots(&self, slots: Range<usize>) -> io::Result<()> {
        self.list.reserve(slots)
    }

    fn over(
        map: Arc<MmapRaw>,
        pages: PageCount,
        file: Option<File>,
        images: Option<Images>,
    ) -> Self {
        // Nobody looks beyond what the disk keeps room for.
        let room = Room::new(if file.is_some() { pages.now } else { u64::MAX });
        let bitmap = |kind| {
            let first = HEADER_WORDS + IN_FLIGHT_MAX;
            let words = Words::new(&map, first, bitmap::words(pages.max));
            Bitmap::new(words, kind, room.clone())
        };
        Self {
            written: bitmap(0),
            doubtful: bitmap(1),
            torn: bitmap(2),
            list: List::new(Words::new(&map, HEADER_WORDS, IN_FLIGHT_MAX), images),
            header: Words::new(&map, 0, HEADER_WORDS),
            troubled: AtomicU64::new(0),
            changes: Mutex::new(()),
            file,
            owner: 0,
        }
    }

    fn owned_by(self, owner: u64) -> Self {
        Self { owner, ..self }
    }

    /// Lists `page` as being written by the operation that has this slot, before its first verb, with the
    /// whole page that it is to be; and marks it written. Whether it was not before. Under its claim.
    #[inline]
    pub fn begin_write(&self, slot: usize, page: u64, bytes: &[u8]) -> bool {
        let is_fresh = !self.written.contains(page);
        self.list.begin(slot, page, is_fresh, bytes);
        if is_fresh {
            self.written.insert(page);
        }
        is_fresh
    }

    /// Notes that the write of the page listed here is acknowledged, though not all of it has landed:
    /// what it was before must not be read any more. Under its claim.
    pub fn commit(&self, slot: usize) {
        self.list.commit(slot);
    }

    /// Takes a page off the list whose write ended unknown. One that held no data holds none
    /// again: its slabs may hold what was discarded long ago. One whose write was acknowledged is
    /// torn. Under its claim.
    pub fn fail_write(&self, slot: usize) {
        if let Some(listed) = self.list.entry(slot) {
            self.resolve(listed);
        }
        self.list.end(slot);
    }

    /// Takes a page off the list of which no verb was posted: it is what it was before. Under its claim.
    pub fn retract_write(&self, slot: usize) {
        if self.list.entry(slot).is_some_and(|listed| listed.is_fresh) {
            return self.fail_write(slot);
        }
        self.list.end(slot);
    }

    fn resolve(&self, listed: Listed) {
        let page = listed.page;
        if listed.is_committed {
            self.doubt(page);
            self.tear_doubtful(page, page + 1);
        } else if !listed.is_fresh {
            self.doubt(page);
        } else {
            self.written.remove(page);
            self.heal(page);
        }
    }

    /// Takes a page off the list whose splits agree. Under its claim.
    #[inline]
    pub fn end_write(&self, slot: usize, page: u64) {
        self.heal(page);
        self.list.end(slot);
    }

    /// How the page may be read.
    #[inline]
    pub fn soundness(&self, page: u64) -> Soundness {
        if self.troubled.load(Ordering::Acquire) == 0 || is_injected(InjectedFault::MendByParity) {
            return Soundness::Sound;
        }
        // First: who tears the page sets the other bit before clearing this one.
        let is_doubtful = self.doubtful.contains(page);
        match self.torn.contains(page) {
            true => Soundness::Torn,
            false if is_doubtful => Soundness::Doubtful,
            false => Soundness::Sound,
        }
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write of the page ended unknown.
    pub fn doubt(&self, page: u64) {
        let _changes = self.change();
        // First: who reads the page must look at the bit.
        self.troubled.fetch_add(1, Ordering::AcqRel);
        if self.torn.contains(page) || !self.doubtful.insert(page) {
            self.troubled.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The page was written whole, to every member, or holds no data any more. Under its claim.
    #[inline]
    pub fn heal(&self, page: u64) {
        if self.troubled.load(Ordering::Acquire) == 0
            || !(self.doubtful.contains(page) || self.torn.contains(page))
        {
            return;
        }
        let _changes = self.change();
        // A page is counted once, whichever bits it has.
        let (was_doubtful, was_torn) = (self.doubtful.remove(page), self.torn.remove(page));
        if was_doubtful || was_torn {
            self.troubled.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// A data split of these pages is lost: what is doubtful among them is torn.
    pub fn tear_doubtful(&self, from: u64, end: u64) {
        for page in self.doubtful_pages(from, end) {
            let _changes = self.change();
            // It may have been torn or healed meanwhile.
            if self.doubtful.contains(page) {
                // In this order a reader sees it as one or the other.
                self.torn.insert(page);
                self.doubtful.remove(page);
            }
        }
    }

    /// What is left of a page is not what was written: it is an error until it is written whole.
    pub fn tear(&self, page: u64) {
        let _changes = self.change();
        // First: who reads the page must look at the bit.
        self.troubled.fetch_add(1, Ordering::AcqRel);
        let was_torn = !self.torn.insert(page);
        let was_doubtful = self.doubtful.remove(page);
        if was_torn || was_doubtful {
            self.troubled.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Doubtful pages in `from..end`.
    pub fn doubtful_pages(&self, from: u64, end: u64) -> impl Iterator<Item = u64> {
        let mut next = if self.troubled.load(Ordering::Acquire) == 0 {
            end
        } else {
            from
        };
        std::iter::from_fn(move || {
            let page = self.doubtful.next(next, end, true)?;
            next = page + 1;
            Some(page)
        })
    }

    /// Torn pages in `from..end`.
    pub fn torn_pages(&self, from: u64, end: u64) -> impl Iterator<Item = u64> {
        let end = match self.troubled.load(Ordering::Acquire) {
            0 => from,
            _ => end,
        };
        self.torn.range(from..end)
    }

    /// How many of `from..end` are torn.
    pub fn torn_count(&self, from: u64, end: u64) -> u64 {
        if self.troubled.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.torn.count(from, end)
    }
}

fn len_bytes(page_count: u64) -> io::Result<usize> {
    let words = HEADER_WORDS + IN_FLIGHT_MAX + bitmap::words(page_count);
    words
        .checked_mul(8)
        .ok_or_else(|| ErrorKind::FileTooLarge.into())
}

/// Words of a shared map, which it keeps alive.
pub struct Words {
    _map: Arc<MmapRaw>,
    base: *const AtomicU64,
    count: usize,
}

// SAFETY: the words are atomics in a map that lives as long as this and is tied to no thread.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    pub fn new(map: &Arc<MmapRaw>, first: usize, count: usize) -> Self {
        assert!(
            (first + count) * 8 <= map.len(),
            "words {first}+{count} pass the map's end"
        );
        // SAFETY: inside the map, as just checked.
        let base = unsafe { map.as_mut_ptr().cast::<AtomicU64>().add(first) };
        Self {
            _map: Arc::clone(map),
            base,
            count,
        }
    }

    #[inline]
    pub fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: `new` bounds the range; the map is page-aligned, lives as long as `self`, and is
        // only touched through atomics. Its file is this process's own, under the volume's lock:
        // nobody truncates it.
        unsafe { std::slice::from_raw_parts(self.base, self.count) }
    }
}

#[cfg(test)]
mod tests;
