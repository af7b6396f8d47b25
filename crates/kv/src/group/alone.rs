//! What is proposed to a partition that nobody else has: it is applied at once, and no operation is made of it.
//!
//! A value goes from the request to its place, once, while [`super::owner`] makes bytes to send of it and adds
//! them to what lies there. In a server alone, an item whose next value takes as much space keeps its place:
//! that a place is free before it is written (C3) is for those who have copies, and here there are none.

use super::operation::Effect;
use super::owner::Owner;
use super::replica::{Xid, space_of};
use crate::memory::table::Entry;

impl Owner {
    /// Commits an operation that carries no value.
    pub(super) fn commit_now(&mut self, hash: u64, key: &[u8], effect: Effect) -> Xid {
        self.note_ends(&effect);
        let xid = self.backlog.pass();
        let applied = self.replica.apply_effect(xid, hash, key, effect, true);
        applied.expect("its own operations fit");
        xid
    }

    /// Stores an item in a place that was taken for it.
    pub(super) fn put_now(&mut self, hash: u64, key: &[u8], entry: Entry, value: &[&[u8]]) -> Xid {
        self.write_value(entry.address, value);
        self.commit_now(hash, key, Effect::Put(entry))
    }

    /// Stores an item where its last value lies, if that is as long and may stay there.
    pub(super) fn put_in_place(
        &mut self,
        hash: u64,
        key: &[u8],
        mut entry: Entry,
        value: &[&[u8]],
    ) -> Option<Xid> {
        // Where much is free, values move to the front, so that the end can be given back.
        if !self.room.is_alone() || !self.commits_at_once() || self.is_sparse() {
            return None;
        }
        let slot = self.replica.table().find(hash, key)?;
        let old = space_of(&self.replica.table().entry(slot));
        entry.address = old.start;
        if space_of(&entry) != old {
            return None;
        }
        // A value of zeros may lie where no memory was taken so far: that is counted where places are taken.
        let bytes = entry.value_bytes as usize;
        if self.region.lacking_bytes(entry.address, bytes) > 0 {
            return None;
        }
        self.note_ends(&Effect::Put(entry));
        self.write_value(entry.address, value);
        let xid = self.backlog.pass();
        self.replica.overwrite(xid, slot, entry);
        Some(xid)
    }

