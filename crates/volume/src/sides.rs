//! Which side each page is on, and how pages lie there.
//!
//! In rest all pages are on one side, and nobody looks at a bit. While the volume's k changes, a bit per
//! page says the side; it stays true before and after, so it does not matter when a worker sees
//! that a change has begun or ended.
//!
//! Invariants: a page's bit changes under its claim, once every member of its new stripe has the page; a side
//! is laid out anew only when no page is on it and no stripe is left of it.
//!
//! Concurrency: lock-free, any thread; the control thread alone lays sides out. Decision 32.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use memmap2::{MmapOptions, MmapRaw};

use crate::Scheme;
use crate::extents::{Side, index_of};
use crate::layout::{Layout, Place};
use crate::marks::{MarksError, Words, allocate, description};
use crate::scheme::Cut;

/// The two layouts of one volume, and where its pages are.
pub struct Sides {
    slab_bytes: u64,
    page_count: u64,
    cuts: [AtomicU8; 2],
    /// That extents are to have.
    parities: [AtomicU8; 2],
    /// Where pages are: a side, or [`MIXED`].
    home: AtomicU8,
    /// Where pages are to be.
    target: AtomicU8,
    bits: OnceLock<Bits>,
    /// Behind the bits, where they outlive this process, and whose they are.
    file: Option<(File, u128)>,
}

/// Pages may be on either side.
const MIXED: u8 = 2;

impl Sides {
    /// All pages on one side, which is laid out so.
    pub fn new(side: Side, scheme: Scheme, slab_bytes: u64, page_count: u64) -> Self {
        let sides = Self {
            slab_bytes,
            page_count,
            cuts: [const { AtomicU8::new(0) }; 2],
            parities: [const { AtomicU8::new(0) }; 2],
            home: AtomicU8::new(side as u8),
            target: AtomicU8::new(side as u8),
            bits: OnceLock::new(),
            file: None,
        };
        sides.lay_out(side, Cut::of(scheme));
        sides.set_parities(side, scheme.r());
        sides
    }

    /// How pages lie on a side, or lay there last.
    pub fn layout(&self, side: Side) -> Layout {
        let cut = Cut::of_log2(self.cuts[side as usize].load(Ordering::Acquire));
        self.layout_with(cut)
    }

    /// How pages would lie that are cut so.
    pub fn layout_with(&self, cut: Cut) -> Layout {
        Layout::new(cut, self.slab_bytes)
    }

    /// The scheme that extents of a side have, or are to have.
    pub fn scheme(&self, side: Side) -> Scheme {
        let parities = self.parities[side as usize].load(Ordering::Acquire);
        self.layout(side).cut().with_parities(parities.into())
    }

    /// Has extents of a side come to have so many parities.
    pub fn set_parities(&self, side: Side, parities: usize) {
        let parities = u8::try_from(parities).expect("a few");
        self.parities[side as usize].store(parities, Ordering::Release);
    }

    /// Keeps the bits in a file, made when a change begins.
    pub fn keep(self, file: File, volume: u128) -> Self {
        let file = Some((file, volume));
        Self { file, ..self }
    }

    /// Goes on with a change that the last owner left in the middle of: pages are where the file's bits
    /// say, and go to where they are not all yet.
    ///
    /// # Errors
    /// The file is not this volume's, or of before the machine was started anew.
    pub fn take_over(&self, other: Scheme) -> Result<(), MarksError> {
        let Some((file, volume)) = &self.file else {
            return Err(MarksError::Foreign);
        };
        let bits = Bits::take_over(file, *volume, self.page_count)?;
        self.bits.get_or_init(|| bits);
        let side = self.target().other();
        self.lay_out(side, Cut::of(other));
        self.set_parities(side, other.r());
        self.home.store(MIXED, Ordering::Release);
        Ok(())
    }

    fn lay_out(&self, side: Side, cut: Cut) {
        self.cuts[side as usize].store(cut.log2(), Ordering::Release);
    }

    /// The side that a page is on. It stays there while its claim's version does.
    #[inline]
    pub fn side_of(&self, page: u64) -> Side {
        match self.home.load(Ordering::Acquire) {
            MIXED => self
                .bits
                .get()
                .map_or(Side::First, |bits| bits.side_of(page)),
            side => Side::BOTH[usize::from(side & 1)],
        }
    }

    /// Where a page is.
    #[inline]
    pub fn locate(&self, page: u64) -> Place {
        self.place_on(self.side_of(page), page)
    }

