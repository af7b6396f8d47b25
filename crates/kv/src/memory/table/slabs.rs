//! Where entries and their keys lie: slabs of equal slots, one size for keys of each eight bytes.
//!
//! A [`Slot`] is 32 bits: slab and place in it. It stays where it is until it is given back, so that an
//! index and queues can name it. A slab takes memory page by page as it fills, and gives it back to the
//! system when its last slot goes: keys of another length get it, or values.
//! What a slot's bytes mean is [`record`](super::record)'s.

use memmap2::MmapMut;

/// A place for an entry: valid from when it was taken until it is given back.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Slot(pub(super) u32);

/// Most slots of a slab, ...
const SLAB_SLOTS: u32 = 1 << SLAB_SLOT_BITS;

const SLAB_SLOT_BITS: u32 = 12;

/// ... and most bytes: enough that a table of 10^8 items has few slabs.
const SLAB_BYTES: usize = 1 << 18;

/// What the system gives memory by.
const PAGE_BYTES: usize = 4096;

/// What slots of neighbouring classes differ by.
const STEP_BYTES: usize = 8;

/// Keys have up to 255 bytes: none, 8, ... 256.
const CLASS_COUNT: usize = 33;

/// No slot, slab or place.
pub(super) const NONE: u32 = u32::MAX;

/// End of a slab's chain of free slots.
const CHAIN_END: u16 = u16::MAX;

/// Slots of `HEAD` bytes and a key.
pub(super) struct Slabs<const HEAD: usize> {
    slabs: Vec<Slab>,
    /// For each class its slabs with room, the one that is filled last.
    with_room: [Vec<u32>; CLASS_COUNT],
    /// Numbers of slabs that were given back.
    unused: Vec<u32>,
    used_bytes: u64,
    resident_bytes: u64,
}

struct Slab {
    /// Room for all of its slots; none where it was given back.
    bytes: Option<MmapMut>,
    /// Slots that were taken at least once.
    taken: u16,
    class: u8,
    slot_bytes: u16,
    /// Slots that it may have.
    most: u16,
    used: u16,
    /// The first of the free slots among those taken once; each names the next in its first two bytes.
    free: u16,
    /// Where the class's list has it, or [`NONE`].
    listed_at: u32,
}

impl<const HEAD: usize> Slabs<HEAD> {
    pub(super) fn new() -> Self {
        Self {
            slabs: Vec::new(),
            with_room: std::array::from_fn(|_| Vec::new()),
            unused: Vec::new(),
            used_bytes: 0,
            resident_bytes: 0,
        }
    }

    /// Bytes of a slot for a key of so many bytes.
    pub(super) const fn slot_bytes(key_bytes: usize) -> usize {
        HEAD + key_bytes.next_multiple_of(STEP_BYTES)
    }

    /// Bytes of the slots in use.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Bytes of memory taken, slots that are free and lists included.
    pub(super) fn resident_bytes(&self) -> u64 {
        let numbers =
            self.with_room.iter().map(Vec::capacity).sum::<usize>() + self.unused.capacity();
        let lists = self.slabs.capacity() * size_of::<Slab>() + numbers * size_of::<u32>();
        self.resident_bytes + lists as u64
    }

    /// Whether a slot for a key of so many bytes takes memory.
    pub(super) fn grows_for(&self, key_bytes: usize) -> bool {
        let number = self.with_room[key_bytes.div_ceil(STEP_BYTES)].last();
        number.is_none_or(|number| {
            let slab = &self.slabs[*number as usize];
            slab.free == CHAIN_END
        })
    }

    /// Takes a slot for a key of so many bytes. What is in it is unspecified.
    ///
    /// # Panics
    /// With 2^20 slabs, of 160 GiB and more, and for a key of more than 255 bytes.
    pub(super) fn take(&mut self, key_bytes: usize) -> Slot {
        let class = key_bytes.div_ceil(STEP_BYTES);
        let number = match self.with_room[class].last() {
            Some(number) => *number,
            None => self.add_slab(class),
        };
        let slab = &mut self.slabs[number as usize];
        let before = slab.resident_bytes();
        let place = slab.take();
        self.resident_bytes += slab.resident_bytes() - before;
        self.used_bytes += u64::from(slab.slot_bytes);
        if slab.used == slab.most {
            slab.listed_at = NONE;
            self.with_room[class].pop();
        }
        Slot(number << SLAB_SLOT_BITS | u32::from(place))
    }

