//! The tags of a volume's pages: what the client keeps of each to know it again.
//!
//! In memory that a file may stand behind, like the marks: a tag is stored when its page's write is
//! whole, and the kernel keeps it when the process is killed. While a write is under way its tag is
//! **staged** beside, so that whoever takes over knows both. A write that ended unknown leaves its
//! tag **pending**: the page may be what it was, or what was written, until it is written whole.
//!
//! Invariants:
//! - A page's tag changes only under the page's claim, so a reader that finds its claim version
//!   unchanged saw all of it.
//! - A tag is staged before its page is listed as being written, and stored before it is unlisted.
//!
//! Layout: `docs/formats/tags.md`.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_codec::{crc64, xxh3};
use cenote_durable::{allocate, allocate_range};
use memmap2::{MmapOptions, MmapRaw};

use super::encryption::{OWNERS_MAX, OwnerSalt, Sealer, fingerprint, owner_of};
use super::protection::Protection;
use crate::limits::IN_FLIGHT_MAX;
use crate::marks::{Marks, PageCount, Soundness, Words, header_of};

/// A tag: a checksum in the first word, or a seal.
pub type Tag = [u64; 3];

/// How checksums are made; a volume keeps to what its pages were written with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sum {
    /// CRC-64/NVME, as in files of the first version.
    Crc64,
    /// XXH3-64.
    Xxh3,
}

/// The tags of one volume.
pub struct Tags {
    entries: Words,
    staged: Words,
    pending: Words,
    pending_count: AtomicU64,
    /// Words of a tag.
    width: usize,
    sum: Sum,
    /// What encrypts pages, where tags are seals.
    pub sealer: Option<Sealer>,
    /// Salts of the owners whose pages may be there.
    owners: Owners,
    /// This owner's place among them, and its salt, where tags are seals.
    owner: Option<(usize, OwnerSalt)>,
    file: Option<File>,
    /// Pages whose tags the file has room for.
    room: AtomicU64,
}

/// The salts of a volume's owners, by their places. One whose pages are all gone has none any more.
struct Owners {
    header: Words,
    salts: Words,
}

/// Salt of an owner that is no more.
const NO_SALT: OwnerSalt = [0, 0];

/// Why tags cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum TagsError {
    /// The system refused.
    #[error("tags of pages: {0}")]
    Io(#[from] io::Error),
    /// The volume's pages were written under another protection, or without one.
    #[error("the volume's pages are not protected by {wanted}: open it as it was made")]
    Other {
        /// What it was to be opened with.
        wanted: &'static str,
    },
    /// Another version of this program wrote them.
    #[error("tags of pages: written by a version of this program that this one does not know")]
    Version,
    /// Its pages were sealed with another key.
    #[error("this is not the key that the volume's pages are sealed with")]
    Key,
    /// Pages of too many owners are in it.
    #[error(
        "pages of {OWNERS_MAX} owners are in the volume, each sealed by a key of its own: write some again"
    )]
    Owners,
}

/// Words in front of all else: magic, volume, width, fingerprint, number of owners.
const HEADER_WORDS: usize = 512;
/// Of seals, and of checksums that are CRC-64.
const MAGIC: u64 = u64::from_le_bytes(*b"cenoteT1");
/// Of checksums that are XXH3.
const MAGIC_XXH3: u64 = u64::from_le_bytes(*b"cenoteT2");
/// Words of a seal.
const SEAL_WORDS: usize = 3;
/// Words of a staged or pending tag: its page's number and 1, then the tag.
const SLOT_WORDS: usize = 4;
const OWNER_WORDS: usize = 2 * OWNERS_MAX;
const STAGED_WORDS: usize = SLOT_WORDS * IN_FLIGHT_MAX;
const FRONT_WORDS: usize = HEADER_WORDS + OWNER_WORDS + 2 * STAGED_WORDS;

