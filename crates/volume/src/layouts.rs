//! Which layout each page is in, and how pages lie there.
//!
//! In rest all pages are in one layout, and nobody looks at a bit. While the volume's k changes, a bit per
//! page says the layout; it stays true before and after, so it does not matter when a worker sees
//! that a change has begun or ended.
//!
//! Invariants: a page's bit changes under its claim, once every member of its new stripe has the page; a layout
//! is laid out again only when no page is in it and no stripe is left of it.
//!
//! Concurrency: lock-free, any thread; the control thread alone lays them out. Decision 32.

use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use crate::Scheme;
use crate::extents::{LayoutId, index_of};
use crate::layout::{Layout, PageLocation};
use crate::marks::{Bitmap, MarksError};
use crate::scheme::Cut;
use bits::Bits;

mod bits;

/// The two layouts of one volume, and where its pages are.
pub struct Layouts {
    slab_bytes: u64,
    page_count: u64,
    cuts: [AtomicU8; 2],
    /// That extents are to have.
    parities: [AtomicU8; 2],
    /// Where pages are: a layout, or [`MIXED`].
    home: AtomicU8,
    /// Where pages are to be.
    target: AtomicU8,
    bits: OnceLock<Bits>,
    /// Behind the bits, where they outlive this process, and whose they are.
    file: Option<(File, u128)>,
}

/// Pages may be in either layout.
const MIXED: u8 = 2;

impl Layouts {
    /// All pages in one layout, which is laid out so.
    pub fn new(layout_id: LayoutId, scheme: Scheme, slab_bytes: u64, page_count: u64) -> Self {
        let layouts = Self {
            slab_bytes,
            page_count,
            cuts: [const { AtomicU8::new(0) }; 2],
            parities: [const { AtomicU8::new(0) }; 2],
            home: AtomicU8::new(layout_id as u8),
            target: AtomicU8::new(layout_id as u8),
            bits: OnceLock::new(),
            file: None,
        };
        layouts.lay_out(layout_id, Cut::of(scheme));
        layouts.set_parities(layout_id, scheme.r());
        layouts
    }

    /// How pages lie in a layout, or lay there last.
    pub fn layout(&self, layout_id: LayoutId) -> Layout {
        let cut = Cut::of_log2(self.cuts[layout_id as usize].load(Ordering::Acquire));
        self.layout_with(cut)
    }

    /// How pages would lie that are cut so.
    pub fn layout_with(&self, cut: Cut) -> Layout {
        Layout::new(cut, self.slab_bytes)
    }

    /// The scheme that extents of a layout have, or are to have.
    pub fn scheme(&self, layout_id: LayoutId) -> Scheme {
        let parities = self.parities[layout_id as usize].load(Ordering::Acquire);
        self.layout(layout_id).cut().with_parities(parities.into())
    }

