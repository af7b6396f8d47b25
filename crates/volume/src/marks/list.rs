//! The list of pages under way, and what each of them will be.
//!
//! A slot for each page operation. Before the first verb of a write its slot says which page it writes;
//! where the volume outlives its owner, the slot's **image** is the whole new page by then. When the
//! process is killed the kernel keeps both, and the next owner **redoes** the write: the page is old or new,
//! whichever hosts are lost besides.
//!
//! Invariants:
//! - An image is whole before its slot names the page: the slot's word is stored after it, and a killed
//!   process leaves the stores of each thread in the order in which it made them.
//! - An image stays as it is while its slot names the page: nobody begins a page in a slot that has one.
//! - A page is in one slot at a time: who lists it has its claim, and takes it off before the claim goes.
//!
//! Layout: `docs/formats/images.md`, `docs/protocols/journal.md`. Decision 46.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapRaw;

use super::{HEADER_WORDS, Words, begin_file, description};
use crate::PAGE_BYTES;
use crate::limits::{IN_FLIGHT_MAX, OPS_MAX};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

/// Bit of a listed page that held no data before.
const FRESH: u64 = 1 << 63;
/// Bit of a listed page whose write was acknowledged before all of it had landed.
const COMMITTED: u64 = 1 << 62;
/// Bit of a listed page whose slot has its image.
const IMAGED: u64 = 1 << 61;
const FLAGS: u64 = FRESH | COMMITTED | IMAGED;

/// The slots of one volume.
pub struct List {
    slots: Words,
    images: Option<Images>,
}

/// What a slot says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Listed {
    pub page: u64,
    /// It held no data before.
    pub is_fresh: bool,
    /// Its write was acknowledged.
    pub is_committed: bool,
    /// What it will be is known.
    pub is_imaged: bool,
}

/// A write that an earlier owner did not end: its place in the list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unfinished {
    pub(crate) slot: usize,
    pub(crate) page: u64,
}

impl Unfinished {
    /// The page that it writes.
    #[must_use]
    pub fn page(&self) -> u64 {
        self.page
    }
}

impl List {
    pub fn new(slots: Words, images: Option<Images>) -> Self {
        Self { slots, images }
    }

    /// Its words.
    pub(super) fn words(&self) -> &[AtomicU64] {
        self.slots.as_slice()
    }

    /// Whether slots have images, which the next owner finds.
    pub fn has_images(&self) -> bool {
        self.images.is_some()
    }

    /// Makes sure that these slots have room for their images: a store to a page of the file that the disk
    /// has no room for ends the process.
    ///
    /// # Errors
    /// The disk is full.
    pub fn reserve(&self, slots: Range<usize>) -> io::Result<()> {
        self.images
            .as_ref()
            .map_or(Ok(()), |images| images.reserve(slots))
    }

    /// Lists a page that is to be `bytes`. Under its claim, before the first verb.
    ///
    /// # Panics
    /// If the slot has a page: the image of one that is under way would go.
    #[inline]
    pub fn begin(&self, slot: usize, page: u64, is_fresh: bool, bytes: &[u8]) {
        let word = &self.slots.as_slice()[slot];
        let before = word.load(Ordering::Relaxed);
        assert!(
            before == 0 || is_injected(InjectedFault::ForgetListed),
            "slot {slot} has page {}, and is to have page {page}",
            (before & !FLAGS) - 1
        );
        let mut listed = page + 1;
        if is_fresh {
            listed |= FRESH;
        }
        if let Some(images) = &self.images {
            if !is_injected(InjectedFault::StaleImage) {
                images.store(slot, bytes);
            }
            listed |= IMAGED;
        }
        // After the image.
        word.store(listed, Ordering::Release);
    }

    /// Its write is acknowledged.
    pub fn commit(&self, slot: usize) {
        self.slots.as_slice()[slot].fetch_or(COMMITTED, Ordering::AcqRel);
    }

    /// Takes the page off.
    #[inline]
    pub fn end(&self, slot: usize) {
        self.slots.as_slice()[slot].store(0, Ordering::Release);
    }