    /// Where a page is to be on a side.
    #[inline]
    pub fn place_on(&self, side: Side, page: u64) -> Place {
        let place = self.layout(side).locate(page);
        Place {
            extent: side.extent(place.extent),
            ..place
        }
    }

    /// The pages of an extent that the volume may have.
    pub fn pages(&self, extent: usize) -> std::ops::Range<u64> {
        let pages = self.layout(Side::of(extent)).pages(index_of(extent));
        pages.start.min(self.page_count)..pages.end.min(self.page_count)
    }

    /// Pages that the volume may have.
    pub fn page_count(&self) -> u64 {
        self.page_count
    }

    /// Where pages are to be.
    pub fn target(&self) -> Side {
        Side::BOTH[usize::from(self.target.load(Ordering::Acquire) & 1)]
    }

    /// Whether pages are on both sides, or may be.
    pub fn is_mixed(&self) -> bool {
        self.home.load(Ordering::Acquire) == MIXED
    }

    /// Whether a side has, or may have, pages.
    pub fn has(&self, side: Side) -> bool {
        let home = self.home.load(Ordering::Acquire);
        home == MIXED || home == side as u8
    }

    /// Makes the bits: all pages are where they are.
    ///
    /// # Errors
    /// The system has no memory or no room for them.
    pub fn prepare(&self) -> io::Result<()> {
        let from = self.target();
        if self.bits.get().is_none() {
            // Only the control thread gets here.
            let bits = match &self.file {
                Some((file, volume)) => Bits::create(file, *volume, self.page_count)?,
                None => Bits::anonymous(self.page_count)?,
            };
            self.bits.get_or_init(|| bits);
        }
        self.bits.get().expect("just made").fill(from);
        Ok(())
    }

    /// Lays out the empty side, to which pages go from now on. The bits are made, and the directory has room
    /// for its extents.
    pub fn begin(&self, cut: Cut) {
        let to = self.target().other();
        self.lay_out(to, cut);
        self.home.store(MIXED, Ordering::Release);
        self.turn(to);
    }

    /// Has pages go to the other one of two sides that are there.
    pub fn turn(&self, target: Side) {
        self.target.store(target as u8, Ordering::Release);
    }

    /// The page is on the side where it is to be. Under its claim.
    pub fn pass(&self, page: u64, side: Side) {
        if let Some(bits) = self.bits.get() {
            bits.set(page, side);
        }
    }

    /// The first page at or after `from` and before `end` that is on a side.
    pub fn next_on(&self, side: Side, from: u64, end: u64) -> Option<u64> {
        match self.bits.get() {
            Some(bits) if self.is_mixed() => bits.next_on(side, from, end),
            _ => (self.has(side) && from < end).then_some(from),
        }
    }

    /// Every page is on the target: nobody need look any more. The other side is empty.
    pub fn end(&self) {
        self.home.store(self.target() as u8, Ordering::Release);
    }
}

/// The side of each page: a bit, set for the second.
struct Bits {
    words: Words,
}

/// Words in front of a file of bits: what it is.
const HEADER_WORDS: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"cenoteS1");

impl Bits {
    /// Fresh ones in a file; what was in it is gone.
    fn create(file: &File, volume: u128, page_count: u64) -> io::Result<Self> {
        let words = usize::try_from(page_count.div_ceil(64)).expect("pages fit the address space");
        let len = (HEADER_WORDS + words) * 8;
        file.set_len(0)?;
        file.set_len(len as u64)?;
        // A store to a page that the disk has no room for ends the process.
        allocate(file, len)?;
        let map = Arc::new(MmapRaw::map_raw(file)?);
        let header = Words::new(&map, 0, HEADER_WORDS);
        let said = header.as_slice()[1..].iter();
        for (word, value) in said.zip(description(volume)?) {
            word.store(value, Ordering::Relaxed);
        }
        header.as_slice()[0].store(MAGIC, Ordering::Release);
        Ok(Self {
            words: Words::new(&map, HEADER_WORDS, words),
        })
    }

    /// Those that an earlier owner left.
    fn take_over(file: &File, volume: u128, page_count: u64) -> Result<Self, MarksError> {
        let has = file.metadata()?.len();
        if has < (HEADER_WORDS * 8) as u64 {
            return Err(MarksError::Foreign);
        }
        let words = usize::try_from(page_count.div_ceil(64)).expect("pages fit the address space");
        let len = (HEADER_WORDS + words) * 8;
        // The volume may grow further than before.
        file.set_len(has.max(len as u64))?;
        allocate(file, len)?;
        let map = Arc::new(MmapRaw::map_raw(file)?);
        let header = Words::new(&map, 0, HEADER_WORDS);
        let word = |at: usize| header.as_slice()[at].load(Ordering::Acquire);
        let [low, high, boot_low, boot_high] = description(volume)?;
        if word(0) != MAGIC || (word(1), word(2)) != (low, high) {
            return Err(MarksError::Foreign);
        }
        if (word(3), word(4)) != (boot_low, boot_high) {
            return Err(MarksError::Restarted);
        }
        Ok(Self {
            words: Words::new(&map, HEADER_WORDS, words),
        })
    }