    /// Has extents of a layout come to have so many parities.
    pub fn set_parities(&self, layout_id: LayoutId, parities: usize) {
        let parities = u8::try_from(parities).expect("a few");
        self.parities[layout_id as usize].store(parities, Ordering::Release);
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
    /// The file is not this volume's, or of before the machine was started again.
    pub fn take_over(&self, other: Scheme) -> Result<(), MarksError> {
        let Some((file, volume)) = &self.file else {
            return Err(MarksError::Foreign);
        };
        let bits = Bits::take_over(file, *volume, self.page_count)?;
        let bits = self.bits.get_or_init(|| bits);
        let layout_id = self.target().other();
        if is_injected(InjectedFault::ForgetLayouts) {
            bits.fill(layout_id);
        }
        self.lay_out(layout_id, Cut::of(other));
        self.set_parities(layout_id, other.r());
        self.home.store(MIXED, Ordering::Release);
        Ok(())
    }

    fn lay_out(&self, layout_id: LayoutId, cut: Cut) {
        self.cuts[layout_id as usize].store(cut.log2(), Ordering::Release);
    }

    /// The layout that a page is in. It stays there while its claim's version does.
    #[inline]
    pub fn id_of(&self, page: u64) -> LayoutId {
        match self.home.load(Ordering::Acquire) {
            MIXED => self
                .bits
                .get()
                .map_or(LayoutId::First, |bits| bits.id_of(page)),
            layout_id => LayoutId::BOTH[usize::from(layout_id & 1)],
        }
    }

    /// Where a page is.
    #[inline]
    pub fn locate(&self, page: u64) -> PageLocation {
        self.locate_in(self.id_of(page), page)
    }

    /// Where a page is to be in a layout.
    #[inline]
    pub fn locate_in(&self, layout_id: LayoutId, page: u64) -> PageLocation {
        let place = self.layout(layout_id).locate(page);
        PageLocation {
            extent: layout_id.extent(place.extent),
            ..place
        }
    }

    /// The pages of an extent that the volume may have.
    pub fn pages(&self, extent: usize) -> std::ops::Range<u64> {
        let pages = self.layout(LayoutId::of(extent)).pages(index_of(extent));
        pages.start.min(self.page_count)..pages.end.min(self.page_count)
    }

    /// Whether a slab holds a split of this cut.
    pub fn fits(&self, cut: Cut) -> bool {
        cut.split_bytes() as u64 <= self.slab_bytes
    }

    /// Pages that the volume may have.
    pub fn page_count(&self) -> u64 {
        self.page_count
    }

    /// Where pages are to be.
    pub fn target(&self) -> LayoutId {
        LayoutId::BOTH[usize::from(self.target.load(Ordering::Acquire) & 1)]
    }

    /// Whether pages are in both layouts, or may be.
    pub fn is_mixed(&self) -> bool {
        self.home.load(Ordering::Acquire) == MIXED
    }

    /// How all pages are cut, if they are in one layout.
    pub fn at_rest(&self) -> Option<Cut> {
        // First: whoever sees where a change goes sees that it has begun.
        let cut = self.layout(self.target()).cut();
        (!self.is_mixed()).then_some(cut)
    }

    /// Whether a layout has, or may have, pages.
    pub fn has(&self, layout_id: LayoutId) -> bool {
        let home = self.home.load(Ordering::Acquire);
        home == MIXED || home == layout_id as u8
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

    /// Lays out the empty layout, to which pages go from now on. The bits are made, and the directory has room
    /// for its extents.
    pub fn begin(&self, cut: Cut) {
        let to = self.target().other();
        self.lay_out(to, cut);
        self.home.store(MIXED, Ordering::Release);
        self.turn(to);
    }

    /// Has pages go to the other one of two layouts that are there.
    pub fn turn(&self, target: LayoutId) {
        self.target.store(target as u8, Ordering::Release);
    }

    /// The page is in the layout where it is to be. Under its claim.
    pub fn pass(&self, page: u64, layout_id: LayoutId) {
        if let Some(bits) = self.bits.get() {
            bits.set(page, layout_id);
        }
    }

    /// The first page at or after `from` and before `end` that is in a layout.
    pub fn next_in(&self, layout_id: LayoutId, from: u64, end: u64) -> Option<u64> {
        match self.bits.get() {
            Some(bits) if self.is_mixed() => bits.next_in(layout_id, from, end),
            _ => (self.has(layout_id) && from < end).then_some(from),
        }
    }

    /// Marked pages of a layout in `from..end`.
    pub fn count_in(&self, layout_id: LayoutId, marked: &Bitmap, from: u64, end: u64) -> u64 {
        match self.bits.get() {
            Some(bits) if self.is_mixed() => bits.count_in(layout_id, marked, from, end),
            _ if self.has(layout_id) => marked.count(from, end),
            _ => 0,
        }
    }

    /// Every page is on the target: nobody need look any more. The other layout is empty.
    pub fn end(&self) {
        self.home.store(self.target() as u8, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