    /// Gives a slot back.
    pub(super) fn give_back(&mut self, slot: Slot) {
        let (number, place) = split(slot);
        let slab = &mut self.slabs[number as usize];
        slab.give_back(place);
        self.used_bytes -= u64::from(slab.slot_bytes);
        let list = &mut self.with_room[usize::from(slab.class)];
        if slab.listed_at == NONE {
            slab.listed_at = u32::try_from(list.len()).expect("slabs have numbers of 32 bits");
            list.push(number);
        } else if slab.used == 0 {
            let at = slab.listed_at as usize;
            self.resident_bytes -= slab.resident_bytes();
            (slab.bytes, slab.taken) = (None, 0);
            slab.listed_at = NONE;
            list.swap_remove(at);
            if let Some(moved) = list.get(at) {
                self.slabs[*moved as usize].listed_at = at as u32;
            }
            self.unused.push(number);
        }
    }

    /// The bytes of a slot: head, and room for the key.
    pub(super) fn bytes(&self, slot: Slot) -> &[u8] {
        let (number, place) = split(slot);
        let slab = &self.slabs[number as usize];
        &slab.bytes()[slab.start(place)..][..usize::from(slab.slot_bytes)]
    }

    /// As [`bytes`](Self::bytes), to write to.
    pub(super) fn bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        let (number, place) = split(slot);
        let slab = &mut self.slabs[number as usize];
        let (start, slot_bytes) = (slab.start(place), usize::from(slab.slot_bytes));
        &mut slab.bytes_mut()[start..][..slot_bytes]
    }

    fn add_slab(&mut self, class: usize) -> u32 {
        let slot_bytes = Self::slot_bytes(class * STEP_BYTES);
        let most = (SLAB_SLOTS as usize).min(SLAB_BYTES / slot_bytes);
        let bytes = MmapMut::map_anon(most * slot_bytes).expect("the system has memory");
        let slab = Slab {
            bytes: Some(bytes),
            taken: 0,
            most: u16::try_from(most).expect("a slab has few slots"),
            class: u8::try_from(class).expect("few classes"),
            slot_bytes: u16::try_from(slot_bytes).expect("slots are short"),
            used: 0,
            free: CHAIN_END,
            listed_at: 0,
        };
        let number = if let Some(number) = self.unused.pop() {
            self.slabs[number as usize] = slab;
            number
        } else {
            let number = u32::try_from(self.slabs.len()).expect("slabs have numbers of 32 bits");
            // The last slot of the last slab would be `NONE`.
            assert!(number < NONE >> SLAB_SLOT_BITS, "a table is full");
            self.slabs.push(slab);
            number
        };
        self.with_room[class].push(number);
        number
    }
}

impl Slab {
    fn start(&self, place: u16) -> usize {
        usize::from(place) * usize::from(self.slot_bytes)
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.as_ref().expect("a slab with slots in use")
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut().expect("a slab with slots in use")
    }

    /// Memory that it has taken, by pages.
    fn resident_bytes(&self) -> u64 {
        self.start(self.taken).next_multiple_of(PAGE_BYTES) as u64
    }

    /// A slot of a slab that has room.
    fn take(&mut self) -> u16 {
        self.used += 1;
        let place = self.free;
        if place == CHAIN_END {
            self.taken += 1;
            return self.taken - 1;
        }
        let start = self.start(place);
        let bytes = self.bytes();
        self.free = u16::from_le_bytes([bytes[start], bytes[start + 1]]);
        place
    }

    fn give_back(&mut self, place: u16) {
        let start = self.start(place);
        let next = self.free.to_le_bytes();
        self.bytes_mut()[start..start + 2].copy_from_slice(&next);
        self.free = place;
        self.used -= 1;
    }
}

