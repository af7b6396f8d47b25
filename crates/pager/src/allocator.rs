//! A region as the memory of collections: vectors, boxes and tables that take an allocator.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Mutex;

use allocator_api2::alloc::{AllocError, Allocator};
use cenote_preload::bits::Bits;
use cenote_volume::PAGE_BYTES;

use crate::region::Region;

/// Gives whole pages of a region, zeroed: for few large things, not for many small ones. What is
/// freed gives its memory back, here and in the cluster.
///
/// ```no_run
/// # fn open() -> cenote_volume::Volume { unimplemented!() }
/// use allocator_api2::vec::Vec;
/// use cenote_pager::{Handlers, Region, RegionAllocator, RegionConfig};
///
/// let volume = open();
/// let region = Region::new(&volume, RegionConfig {
///     offset: 0,
///     len_bytes: 1 << 30,
///     resident_max_bytes: 256 << 20,
///     handlers: Handlers::default(),
/// })?;
/// let memory = RegionAllocator::new(region);
/// let mut squares: Vec<u64, &RegionAllocator> = Vec::new_in(&memory);
/// squares.extend((0..100_000_000).map(|n| n * n));
/// # Ok::<(), cenote_pager::RegionError>(())
/// ```
pub struct RegionAllocator {
    region: Region,
    used: Mutex<Bits<'static>>,
}

impl RegionAllocator {
    /// Of all of a region, which begins as zeros.
    #[must_use]
    pub fn new(region: Region) -> Self {
        let count = region.bytes().len() / PAGE_BYTES;
        // One bit for each page, kept for good: regions are few.
        let words = Box::leak(vec![0; count.div_ceil(64)].into_boxed_slice());
        Self {
            used: Mutex::new(Bits::new(words, count)),
            region,
        }
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    fn slice(&self, page: usize, len: usize) -> NonNull<[u8]> {
        // SAFETY: the page is inside the region.
        let at = unsafe { self.region.base().add(page * PAGE_BYTES) };
        NonNull::slice_from_raw_parts(at, len)
    }
}

// SAFETY: blocks are pages of the region that no other block has, until they are given back; the
// region does not move when the allocator does.
unsafe impl Allocator for RegionAllocator {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let count = layout.size().div_ceil(PAGE_BYTES).max(1);
        let align = layout.align().div_ceil(PAGE_BYTES);
        let skew = self.region.base().as_ptr() as usize / PAGE_BYTES % align;
        let mut used = self.used.lock().map_err(|_| AllocError)?;
        let page = used.find(count, align, skew).ok_or(AllocError)?;
        used.insert(page..page + count);
        Ok(self.slice(page, count * PAGE_BYTES))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // Pages are zeros at first, and again when they were given back.
        self.allocate(layout)
    }

    unsafe fn deallocate(&self, at: NonNull<u8>, layout: Layout) {
        let count = layout.size().div_ceil(PAGE_BYTES).max(1);
        let page = (at.as_ptr() as usize - self.region.base().as_ptr() as usize) / PAGE_BYTES;
        self.region.forget(page as u32..page as u32 + count as u32);
        if let Ok(mut used) = self.used.lock() {
            used.remove(page..page + count);
        }
    }
}
