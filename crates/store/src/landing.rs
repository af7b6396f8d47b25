//! Where one client's values land: memory of its own, in a window that it alone was told of.
//!
//! A slot is taken with the space for a version and given back when its value is in the log or was given
//! up. A client that writes later, or elsewhere in its landing, spoils values of its own alone: they are
//! verified after they were copied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_fabric::{Dead, Region, RegionOptions};

use crate::pool::Landing;

/// Slots begin at multiples of this: a line of the caches, so that copies into them may be streamed.
const GRAIN_BYTES: u64 = 64;

/// A client's landing.
#[derive(Debug)]
pub(crate) struct Area {
    region: Arc<Region>,
    free: Mutex<Free>,
    free_bytes: AtomicU64,
}

/// Free ranges, none of which touches the next. A client chooses how many there are: each is found
/// by where it begins, and by its size.
#[derive(Debug, Default)]
struct Free {
    /// Their bytes, by where they begin.
    by_offset: BTreeMap<u64, u64>,
    /// Their bytes, and where they begin.
    by_bytes: BTreeSet<(u64, u64)>,
}

impl Free {
    fn insert(&mut self, offset: u64, bytes: u64) {
        self.by_offset.insert(offset, bytes);
        self.by_bytes.insert((bytes, offset));
    }

    /// The bytes of the range that begins there.
    fn remove(&mut self, offset: u64) -> Option<u64> {
        let bytes = self.by_offset.remove(&offset)?;
        self.by_bytes.remove(&(bytes, offset));
        Some(bytes)
    }

    /// Where the smallest one begins that has so many bytes.
    fn find(&self, bytes: u64) -> Option<u64> {
        let (_, offset) = self.by_bytes.range((bytes, 0)..).next()?;
        Some(*offset)
    }

    /// The range before a place, if it ends there: where it begins.
    fn before(&self, offset: u64) -> Option<u64> {
        let (start, bytes) = self.by_offset.range(..offset).next_back()?;
        (start + bytes == offset).then_some(*start)
    }
}

/// A part of one, for one value.
#[derive(Debug)]
pub(crate) struct Slot {
    area: Arc<Area>,
    pub offset: u64,
    bytes: u64,
}

impl Area {
    /// # Errors
    /// There is not so much memory.
    pub fn new(len_bytes: u64) -> cenote_fabric::Result<Arc<Self>> {
        let region = Region::create("cenote-store-landing", len_bytes, RegionOptions::default())?;
        let mut free = Free::default();
        free.insert(0, len_bytes);
        Ok(Arc::new(Self {
            region: Arc::new(region),
            free: Mutex::new(free),
            free_bytes: AtomicU64::new(len_bytes),
        }))
    }

    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Whether less than half of it is free.
    pub fn is_short(&self) -> bool {
        self.free_bytes.load(Ordering::Relaxed) < self.region.len_bytes() / 2
    }

    /// A slot for a value; `None`: there is no room now.
    pub fn take(self: &Arc<Self>, value_bytes: u32) -> Option<Slot> {
        let bytes = u64::from(value_bytes.max(1)).next_multiple_of(GRAIN_BYTES);
        let mut free = self.lock();
        let offset = free.find(bytes)?;
        let room = free.remove(offset)?;
        if room > bytes {
            free.insert(offset + bytes, room - bytes);
        }
        self.free_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Some(Slot {
            area: Arc::clone(self),
            offset,
            bytes,
        })
    }

    fn give_back(&self, mut offset: u64, mut bytes: u64) {
        let mut free = self.lock();
        self.free_bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes += free.remove(offset + bytes).unwrap_or(0);
        if let Some(start) = free.before(offset) {
            bytes += free.remove(start).unwrap_or(0);
            offset = start;
        }
        free.insert(offset, bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Puts a value there that is no longer than the slot was asked for.
    ///
    /// # Errors
    /// The landing is gone.
    pub fn write(&self, value: &[u8]) -> Result<(), Dead> {
        self.area.region.write(self.offset, value)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.area.give_back(self.offset, self.bytes);
    }
}

impl Landing for Slot {
    fn read(&mut self, out: &mut [u8]) {
        // A landing that is gone has no value: what was announced is not there.
        if self.area.region.read(self.offset, out).is_err() {
            out.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_was_given_back_is_whole_again() {
        let area = Area::new(4096).unwrap();
        let mut slots: Vec<Slot> = (0..64).map(|_| area.take(64).unwrap()).collect();
        assert!(area.take(0).is_none());
        // Every other one, then the rest in another order.
        let mut index = 0;
        slots.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        assert!(area.take(65).is_none(), "no two in a row are free");
        while let Some(slot) = slots.pop() {
            drop(slot);
            let middle = slots.len().min(3);
            slots.rotate_left(middle);
        }
        let whole = area.take(4096).unwrap();
        assert_eq!(whole.offset, 0);
        assert!(area.take(1).is_none());
        assert!(area.is_short());
        drop(whole);
        assert!(!area.is_short());
    }

    #[test]
    fn a_slot_is_of_the_smallest_range_that_has_room_for_it() {
        let area = Area::new(4096).unwrap();
        let mut slots: Vec<Slot> = [256, 64, 128, 64, 192, 64]
            .map(|bytes| area.take(bytes).unwrap())
            .into();
        let offsets: Vec<_> = slots.iter().map(|slot| slot.offset).collect();
        // Three holes, of 256, 128 and 192 bytes, and the rest.
        let mut index = 0;
        slots.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        let taken = [100, 129, 64, 129, 65].map(|bytes| area.take(bytes).unwrap());
        let expected = [offsets[2], offsets[4], offsets[0], offsets[0] + 64, 768];
        assert_eq!(taken.each_ref().map(|slot| slot.offset), expected);
    }
}