fn split(slot: Slot) -> (u32, u16) {
    let place = slot.0 % SLAB_SLOTS;
    (slot.0 >> SLAB_SLOT_BITS, place as u16)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const HEAD: usize = 4;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        /// Takes where a step is even, and else gives back one of those taken before.
        #[test]
        fn slots_keep_what_is_written_to_them(steps in prop::collection::vec(any::<u32>(), 1..400)) {
            let mut slabs = Slabs::<HEAD>::new();
            let mut taken: Vec<(Slot, u32)> = Vec::new();
            for step in steps {
                if step % 2 == 0 {
                    let key_bytes = (step >> 8) as usize % 20;
                    let slot = slabs.take(key_bytes);
                    let bytes = slabs.bytes_mut(slot);
                    prop_assert_eq!(bytes.len(), HEAD + key_bytes.div_ceil(8) * 8);
                    bytes.fill((step >> 16) as u8);
                    taken.push((slot, step));
                } else if !taken.is_empty() {
                    let (slot, _) = taken.swap_remove(step as usize % taken.len());
                    slabs.give_back(slot);
                }
            }
            let used: usize = taken.iter().map(|(slot, _)| slabs.bytes(*slot).len()).sum();
            prop_assert_eq!(slabs.used_bytes(), used as u64);
            let slots: HashMap<u32, u32> = taken.iter().map(|(slot, step)| (slot.0, *step)).collect();
            prop_assert_eq!(slots.len(), taken.len(), "a slot was taken twice");
            for (slot, step) in &taken {
                prop_assert!(slabs.bytes(*slot).iter().all(|byte| *byte == (step >> 16) as u8));
            }
        }
    }

    #[test]
    fn memory_of_one_length_of_keys_goes_to_another() {
        let mut slabs = Slabs::<HEAD>::new();
        let count = SLAB_SLOTS as usize * 3 + 1;
        let short: Vec<Slot> = (0..count).map(|_| slabs.take(8)).collect();
        let full = slabs.resident_bytes();
        assert!(
            full < (count * 12 + 2 * PAGE_BYTES) as u64,
            "{full} bytes of {count} slots of 12"
        );
        short.iter().for_each(|slot| slabs.give_back(*slot));
        assert_eq!(slabs.used_bytes(), 0);
        assert!(slabs.resident_bytes() < 1024, "{}", slabs.resident_bytes());
        let long: Vec<Slot> = (0..count).map(|_| slabs.take(255)).collect();
        // The numbers of slabs are used again.
        let slab_count = count.div_ceil(SLAB_BYTES / 260) as u32;
        assert!(long.iter().all(|slot| slot.0 < SLAB_SLOTS * slab_count));
        assert!(slabs.resident_bytes() < (count * 260 + SLAB_BYTES) as u64);
    }

    #[test]
    fn slabs_empty_in_any_order() {
        let mut slabs = Slabs::<HEAD>::new();
        let mut of_slab = [(); 5].map(|()| Vec::new());
        for of_slab in &mut of_slab {
            of_slab.extend((0..SLAB_SLOTS).map(|_| slabs.take(8)));
        }
        // All have room, and then the others are emptied after the second.
        for of_slab in &mut of_slab {
            slabs.give_back(of_slab.swap_remove(7));
        }
        for number in [1, 4, 0, 3] {
            of_slab[number]
                .drain(..)
                .for_each(|slot| slabs.give_back(slot));
        }
        let slot_bytes = u64::from(SLAB_SLOTS) * 12;
        assert_eq!(slabs.used_bytes(), slot_bytes - 12);
        assert!(slabs.resident_bytes() < slot_bytes + 1024);
        let taken: HashMap<u32, ()> = (0..SLAB_SLOTS).map(|_| (slabs.take(8).0, ())).collect();
        assert_eq!(taken.len(), SLAB_SLOTS as usize);
        assert!(of_slab[2].iter().all(|slot| !taken.contains_key(&slot.0)));
    }
}