impl Tags {
    /// Tags of a volume whose owner leaves nothing; `None` where its pages are not protected.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn anonymous(
        protection: &Protection,
        volume: u128,
        page_count: u64,
    ) -> Result<Option<Self>, TagsError> {
        let width = protection.tag_words();
        if width == 0 {
            return Ok(None);
        }
        let len = len_bytes(width, page_count)?;
        let map = Arc::new(MmapOptions::new().len(len).map_anon()?.into());
        let tags = Self::begin(&map, None, protection, volume, page_count)?;
        tags.enter_owner();
        Ok(Some(tags))
    }

    /// Tags in a file: fresh ones, or those that an earlier owner left of pages that `marks` says
    /// are written. `None` where the volume's pages are not protected.
    ///
    /// # Errors
    /// [`TagsError`]. What the file says stays as it was.
    pub fn in_file(
        file: &File,
        protection: &Protection,
        volume: u128,
        pages: impl Into<PageCount>,
        marks: &Marks,
    ) -> Result<Option<Self>, TagsError> {
        let pages = pages.into();
        let page_count = pages.max;
        let width = protection.tag_words();
        let has_pages = marks.written.next(0, page_count, true).is_some();
        let other = TagsError::Other {
            wanted: protection.name(),
        };
        let left = file.metadata()?.len();
        if width == 0 {
            return if has_pages && left > 0 {
                Err(other)
            } else {
                file.set_len(0)?;
                Ok(None)
            };
        }
        let len = len_bytes(width, page_count)?;
        if !has_pages {
            file.set_len(0)?;
        } else if left < (FRONT_WORDS * 8) as u64 {
            return Err(other);
        }
        if has_pages {
            // First: what is refused keeps its length, and no more of the disk.
            check(file, protection, volume)?;
        }
        allocate(file, len_bytes(width, pages.now)? as u64).inspect_err(|_| {
            if !has_pages {
                // The first error is the one to tell; what is there is of no use to anybody.
                drop(file.set_len(0));
            }
        })?;
        file.set_len((len as u64).max(file.metadata()?.len()))?;
        let map = Arc::new(MmapRaw::map_raw(file)?);
        if has_pages {
            Owners::new(&map).make_room(|| used_owners(&map, marks, page_count));
        }
        let file = Some(file.try_clone()?);
        let tags = Self::begin(&map, file, protection, volume, page_count)?;
        tags.room.store(pages.now, Ordering::Release);
        tags.inherit(marks);
        Ok(Some(tags))
    }

    /// Without a file for them there can be none.
    ///
    /// # Errors
    /// The volume's pages are to be protected.
    pub fn missing(protection: &Protection) -> Result<Option<Self>, TagsError> {
        match protection.tag_words() {
            0 => Ok(None),
            _ => Err(io::Error::from(io::ErrorKind::NotFound).into()),
        }
    }

    /// What the file is if it is new, and who the new owner is to be.
    fn begin(
        map: &Arc<MmapRaw>,
        file: Option<File>,
        protection: &Protection,
        volume: u128,
        page_count: u64,
    ) -> Result<Self, TagsError> {
        let width = protection.tag_words();
        let header = Words::new(map, 0, HEADER_WORDS);
        let word = |at: usize| &header.as_slice()[at];
        word(1).store(volume as u64, Ordering::Relaxed);
        word(2).store((volume >> 64) as u64, Ordering::Relaxed);
        word(3).store(width as u64, Ordering::Relaxed);
        let owners = Owners::new(map);
        let (mut sealer, mut owner) = (None, None);
        if let Protection::Sealed(key) = protection {
            let place = owners.free_place().ok_or(TagsError::Owners)?;
            let salt = random_salt()?;
            word(4).store(fingerprint(key, volume)?, Ordering::Relaxed);
            owner = Some((place, salt));
            sealer = Some(Sealer::new(key, volume, owners.all(), (place, salt))?);
        }
        let is_left = [MAGIC, MAGIC_XXH3].contains(&word(0).load(Ordering::Acquire));
        if !is_left {
            let magic = if sealer.is_some() { MAGIC } else { MAGIC_XXH3 };
            word(0).store(magic, Ordering::Release);
        }
        let sum = match word(0).load(Ordering::Acquire) {
            MAGIC => Sum::Crc64,
            _ => Sum::Xxh3,
        };
        let slots = HEADER_WORDS + OWNER_WORDS;
        let entry_words = usize::try_from(page_count).map_err(|_| too_large())? * width;
        Ok(Self {
            entries: Words::new(map, FRONT_WORDS, entry_words),
            staged: Words::new(map, slots, STAGED_WORDS),
            pending: Words::new(map, slots + STAGED_WORDS, STAGED_WORDS),
            pending_count: AtomicU64::new(0),
            width,
            sum,
            sealer,
            owners,
            owner,
            file,
            room: AtomicU64::new(0),
        })
    }

    /// The volume is this owner's: it may seal pages, and the next one will find by what key.
    pub fn enter_owner(&self) {
        if let Some((place, salt)) = self.owner {
            self.owners.set(place, salt);
        }
    }

    /// What an earlier owner had staged is pending, of pages that may be old or new.
    fn inherit(&self, marks: &Marks) {
        let slots = self.pending.as_slice().chunks(SLOT_WORDS);
        let count = slots.filter(|slot| slot[0].load(Ordering::Acquire) != 0);
        self.pending_count
            .store(count.count() as u64, Ordering::Release);
        for slot in 0..IN_FLIGHT_MAX {
            let (page, tag) = load_slot(&self.staged, slot);
            // What is redone is what it was to be, under the tag that it was to have.
            let Some(page) = page.filter(|_| !marks.is_unfinished(slot)) else {
                continue;
            };
            // Nothing else says that the file was not damaged here.
            let is_there = page < (self.entries.as_slice().len() / self.width) as u64;
            if is_there
                && marks.soundness(page) == Soundness::Doubtful
                && !self.add_pending(page, &tag)
            {
                marks.tear(page);
            }
            self.staged.as_slice()[slot * SLOT_WORDS].store(0, Ordering::Release);
        }
    }

    /// Makes sure that the file has room for the tags of so many pages.
    ///
    /// # Errors
    /// The disk is full.
    pub fn reserve(&self, page_count: u64) -> io::Result<()> {
        match &self.file {
            Some(file) => {
                // What is in use stays untouched.
                let before = self.room.load(Ordering::Acquire);
                let len = |pages| len_bytes(self.width, pages).map(|len| len as u64);
                allocate_range(file, len(before)?..len(page_count)?)?;
                self.room.fetch_max(page_count, Ordering::AcqRel);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The checksum of a page's bytes.
    #[inline]
    pub fn checksum(&self, bytes: &[u8]) -> u64 {
        match self.sum {
            Sum::Xxh3 => xxh3(bytes),
            Sum::Crc64 => crc64(bytes),
        }
    }

    /// The page's tag. It is the page's if nobody wrote the page meanwhile.
    #[inline]
    pub fn load(&self, page: u64) -> Tag {
        let entry = self.entry(page);
        let mut tag = [0; 3];
        for (word, stored) in tag.iter_mut().zip(entry) {
            *word = stored.load(Ordering::Relaxed);
        }
        tag
    }

    /// Hints that the page's tag is asked for soon: among many pages it is in no cache.
    #[inline]
    pub fn prefetch(&self, page: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let entry = self.entry(page).as_ptr();
            // SAFETY: a hint that never faults; the address is inside the map.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(entry.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = page;
    }

    /// Notes the tag that a write in this slot gives its page, before it is listed. Under its claim.
    #[inline]
    pub fn stage(&self, slot: usize, page: u64, tag: &Tag) {
        store_slot(&self.staged, slot, page, tag);
    }

    /// The tag that the write in this slot gives its page, unless it was stored already.
    pub fn staged(&self, slot: usize, page: u64) -> Option<Tag> {
        let (of, tag) = load_slot(&self.staged, slot);
        (of == Some(page)).then_some(tag)
    }

    /// The page is what the write in this slot made it. Under its claim.
    #[inline]
    pub fn commit(&self, slot: usize, page: u64, tag: &Tag) {
        self.decide(page, tag);
        self.staged.as_slice()[slot * SLOT_WORDS].store(0, Ordering::Release);
    }

    /// The write in this slot ended unknown; false when there is no room to remember what it was
    /// writing. Under its page's claim.
    pub fn fail(&self, slot: usize) -> bool {
        let (page, tag) = load_slot(&self.staged, slot);
        let kept = page.is_none_or(|page| self.add_pending(page, &tag));
        self.staged.as_slice()[slot * SLOT_WORDS].store(0, Ordering::Release);
        kept
    }

    /// No host has anything of the write in this slot. Under its page's claim.
    pub fn retract(&self, slot: usize) {
        self.staged.as_slice()[slot * SLOT_WORDS].store(0, Ordering::Release);
    }

    /// From here on the page's tag is this one alone. Under its claim.
    #[inline]
    pub fn decide(&self, page: u64, tag: &Tag) {
        for (stored, word) in self.entry(page).iter().zip(tag) {
            stored.store(*word, Ordering::Relaxed);
        }
        self.forget_pending(page);
    }

    /// The page holds nothing of what was pending. Under its claim.
    #[inline]
    pub fn forget_pending(&self, page: u64) {
        if self.pending_count.load(Ordering::Acquire) == 0 {
            return;
        }
        for slot in self.pending.as_slice().chunks(SLOT_WORDS) {
            if slot[0].load(Ordering::Acquire) == page + 1 {
                slot[0].store(0, Ordering::Release);
                self.pending_count.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Tags that the page may have instead of its own.
    pub fn pending(&self, page: u64) -> impl Iterator<Item = Tag> {
        let is_any = self.pending_count.load(Ordering::Acquire) > 0;
        let slots = if is_any { IN_FLIGHT_MAX } else { 0 };
        let all = (0..slots).map(|slot| load_slot(&self.pending, slot));
        all.filter_map(move |(of, tag)| (of == Some(page)).then_some(tag))
    }

    fn add_pending(&self, page: u64, tag: &Tag) -> bool {
        for slot in 0..IN_FLIGHT_MAX {
            let name = &self.pending.as_slice()[slot * SLOT_WORDS];
            // Taken first under a name that no page has, then filled, then named.
            let taken = name.compare_exchange(0, u64::MAX, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                store_slot(&self.pending, slot, page, tag);
                self.pending_count.fetch_add(1, Ordering::AcqRel);
                return true;
            }
        }
        false
    }

    #[inline]
    fn entry(&self, page: u64) -> &[AtomicU64] {
        let at = usize::try_from(page).expect("inside the volume") * self.width;
        &self.entries.as_slice()[at..][..self.width]
    }

    /// Bytes kept per page.
    pub fn bytes_per_page(&self) -> usize {
        self.width * 8
    }
}

impl Owners {
    fn new(map: &Arc<MmapRaw>) -> Self {
        Self {
            header: Words::new(map, 0, HEADER_WORDS),
            salts: Words::new(map, HEADER_WORDS, OWNER_WORDS),
        }
    }

    /// Places that were ever taken.
    fn count(&self) -> &AtomicU64 {
        &self.header.as_slice()[5]
    }

    fn places(&self) -> usize {
        let count = usize::try_from(self.count().load(Ordering::Acquire));
        count.unwrap_or(OWNERS_MAX).min(OWNERS_MAX)
    }

    /// Salts by place.
    fn all(&self) -> impl Iterator<Item = Option<OwnerSalt>> {
        let salts = self.salts.as_slice().chunks(2).take(self.places());
        salts.map(|salt| {
            let salt = [0, 1].map(|at: usize| salt[at].load(Ordering::Relaxed));
            (salt != NO_SALT).then_some(salt)
        })
    }

    /// A place that nobody has.
    fn free_place(&self) -> Option<usize> {
        let left = self.all().position(|salt| salt.is_none());
        left.or_else(|| Some(self.places()).filter(|&place| place < OWNERS_MAX))
    }

    fn set(&self, place: usize, salt: OwnerSalt) {
        for (word, value) in self.salts.as_slice()[2 * place..].iter().zip(salt) {
            word.store(value, Ordering::Relaxed);
        }
        self.count().fetch_max(place as u64 + 1, Ordering::Release);
    }

    /// When all places are taken, frees those of owners that are not `used`, by place. That looks at
    /// all tags, so it is done once in some thousand owners.
    fn make_room(&self, used: impl FnOnce() -> Vec<bool>) {
        if self.free_place().is_some() {
            return;
        }
        for (place, is_used) in used().into_iter().enumerate() {
            if !is_used {
                self.set(place, NO_SALT);
            }
        }
    }
}

/// By its place, whether an owner has sealed a page that may be read yet.
fn used_owners(map: &Arc<MmapRaw>, marks: &Marks, page_count: u64) -> Vec<bool> {
    let mut used = vec![false; OWNERS_MAX];
    let mut note = |word: u64| {
        if let Some(used) = used.get_mut(owner_of(&[word, 0, 0])) {
            *used = true;
        }
    };
    let slots = Words::new(map, HEADER_WORDS + OWNER_WORDS, 2 * STAGED_WORDS);
    for slot in slots.as_slice().chunks(SLOT_WORDS) {
        if slot[0].load(Ordering::Acquire) != 0 {
            note(slot[1].load(Ordering::Relaxed));
        }
    }
    let width = SEAL_WORDS;
    // Of a volume that is to grow there may be fewer tags than pages.
    let entries = (map.len() / 8 - FRONT_WORDS) / width;
    let tags = Words::new(map, FRONT_WORDS, entries * width);
    let known = page_count.min(entries as u64);
    for page in marks.written.range(0..known) {
        let at = usize::try_from(page).expect("inside the map") * width;
        note(tags.as_slice()[at].load(Ordering::Relaxed));
    }
    used
}

/// Whether the file is of this volume, this protection and this key.
fn check(file: &File, protection: &Protection, volume: u128) -> Result<(), TagsError> {
    let wanted = protection.name();
    let header = header_of(file)?.ok_or(TagsError::Other { wanted })?;
    let word = |at: usize| header[at];
    let magic = word(0);
    if magic != MAGIC && magic != MAGIC_XXH3 && magic << 8 == MAGIC << 8 {
        return Err(TagsError::Version);
    }
    let is_same = (magic == MAGIC || magic == MAGIC_XXH3 && word(3) == 1)
        && (word(1), word(2)) == (volume as u64, (volume >> 64) as u64)
        && word(3) == protection.tag_words() as u64;
    if !is_same {
        return Err(TagsError::Other { wanted });
    }
    match protection {
        Protection::Sealed(key) if word(4) != fingerprint(key, volume)? => Err(TagsError::Key),
        _ => Ok(()),
    }
}

fn load_slot(words: &Words, slot: usize) -> (Option<u64>, Tag) {
    let slot = &words.as_slice()[slot * SLOT_WORDS..][..SLOT_WORDS];
    // One that is just being filled names no page.
    let named = slot[0].load(Ordering::Acquire);
    let page = named.checked_sub(1).filter(|_| named != u64::MAX);
    let tag = [1, 2, 3].map(|at| slot[at].load(Ordering::Relaxed));
    (page, tag)
}

fn store_slot(words: &Words, slot: usize, page: u64, tag: &Tag) {
    let slot = &words.as_slice()[slot * SLOT_WORDS..][..SLOT_WORDS];
    for (stored, word) in slot[1..].iter().zip(tag) {
        stored.store(*word, Ordering::Relaxed);
    }
    slot[0].store(page + 1, Ordering::Release);
}

fn random_salt() -> io::Result<OwnerSalt> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let (low, high) = bytes.split_at(8);
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("8 bytes"));
    Ok([word(low), word(high)])
}

fn len_bytes(width: usize, page_count: u64) -> io::Result<usize> {
    let entries = usize::try_from(page_count).ok();
    let words = entries.and_then(|pages| pages.checked_mul(width)?.checked_add(FRONT_WORDS));
    words
        .and_then(|words| words.checked_mul(8))
        .ok_or_else(too_large)
}

fn too_large() -> io::Error {
    io::ErrorKind::FileTooLarge.into()
}

#[cfg(test)]
mod tests;