    /// What the slot says.
    pub fn entry(&self, slot: usize) -> Option<Listed> {
        let listed = self.slots.as_slice()[slot].load(Ordering::Acquire);
        Some(Listed {
            page: (listed & !FLAGS).checked_sub(1)?,
            is_fresh: listed & FRESH != 0,
            is_committed: listed & COMMITTED != 0,
            is_imaged: listed & IMAGED != 0 && self.images.is_some(),
        })
    }

    /// The image of a page that the slot names.
    ///
    /// # Panics
    /// If the slots have no images.
    pub fn image(&self, slot: usize, into: &mut [u8]) {
        let images = self.images.as_ref();
        images
            .expect("it was listed with its image")
            .load(slot, into);
    }
}

/// The pages of all slots, in a file that is mapped.
pub struct Images {
    map: Arc<MmapRaw>,
    file: File,
}

const MAGIC: u64 = u64::from_le_bytes(*b"cenoteI1");

const _: () = assert!((HEADER_WORDS * 8).is_multiple_of(PAGE_BYTES));

impl Images {
    /// Images in a file, and whether those are there that an earlier owner of this volume left in this life
    /// of the machine. Whatever else was in it is gone.
    ///
    /// # Errors
    /// The system refuses.
    pub fn in_file(file: &File, volume: u128) -> io::Result<(Self, bool)> {
        let len = offset(IN_FLIGHT_MAX) as u64;
        let has = file.metadata()?.len();
        if has < len {
            file.set_len(len)?;
        }
        // And for a first worker: a volume that has no room is not opened.
        cenote_durable::allocate(file, offset(OPS_MAX) as u64)?;
        let map = Arc::new(MmapRaw::map_raw(file)?);
        let header = Words::new(&map, 0, HEADER_WORDS);
        let word = |at: usize| header.as_slice()[at].load(Ordering::Acquire);
        let left = [1, 2, 3, 4].map(word);
        let is_left = has >= len && word(0) == MAGIC && left == description(volume)?;
        if !is_left {
            begin_file(header.as_slice(), MAGIC, volume)?;
        }
        let file = file.try_clone()?;
        Ok((Self { map, file }, is_left))
    }

    fn reserve(&self, slots: Range<usize>) -> io::Result<()> {
        let (from, len) = (offset(slots.start), offset(slots.end) - offset(slots.start));
        let range = from as u64..(from + len) as u64;
        cenote_durable::allocate_range(&self.file, range)?;
        // In memory as well: a write is not to wait for that. The system may refuse: then it does.
        if let Err(error) = self.populate(from, len) {
            tracing::debug!(%error, "populate the images of pages under way");
        }
        Ok(())
    }

    fn populate(&self, from: usize, len: usize) -> io::Result<()> {
        assert!(from + len <= self.map.len(), "slots pass the map's end");
        // SAFETY: the range is inside the map, as just checked, and its bytes stay as they are.
        let done = unsafe {
            let start = self.map.as_mut_ptr().add(from);
            libc::madvise(start.cast(), len, libc::MADV_POPULATE_WRITE)
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[inline]
    fn store(&self, slot: usize, bytes: &[u8]) {
        assert_eq!(bytes.len(), PAGE_BYTES);
        let to = self.slot(slot);
        // SAFETY: a page each, which do not overlap: `bytes` is no part of the map, of which nobody makes
        // references. A slot's image is touched by the operation that has the slot alone.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), PAGE_BYTES) };
    }

    fn load(&self, slot: usize, into: &mut [u8]) {
        assert_eq!(into.len(), PAGE_BYTES);
        let from = self.slot(slot).cast_const();
        // SAFETY: as in `store`.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(from, PAGE_BYTES) };
    }

    #[inline]
    fn slot(&self, slot: usize) -> *mut u8 {
        let at = offset(slot);
        assert!(
            at + PAGE_BYTES <= self.map.len(),
            "slot {slot} passes the map's end"
        );
        // SAFETY: inside the map, as just checked.
        unsafe { self.map.as_mut_ptr().add(at) }
    }
}

/// Where a slot's image begins.
const fn offset(slot: usize) -> usize {
    HEADER_WORDS * 8 + slot * PAGE_BYTES
}