    fn write_value(&self, mut address: u64, value: &[&[u8]]) {
        for part in value {
            self.region.write(address, part);
            address += part.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::marks::Marks;
    use crate::group::owner::Change;
    use crate::group::room::Bound;
    use crate::memory::footprint::{Footprint, Roles};
    use crate::memory::key_hash::KeyHasher;

    const REGION_BYTES: u64 = 16 << 20;

    fn owner() -> Owner {
        Owner::alone(KeyHasher::new([1; 16]), REGION_BYTES, Bound::NONE)
    }

    fn put(owner: &mut Owner, key: &str, value: &[&[u8]]) -> u64 {
        let hash = owner.hash_of(key.as_bytes());
        let change = Change::Put {
            client_flags: 0,
            expiry: 0,
            marks: Marks::NONE,
            value,
        };
        let xid = owner.propose(hash, key.as_bytes(), change).unwrap();
        assert_eq!(xid, owner.committed_xid(), "committed at once");
        let found = owner.committed(hash, key.as_bytes()).unwrap();
        let said = owner.value(&found, |parts| parts.concat()).unwrap();
        assert_eq!(said, value.concat(), "{key}");
        found.entry.address
    }

    fn used(owner: &Owner) -> u64 {
        let allocator = owner.replica().allocator();
        allocator.region_bytes() - allocator.free_bytes()
    }

    #[test]
    fn a_value_that_takes_as_much_space_keeps_its_place_and_leaves_its_neighbours_alone() {
        let mut owner = owner();
        let before = put(&mut owner, "before", &[&[1; 1000]]);
        let place = put(&mut owner, "key", &[&[2; 1000]]);
        let behind = put(&mut owner, "behind", &[&[3; 1000]]);
        let cas = owner.next_cas();
        // 1000 and 1008 bytes are as many units of 16.
        assert_eq!(put(&mut owner, "key", &[&[4; 1000], &[5; 8]]), place);
        assert_eq!(put(&mut owner, "key", &[&[0; 993]]), place);
        assert_eq!(owner.next_cas(), cas + 2, "each has a number of its own");
        for (key, address, byte) in [("before", before, 1), ("behind", behind, 3)] {
            let hash = owner.hash_of(key.as_bytes());
            let found = owner.committed(hash, key.as_bytes()).unwrap();
            assert_eq!(found.entry.address, address);
            let said = owner.value(&found, |parts| parts.concat()).unwrap();
            assert_eq!(said, [byte; 1000], "{key}");
        }
        assert_eq!(used(&owner), 3 * 1008);
    }

    #[test]
    fn a_value_of_another_length_gets_another_place_and_the_old_one_is_free() {
        let mut owner = owner();
        let place = put(&mut owner, "key", &[&[1; 1000]]);
        assert_ne!(put(&mut owner, "key", &[&[2; 1009]]), place);
        assert_eq!(used(&owner), 1024);
        put(&mut owner, "key", &[b"short"]);
        assert_eq!(used(&owner), 16);
        put(&mut owner, "key", &[]);
        assert_eq!(used(&owner), 16, "each has a place of its own");
    }

    #[test]
    fn zeros_that_are_replaced_take_no_more_memory_than_there_is() {
        const VALUE_BYTES: usize = 256 << 10;
        let footprint = Footprint::new(16 << 20, 0, Roles::ALONE).unwrap();
        let cap = footprint.region_cap(0);
        let bound = Bound {
            footprint: Some(footprint),
            ..Bound::NONE
        };
        let mut owner = Owner::alone(KeyHasher::new([1; 16]), 8 * cap, bound);
        // Twice as many bytes as there is memory for.
        let keys = 2 * cap / VALUE_BYTES as u64;
        for byte in [0, 1] {
            for key in 0..keys {
                put(&mut owner, &format!("key {key}"), &[&[byte; VALUE_BYTES]]);
                let touched = owner.region.touched_bytes();
                assert!(touched <= cap, "{touched} of {cap} bytes");
            }
        }
        assert!(owner.counts().evictions > 0);
    }

    #[test]
    fn where_much_is_free_values_move_to_the_front() {
        let mut owner = owner();
        let value = vec![7; 512 << 10];
        let keys: Vec<_> = (0..16).map(|number| format!("key {number}")).collect();
        for key in &keys {
            put(&mut owner, key, &[&value]);
        }
        for key in &keys[..15] {
            let hash = owner.hash_of(key.as_bytes());
            owner.propose(hash, key.as_bytes(), Change::Remove).unwrap();
        }
        assert_eq!(used(&owner), 512 << 10);
        let hash = owner.hash_of(keys[15].as_bytes());
        let place = owner
            .committed(hash, keys[15].as_bytes())
            .unwrap()
            .entry
            .address;
        let moved = put(&mut owner, &keys[15], &[&value]);
        assert_ne!(moved, place);
    }
    /// A number below `bound`, by chance that is the same every time.
    fn chance(state: &mut u64, bound: usize) -> usize {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(*state >> 33).unwrap() % bound
    }

    fn remove(owner: &mut Owner, key: &str) {
        let hash = owner.hash_of(key.as_bytes());
        let removed = owner.propose(hash, key.as_bytes(), Change::Remove);
        removed.unwrap();
    }

    /// Fills a partition, so that what lies side by side is of any age: in so many rounds a part of all
    /// items goes and comes again.
    fn fill(owner: &mut Owner, value: &[u8], rounds: usize) -> Vec<String> {
        let mut keys = Vec::new();
        while owner.counts().evictions == 0 {
            keys.push(format!("key {}", keys.len()));
            put(owner, keys.last().unwrap(), &[value]);
        }
        let mut state = 1;
        for _ in 0..rounds {
            let mut again = Vec::new();
            for _ in 0..keys.len() / 8 {
                let key = keys.swap_remove(chance(&mut state, keys.len()));
                remove(owner, &key);
                again.push(key);
            }
            while !again.is_empty() {
                let key = again.swap_remove(chance(&mut state, again.len()));
                put(owner, &key, &[value]);
                keys.push(key);
            }
        }
        keys
    }

    #[test]
    fn one_long_value_has_few_short_ones_go() {
        const VALUE: &[u8] = &[7; 1008];
        let footprint = Footprint::new(24 << 20, 0, Roles::ALONE);
        let bounded = Bound {
            footprint,
            ..Bound::NONE
        };
        for (region_bytes, bound) in [(REGION_BYTES, Bound::NONE), (8 * REGION_BYTES, bounded)] {
            let mut owner = Owner::alone(KeyHasher::new([1; 16]), region_bytes, bound);
            let keys = fill(&mut owner, VALUE, 30);
            let before = owner.counts().evictions;
            put(&mut owner, "long", &[&[8; 512 << 10]]);
            let evictions = owner.counts().evictions - before;
            assert!(evictions < 4 * 512, "{evictions} of {}", keys.len());
        }
    }

    #[test]
    fn of_a_million_items_few_go_for_a_long_value_and_others_are_served_meanwhile() {
        const LONG: &[u8] = &[8; 128 << 10];
        let mut owner = Owner::alone(KeyHasher::new([1; 16]), 20 << 20, Bound::NONE);
        let keys = fill(&mut owner, b"16 bytes of text", 4);
        let before = owner.counts().evictions;
        let (mut now, mut others) = (0, 0);
        let hash = owner.hash_of(b"long");
        let change = Change::Put {
            client_flags: 0,
            expiry: 0,
            marks: Marks::NONE,
            value: &[LONG],
        };
        while let Err(refusal) = owner.propose(hash, b"long", change) {
            assert_eq!(refusal, crate::group::owner::Refusal::Busy);
            assert!(owner.has_to_sweep());
            // What is cleared is not theirs, though it would fit.
            for _ in 0..20 {
                others += 1;
                put(
                    &mut owner,
                    &format!("other {others}"),
                    &[b"16 bytes of text"],
                );
            }
            now += 10_000_000;
            owner.sweep(now);
            assert!(now < 10_000_000_000, "still no place");
        }
        let evictions = owner.counts().evictions - before - others;
        assert!(others > 200, "it was done at once");
        assert!(keys.len() > 1 << 20);
        assert!(evictions < 100_000, "{evictions} of {}", keys.len());
        let found = owner.committed(hash, b"long").unwrap();
        assert_eq!(owner.value(&found, |parts| parts.concat()).unwrap(), LONG);
        owner.sweep(now + 10_000_000);
    }

    #[test]
    fn a_lowered_bound_is_reached_though_every_chunk_is_in_use() {
        let footprint = |bytes: u64| Footprint::new(bytes, 0, Roles::ALONE).unwrap();
        let bound = Bound {
            footprint: Some(footprint(64 << 20)),
            ..Bound::NONE
        };
        let mut owner = Owner::alone(KeyHasher::new([1; 16]), 256 << 20, bound);
        for number in 0..30_000 {
            put(&mut owner, &format!("key {number}"), &[&[7; 1000]]);
        }
        for number in (0..30_000).filter(|number| number % 8 != 0) {
            remove(&mut owner, &format!("key {number}"));
        }
        let cap = footprint(32 << 20).region_cap(0);
        assert!(used(&owner) < cap / 2 && owner.region.touched_bytes() > cap / 2);
        assert!(owner.set_footprint(footprint(16 << 20)));
        let mut now = 0;
        while owner.has_to_sweep() {
            now += 10_000_000;
            assert!(now < 1_000_000_000, "{}", owner.region.touched_bytes());
            owner.sweep(now);
        }
        assert!(owner.region.touched_bytes() <= footprint(16 << 20).region_cap(0));
        let left = 30_000 / 8 - owner.counts().evictions;
        assert!(left > 1000, "{left}");
    }
}
