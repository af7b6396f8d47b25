//! Which extent a page is in, and where: arithmetic on one cut and one size of slabs.
//!
//! An extent is a run of pages whose splits fill the slabs of one stripe, so its length goes by the
//! cut. Decision 32.

use std::ops::Range;

use crate::PAGE_BYTES;
use crate::extents::EXTENTS_MAX;
use crate::scheme::Cut;

/// How a volume's pages lie in extents.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Layout {
    cut: Cut,
    extent_pages: u64,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PageLocation {
    pub extent: usize,
    /// Index of the page in its extent.
    pub index: u32,
    /// How its extent's pages are cut.
    pub cut: Cut,
}

impl Layout {
    /// Of slabs that hold at least one split.
    pub fn new(cut: Cut, slab_bytes: u64) -> Self {
        // For each page operation: no division, and splits are a power of two.
        let extent_pages = slab_bytes >> cut.split_bytes().trailing_zeros();
        Self { cut, extent_pages }
    }

    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// Pages in one extent: slab bytes / split bytes.
    pub fn extent_pages(&self) -> u64 {
        self.extent_pages
    }

    /// The same, as pages are counted inside an extent.
    pub fn extent_end(&self) -> u32 {
        u32::try_from(self.extent_pages).expect("an extent has fewer than 2^32 pages")
    }

    /// Extents that so many pages are in.
    pub fn extents_of(&self, page_count: u64) -> u64 {
        page_count.div_ceil(self.extent_pages)
    }

    /// Most bytes of a volume whose pages lie so.
    pub fn size_bytes_max(&self) -> u64 {
        EXTENTS_MAX
            .saturating_mul(self.extent_pages)
            .saturating_mul(PAGE_BYTES as u64)
    }

    pub fn locate(&self, page: u64) -> PageLocation {
        let extent =
            usize::try_from(page / self.extent_pages).expect("checked against the volume's size");
        let index =
            u32::try_from(page % self.extent_pages).expect("an extent has fewer than 2^32 pages");
        let cut = self.cut;
        PageLocation { extent, index, cut }
    }

    /// The pages of the extent that is at `index`.
    pub fn pages(&self, index: usize) -> Range<u64> {
        let base = index as u64 * self.extent_pages;
        base..base + self.extent_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_where_its_extent_has_it() {
        for (scheme, slab_bytes) in [("plain", 8192), ("rs:8+2", 8192), ("rs:4+1", 3 * 4096)] {
            let layout = Layout::new(Cut::of(scheme.parse().unwrap()), slab_bytes);
            for page in 0..100 {
                let PageLocation { extent, index, .. } = layout.locate(page);
                let pages = layout.pages(extent);
                assert!(pages.contains(&page), "{scheme} {page}");
                assert_eq!(pages.start + u64::from(index), page);
                assert!(index < layout.extent_end());
            }
        }
    }

    /// One extent of the larger k is several whole ones of the smaller.
    #[test]
    fn extents_of_two_cuts_begin_together() {
        let of = |scheme: &str| Layout::new(Cut::of(scheme.parse().unwrap()), 3 * 4096);
        let (wide, narrow) = (of("rs:8+2"), of("rs:2+1"));
        assert_eq!(wide.extent_pages(), 4 * narrow.extent_pages());
        assert_eq!(wide.pages(5).start, narrow.pages(20).start);
        assert_eq!(wide.pages(5).end, narrow.pages(23).end);
    }
}
