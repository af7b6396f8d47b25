//! What is known of each page: whether it holds data, and whether its splits agree.
//!
//! In memory that a file may stand behind, so that it survives the process (not the machine):
//! a store is all it costs. Then the next owner finds which pages hold data, which were being
//! written when this process ended, and which can no longer be read.
//!
//! A page is **doubtful** when a write of it ended unknown: its data splits are each old or new,
//! its parities may fit neither. It is read from its data splits alone. Once one of those is lost
//! it is **torn**: an error until it is written whole.
//!
//! A `written` bit changes only under the page's claim, so a reader that finds its claim version
//! unchanged saw the right bit.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_pool::planted::{Planted, is_planted};
use memmap2::{MmapOptions, MmapRaw};

mod bitmap;

pub use bitmap::Bitmap;

/// Pages that may be in flight at a time.
pub const IN_FLIGHT_MAX: usize = crate::directory::WORKERS_MAX * crate::worker::OPS_MAX;

/// The marks of one volume.
pub struct Marks {
    /// Pages that hold data. A page whose bit is clear reads as zeros without touching a host.
    pub written: Bitmap,
    doubtful: Bitmap,
    torn: Bitmap,
    in_flight: Words,
    header: Words,
    /// Pages that are doubtful or torn; mostly none.
    troubled: AtomicU64,
    /// What stands behind the map, if anything does.
    file: Option<File>,
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
    /// The machine was started anew since: what was in memory and not in the file is gone.
    #[error("list of pages: this machine was restarted since it was written")]
    Restarted,
}

/// Words in front of all else: what the file is.
const HEADER_WORDS: usize = 512;
/// Bit of a listed page that held no data before.
const FRESH: u64 = 1 << 63;
/// Bit of a listed page whose write was acknowledged before all of it had landed.
const COMMITTED: u64 = 1 << 62;
const MAGIC: u64 = u64::from_le_bytes(*b"cenoteP1");

