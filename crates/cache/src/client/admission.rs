//! Which requests are taken, and how they are cut into pieces.

use smallvec::SmallVec;

use super::region::RegionView;
use super::{Client, Error, PARTS_MAX, REQUEST_BYTES_MAX, REQUESTS_MAX};

/// Slab, offset and length of each part of a request.
pub(super) type Parts = SmallVec<[(u64, u64, usize); 1]>;

impl Client {
    /// Whether a request for this range is taken.
    pub(super) fn admit(&self, address: u64, len_bytes: usize) -> Result<(), Error> {
        let region_bytes = self.geometry.region_bytes();
        let end = address.checked_add(len_bytes as u64);
        let is_there = |region: u64| {
            let view = usize::try_from(region)
                .ok()
                .and_then(|r| self.regions.get(r));
            view.is_some_and(RegionView::is_there)
        };
        let last = end.unwrap_or(u64::MAX).saturating_sub(1).max(address) / region_bytes;
        let first = address / region_bytes;
        let too_long = len_bytes > REQUEST_BYTES_MAX || end.is_none();
        if too_long || !is_there(first) || !is_there(last) {
            let region = if is_there(first) { last } else { first };
            let region = u32::try_from(region).unwrap_or(u32::MAX);
            return Err(Error::OutOfRange { region });
        }
        if self.requests.len() >= REQUESTS_MAX {
            return Err(Error::Full);
        }
        Ok(())
    }

    /// The parts of a range: each lies in one slab, and a path takes it. `Full`: there are too many
    /// parts by then.
    pub(super) fn cut(&self, address: u64, len_bytes: usize) -> Result<Parts, Error> {
        let slab_bytes = self.geometry.slab_bytes;
        let (mut at, mut left) = (address, len_bytes);
        let mut ranges = SmallVec::new();
        while left > 0 {
            let offset = at % slab_bytes;
            let here = usize::try_from(slab_bytes - offset).map_or(left, |room| room.min(left));
            let here = here.min(self.piece_bytes_max);
            ranges.push((at / slab_bytes, offset, here));
            at += here as u64;
            left -= here;
        }
        if !self.pieces.is_empty() && self.pieces.len() + ranges.len() > PARTS_MAX {
            return Err(Error::Full);
        }
        Ok(ranges)
    }
}