    fn anonymous(page_count: u64) -> io::Result<Self> {
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

    #[inline]
    fn side_of(&self, page: u64) -> Side {
        Side::BOTH[(self.word(page).load(Ordering::Acquire) >> (page % 64) & 1) as usize]
    }

    fn set(&self, page: u64, side: Side) {
        let bit = 1 << (page % 64);
        match side {
            Side::First => self.word(page).fetch_and(!bit, Ordering::AcqRel),
            Side::Second => self.word(page).fetch_or(bit, Ordering::AcqRel),
        };
    }

    fn fill(&self, side: Side) {
        let value = match side {
            Side::First => 0,
            Side::Second => u64::MAX,
        };
        for word in self.words.as_slice() {
            // Most are so already, and an untouched page of zeros takes no memory.
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Release);
            }
        }
    }

    fn next_on(&self, side: Side, from: u64, end: u64) -> Option<u64> {
        let mut page = from;
        while page < end {
            let value = self.word(page).load(Ordering::Acquire);
            let on = match side {
                Side::First => !value,
                Side::Second => value,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(scheme: &str) -> Cut {
        Cut::of(scheme.parse().unwrap())
    }

    fn sides() -> Sides {
        Sides::new(Side::First, "rs:8+2".parse().unwrap(), 1 << 16, 1000)
    }

    #[test]
    fn a_page_is_where_its_bit_says_and_the_rest_stays() {
        let sides = sides();
        let before = sides.locate(130);
        sides.prepare().unwrap();
        sides.begin(cut("rs:2+1"));
        assert_eq!(sides.locate(130), before, "it begins with nothing moved");
        sides.pass(130, sides.target());
        assert_eq!(Side::of(sides.locate(130).extent), Side::Second);
        assert_eq!(sides.locate(130).cut, cut("rs:2+1"));
        assert_eq!(Side::of(sides.locate(129).extent), Side::First);
        let there = sides.next_on(Side::Second, 0, 1000);
        assert_eq!(
            (there, sides.next_on(Side::Second, 131, 1000)),
            (Some(130), None)
        );
        assert_eq!(sides.next_on(Side::First, 130, 131), None);
        assert_eq!(sides.next_on(Side::First, 130, 132), Some(131));
    }

    #[test]
    fn a_change_ends_the_next_begins_and_one_is_taken_back() {
        let sides = sides();
        for (to, scheme) in [(Side::Second, "mirror:2"), (Side::First, "rs:4+1")] {
            sides.prepare().unwrap();
            sides.begin(cut(scheme));
            assert_eq!(sides.target(), to);
            for page in 0..1000 {
                sides.pass(page, to);
            }
            let places: Vec<Place> = (0..1000).map(|page| sides.locate(page)).collect();
            sides.end();
            assert!(!sides.is_mixed() && sides.has(to) && !sides.has(to.other()));
            for (page, place) in (0..).zip(places) {
                assert_eq!(sides.locate(page), place, "it ends with everything moved");
                assert_eq!(place.cut, cut(scheme));
            }
        }
        sides.prepare().unwrap();
        sides.begin(cut("rs:8+2"));
        sides.pass(5, Side::Second);
        sides.turn(Side::First);
        assert_eq!(
            Side::of(sides.locate(5).extent),
            Side::Second,
            "until it is moved back"
        );
        sides.pass(5, Side::First);
        sides.end();
        assert_eq!(sides.locate(5).cut, cut("rs:4+1"));
    }

    /// The volume need not end where an extent of either side does.
    #[test]
    fn an_extent_has_no_pages_past_the_last() {
        let sides = sides();
        sides.prepare().unwrap();
        sides.begin(cut("rs:32+2"));
        let layout = sides.layout(Side::Second);
        assert_eq!(layout.extent_pages(), 512);
        assert_eq!(sides.pages(Side::Second.extent(1)), 512..1000);
        assert_eq!(sides.pages(Side::Second.extent(2)), 1000..1000);
        assert_eq!(sides.pages(Side::First.extent(7)), 896..1000);
    }
}
