//! What a cache is, and how large it may be.

use std::time::Duration;

/// What a cache is. Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Its identity on hosts.
    pub cache: u128,
    /// Bytes of a slab of its hosts.
    pub slab_bytes: u64,
    /// Slabs of a region, at least 1.
    pub slabs_per_region: u32,
    /// Copies of each region on different failure domains, 1 or 2.
    pub copies: usize,
    /// A host that is out of reach for longer is taken for dead: what it holds is lost, and
    /// is not used again when it returns.
    pub give_up_after: Duration,
}

impl Settings {
    /// Bytes of a region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.slab_bytes * u64::from(self.slabs_per_region)
    }
}

/// Longest region: 1 GiB, as in the paper.
pub const REGION_BYTES_MAX: u64 = 1 << 30;

/// Most regions of a cache.
pub const REGIONS_MAX: u32 = 1 << 16;
