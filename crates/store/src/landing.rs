//! Where one client's values land: memory of its own, in a window that it alone was told of.
//!
//! A slot is taken with the space for a version and given back when its value is in the log or was given
//! up. A client that writes later, or elsewhere in its landing, spoils values of its own alone: they are
//! verified after they were copied.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_fabric::{Region, RegionOptions};

use crate::pool::Landing;

/// Slots begin at multiples of this: a line of the caches, so that copies into them may be streamed.
const GRAIN_BYTES: u64 = 64;

/// A client's landing.
#[derive(Debug)]
pub(crate) struct Area {
    region: Arc<Region>,
    /// Free ranges: where they begin, and their bytes. None touches the next.
    free: Mutex<BTreeMap<u64, u64>>,
    free_bytes: AtomicU64,
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
        Ok(Arc::new(Self {
            region: Arc::new(region),
            free: Mutex::new(BTreeMap::from([(0, len_bytes)])),
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
        let (&offset, &room) = free.iter().find(|(_, room)| **room >= bytes)?;
        free.remove(&offset);
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
        if let Some(behind) = free.remove(&(offset + bytes)) {
            bytes += behind;
        }
        let before = free.range(..offset).next_back();
        if let Some((&start, &room)) = before
            && start + room == offset
        {
            free.remove(&start);
            (offset, bytes) = (start, room + bytes);
        }
        free.insert(offset, bytes);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
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
}
