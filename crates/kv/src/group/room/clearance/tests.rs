//! A bound that is lowered is reached, a step at a time.

use super::*;
use crate::group::marks::Marks;
use crate::group::owner::Change;
use crate::group::room::{Bound, SWEEP_NS};
use crate::memory::footprint::{Footprint, Roles};
use crate::memory::key_hash::KeyHasher;

const ITEMS: u64 = 30_000;
/// Of which one in so many stays.
const STAYING_PART: u64 = 8;

fn footprint(bytes: u64) -> Footprint {
    Footprint::new(bytes, 0, Roles::ALONE).unwrap()
}

fn put(owner: &mut Owner, key: &str) {
    let hash = owner.hash_of(key.as_bytes());
    let change = Change::Put {
        client_flags: 0,
        expiry: 0,
        marks: Marks::NONE,
        value: &[&[7; 1000]],
    };
    owner.propose(hash, key.as_bytes(), change).unwrap();
}

/// Some thousand items that are left of many, with some in every chunk, and a bound that has become lower.
fn sparse(strides: Strides) -> Owner {
    let bound = Bound {
        footprint: Some(footprint(64 << 20)),
        ..Bound::NONE
    };
    let mut owner = Owner::alone(KeyHasher::new([1; 16]), 256 << 20, bound);
    owner.room.strides = strides;
    (0..ITEMS).for_each(|number| put(&mut owner, &format!("key {number}")));
    for number in (0..ITEMS).filter(|number| number % STAYING_PART != 0) {
        let key = format!("key {number}");
        let hash = owner.hash_of(key.as_bytes());
        owner.propose(hash, key.as_bytes(), Change::Remove).unwrap();
    }
    assert!(owner.set_footprint(footprint(16 << 20)));
    owner
}

/// Sweeps until the bound is reached; `between` is done before each.
fn reach_bound(owner: &mut Owner, mut between: impl FnMut(&mut Owner)) {
    let mut now = 0;
    while owner.has_to_clear() {
        between(owner);
        now += 10_000_000;
        assert!(now < 10_000_000_000, "{}", owner.region.touched_bytes());
        owner.sweep(now);
    }
    let cap = footprint(16 << 20).region_cap(0);
    assert!(owner.region.touched_bytes() <= cap);
}

#[test]
fn a_lowered_bound_is_reached_where_one_sweep_does_not_see_all_of_the_region() {
    let mut owner = sparse(Strides {
        trims: 1,
        ..Strides::default()
    });
    assert!(owner.room.reached > CHUNKS_LOOKED_AT * CHUNK_BYTES);
    reach_bound(&mut owner, |_| ());
    let left = ITEMS / STAYING_PART - owner.counts().evictions;
    assert!(left > 1000, "{left}");
}

#[test]
fn of_many_items_some_leave_their_chunks_at_a_time() {
    const STEP: usize = 100;
    // And as many as the index has together.
    const STEP_MAX: u64 = STEP as u64 + 500;
    let mut owner = sparse(Strides {
        items_max: 1000,
        items_step: STEP,
        ..Strides::default()
    });
    let (mut evictions, mut others) = (0, 0);
    reach_bound(&mut owner, |owner| {
        let now = owner.counts().evictions;
        assert!(now - evictions <= STEP_MAX, "{}", now - evictions);
        evictions = now;
        others += 1;
        let key = format!("other {others}");
        put(owner, &key);
        if let Some((window, _)) = &owner.room.trimming.leaving {
            let hash = owner.hash_of(key.as_bytes());
            let found = owner.committed(hash, key.as_bytes()).unwrap();
            assert!(
                !meets(&space_of(&found.entry), window),
                "it would be in the way"
            );
        }
    });
    assert!(others > 8, "it was done at once");
    let left = ITEMS / STAYING_PART + others - owner.counts().evictions;
    assert!(left > 1000, "{left}");
}

#[test]
fn where_nothing_makes_room_a_lowered_bound_is_looked_at_again_now_and_then() {
    let mut owner = sparse(Strides::default());
    owner.set_eviction(false);
    let cap = footprint(16 << 20).region_cap(0);
    let mut now = 0;
    while owner.has_to_clear() {
        now += SWEEP_NS;
        assert!(now < REST_NS, "it never rests");
        owner.sweep(now);
    }
    assert!(
        owner.region.touched_bytes() > cap,
        "all that is left is in use"
    );
    let key = b"key 0";
    let hash = owner.hash_of(key);
    owner.propose(hash, key, Change::Remove).unwrap();
    owner.sweep(now + SWEEP_NS);
    assert!(!owner.has_to_clear());
    for number in (0..ITEMS).step_by(STAYING_PART as usize) {
        let key = format!("key {number}");
        let hash = owner.hash_of(key.as_bytes());
        owner.propose(hash, key.as_bytes(), Change::Remove).unwrap();
    }
    owner.sweep(now + REST_NS);
    assert!(!owner.has_to_clear());
    assert!(owner.region.touched_bytes() <= cap);
}