impl Marks {
    /// Marks of a volume whose owner leaves nothing.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn anonymous(page_count: u64) -> io::Result<Self> {
        let map = MmapOptions::new().len(len_bytes(page_count)?).map_anon()?;
        Ok(Self::over(Arc::new(map.into()), page_count, None))
    }

    /// Fresh marks in a file, for up to `page_count` pages; what was in it is gone.
    ///
    /// # Errors
    /// The system refuses.
    pub fn create(file: &File, volume: u128, page_count: u64) -> io::Result<Self> {
        file.set_len(0)?;
        file.set_len(len_bytes(page_count)? as u64)?;
        allocate(file, (HEADER_WORDS + IN_FLIGHT_MAX) * 8)?;
        let map = Arc::new(MmapRaw::map_raw(file)?);
        let header = Words::new(&map, 0, HEADER_WORDS);
        begin_file(header.as_slice(), MAGIC, volume)?;
        Ok(Self::over(map, page_count, Some(file.try_clone()?)))
    }

    /// Marks of a volume of which no slab holds anything: fresh ones, unless the file says that
    /// pages were written. Those are lost, and stay so.
    ///
    /// # Errors
    /// [`MarksError`], but not `Foreign`.
    pub fn without_slabs(file: &File, volume: u128, page_count: u64) -> Result<Self, MarksError> {
        let left = match Self::map(file, volume, page_count) {
            Ok(left) => left,
            Err(MarksError::Foreign) => return Ok(Self::create(file, volume, page_count)?),
            Err(error) => return Err(error),
        };
        if left.0.written.next(0, page_count, true).is_none() {
            return Ok(Self::create(file, volume, page_count)?);
        }
        Self::take_over(file, volume, page_count)
    }

    /// Says to the next owner that there is nothing to take over.
    pub fn disown(&self) {
        self.header.as_slice()[0].store(0, Ordering::Release);
    }

    /// Takes over the marks that an earlier owner left in a file. Pages that were in flight are doubtful.
    ///
    /// # Errors
    /// [`MarksError`]. What the file says stays as it was.
    pub fn take_over(file: &File, volume: u128, page_count: u64) -> Result<Self, MarksError> {
        let (marks, is_of_this_boot) = Self::map(file, volume, page_count)?;
        if !is_of_this_boot {
            return Err(MarksError::Restarted);
        }
        for page in marks.doubtful.all(page_count) {
            if marks.torn.contains(page) {
                marks.doubtful.remove(page);
            }
        }
        let troubled = marks.doubtful.count(0, page_count) + marks.torn.count(0, page_count);
        marks.troubled.store(troubled, Ordering::Release);
        let listed = marks.in_flight.as_slice().iter();
        let mut pages = listed.map(|slot| slot.load(Ordering::Acquire) & !(FRESH | COMMITTED));
        if pages.any(|page| page > page_count) {
            return Err(MarksError::Foreign);
        }
        for slot in 0..IN_FLIGHT_MAX {
            if !is_planted(Planted::ForgetListed) {
                marks.fail_write(slot);
            }
        }
        Ok(marks)
    }

    /// The marks in a file, and whether they were written in this life of the machine.
    fn map(file: &File, volume: u128, page_count: u64) -> Result<(Self, bool), MarksError> {
        let has = file.metadata()?.len();
        if has < (HEADER_WORDS * 8) as u64 {
            return Err(MarksError::Foreign);
        }
        let mut map = Arc::new(MmapRaw::map_raw(file)?);
        let header = Words::new(&map, 0, HEADER_WORDS);
        let word = |at: usize| header.as_slice()[at].load(Ordering::Acquire);
        let [low, high, boot_low, boot_high] = description(volume)?;
        if word(0) != MAGIC || (word(1), word(2)) != (low, high) {
            return Err(MarksError::Foreign);
        }
        let is_of_this_boot = (word(3), word(4)) == (boot_low, boot_high);
        let len = len_bytes(page_count)? as u64;
        if has < len {
            // The volume may grow further than before.
            file.set_len(len)?;
            map = Arc::new(MmapRaw::map_raw(file)?);
        }
        let marks = Self::over(map, page_count, Some(file.try_clone()?));
        Ok((marks, is_of_this_boot))
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
        allocate(file, len_bytes(page_count)?)
    }

    fn over(map: Arc<MmapRaw>, page_count: u64, file: Option<File>) -> Self {
        let bitmap = |kind| {
            let first = HEADER_WORDS + IN_FLIGHT_MAX;
            Bitmap::new(Words::new(&map, first, bitmap::words(page_count)), kind)
        };
        Self {
            written: bitmap(0),
            doubtful: bitmap(1),
            torn: bitmap(2),
            in_flight: Words::new(&map, HEADER_WORDS, IN_FLIGHT_MAX),
            header: Words::new(&map, 0, HEADER_WORDS),
            troubled: AtomicU64::new(0),
            file,
        }
    }

    /// Lists `page` as being written by the operation that has this slot, before its first verb,
    /// and marks it written; whether it was not before. Under its claim.
    #[inline]
    pub fn begin_write(&self, slot: usize, page: u64) -> bool {
        let is_fresh = !self.written.contains(page);
        let fresh = if is_fresh { FRESH } else { 0 };
        self.in_flight.as_slice()[slot].store((page + 1) | fresh, Ordering::Release);
        if is_fresh {
            self.written.insert(page);
        }
        is_fresh
    }

    /// Notes that the write of the page listed here is acknowledged, though not all of it has landed:
    /// what it was before must not be read any more. Under its claim.
    pub fn commit(&self, slot: usize) {
        self.in_flight.as_slice()[slot].fetch_or(COMMITTED, Ordering::AcqRel);
    }

    /// Takes a page off the list whose write ended unknown. One that held no data holds none
    /// again: its slabs may hold what was discarded long ago. One whose write was acknowledged is
    /// torn. Under its claim.
    pub fn fail_write(&self, slot: usize) {
        let word = &self.in_flight.as_slice()[slot];
        self.resolve(word.load(Ordering::Acquire));
        word.store(0, Ordering::Release);
    }

    fn resolve(&self, listed: u64) {
        let Some(page) = (listed & !(FRESH | COMMITTED)).checked_sub(1) else {
            return;
        };
        if listed & COMMITTED != 0 {
            self.doubt(page);
            self.condemn(page, page + 1);
        } else if listed & FRESH == 0 {
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
        self.in_flight.as_slice()[slot].store(0, Ordering::Release);
    }

    /// How the page may be read.
    #[inline]
    pub fn soundness(&self, page: u64) -> Soundness {
        if self.troubled.load(Ordering::Acquire) == 0 || is_planted(Planted::MendByParity) {
            Soundness::Sound
        } else if self.torn.contains(page) {
            Soundness::Torn
        } else if self.doubtful.contains(page) {
            Soundness::Doubtful
        } else {
            Soundness::Sound
        }
    }

    /// A write of the page ended unknown.
    pub fn doubt(&self, page: u64) {
        // First: who reads the page must look at the bit.
        self.troubled.fetch_add(1, Ordering::AcqRel);
        if self.torn.contains(page) || !self.doubtful.insert(page) {
            self.troubled.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The page was written whole, to every member, or holds no data any more. Under its claim.
    #[inline]
    pub fn heal(&self, page: u64) {
        if self.troubled.load(Ordering::Acquire) == 0 {
            return;
        }
        // A page is counted once, whichever bits it has.
        let (was_doubtful, was_torn) = (self.doubtful.remove(page), self.torn.remove(page));
        if was_doubtful || was_torn {
            self.troubled.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// A data split of these pages is lost: what is doubtful among them is torn.
    pub fn condemn(&self, from: u64, end: u64) {
        for page in self.doubtful_pages(from, end) {
            // In this order a reader sees it as one or the other.
            self.torn.insert(page);
            if !self.doubtful.remove(page) {
                self.torn.remove(page); // Healed meanwhile.
            }
        }
    }

    /// What is left of a page is not what was written: it is an error until it is written whole.
    pub fn tear(&self, page: u64) {
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
    pub fn torn_count(&self, from: u64, end: u64) -> u64 {
        if self.troubled.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.torn.count(from, end)
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
        let count = bitmap::words(page_count);
        let map = MmapOptions::new().len(count * 8).map_anon()?;
        Ok(Self {
            map: Arc::new(map.into()),
            count,
        })
    }

    /// One of the bitmaps.
    pub fn bitmap(&self, kind: u64) -> Bitmap {
        Bitmap::new(Words::new(&self.map, 0, self.count), kind)
    }
}

/// Says in front of a file what it is, and of whom; the first word last, for without it there is nothing.
pub fn begin_file(header: &[AtomicU64], magic: u64, volume: u128) -> io::Result<()> {
    for (word, value) in header[1..].iter().zip(description(volume)?) {
        word.store(value, Ordering::Relaxed);
    }
    header[0].store(magic, Ordering::Release);
    Ok(())
}

/// Whose marks they are, and in which life of the machine.
pub fn description(volume: u128) -> io::Result<[u64; 4]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let boot = u128::from_str_radix(&digits, 16)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "boot_id is no number"))?;
    let halves = |value: u128| [value as u64, (value >> 64) as u64];
    let ([a, b], [c, d]) = (halves(volume), halves(boot));
    Ok([a, b, c, d])
}

/// Has the disk keep room for the first bytes of a file.
pub fn allocate(file: &File, len_bytes: usize) -> io::Result<()> {
    let len =
        libc::off_t::try_from(len_bytes).map_err(|_| io::Error::from(ErrorKind::FileTooLarge))?;
    // SAFETY: no pointers.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
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
