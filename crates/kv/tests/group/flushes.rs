//! What an owner takes for flushed while flushes and its time are under way: what it will be once all is
//! committed.

use cenote_kv::group::SWEEP_NS;
use cenote_kv::group::owner::Owner;

use super::*;

impl Group {
    fn first(&mut self) -> &mut Owner {
        self.member(0).owner(0).expect("it is the owner")
    }

    fn flush(&mut self, at: u32) {
        let flushed = self.first().propose(0, b"", Change::Flush { at });
        flushed.expect("it is open");
    }

    /// Whether a key's item is there by what the next operation is decided on, which is what is committed then.
    fn has(&mut self, key: &[u8]) -> bool {
        let owner = self.first();
        let hash = owner.hash_of(key);
        let is_there = owner.newest(hash, key).found.is_some();
        self.settle();
        assert_eq!(self.read(0, 0, key).is_some(), is_there);
        is_there
    }
}

impl Group {
    fn count(&mut self) -> usize {
        self.first().replica().table().len()
    }

    /// What is proposed from now on is swept for before anybody has heard of it.
    fn make_sweep_due(&mut self) {
        self.wait(10 * SWEEP_NS);
        self.now += SWEEP_NS;
    }

    /// The turn ends in which something was proposed, and its space is given back by and by.
    fn sweep(&mut self) {
        let now = self.now;
        self.member(0).flush(now, false);
        for _ in 0..10 {
            self.wait(SWEEP_NS);
        }
    }
}

#[test]
fn what_is_flushed_is_given_back_though_all_was_looked_at_before_the_flush_was_committed() {
    for at in [0, 105] {
        let mut group = group();
        for number in 0..100_u8 {
            group.propose(0, 0, &[b'k', number], b"value");
        }
        group.make_sweep_due();
        group.flush(at);
        if at > 0 {
            group.make_sweep_due();
            group.first().tick(at);
        }
        assert_eq!(group.count(), 101);
        group.sweep();
        assert_eq!(group.count(), 0, "at {at}");
    }
}

#[test]
fn what_ends_is_given_back_though_all_was_looked_at_before_it_was_committed() {
    let mut group = group();
    group.make_sweep_due();
    let put = Change::Put {
        client_flags: 0,
        expiry: 105,
        marks: Marks::NONE,
        value: &[b"value"],
    };
    let owner = group.first();
    let hash = owner.hash_of(b"mortal");
    owner.propose(hash, b"mortal", put).expect("there is room");
    group.sweep();
    assert_eq!(group.count(), 2);
    group.first().tick(106);
    group.sweep();
    assert_eq!(group.count(), 1);
}

#[test]
fn where_nothing_makes_room_for_others_a_flush_does() {
    let mut group = Group::of(Shape {
        evicts: false,
        ..SHAPE
    });
    let put = Change::Put {
        client_flags: 0,
        expiry: 0,
        marks: Marks::NONE,
        value: &[&[7; 4096]],
    };
    let mut number = 0_u32;
    let refused = loop {
        number += 1;
        let key = number.to_le_bytes();
        let owner = group.first();
        match owner.propose(owner.hash_of(&key), &key, put) {
            Ok(_) => group.settle(),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refused, Refusal::NoSpace);
    group.make_sweep_due();
    group.flush(0);
    group.sweep();
    let owner = group.first();
    let put = owner.propose(owner.hash_of(b"next"), b"next", put);
    assert!(put.is_ok(), "{put:?}");
}

/// A group at second 100 with an item.
fn group() -> Group {
    let mut group = Group::new();
    group.first().tick(100);
    group.propose(0, 0, b"k", b"value");
    group.settle();
    group
}

#[test]
fn a_flush_under_way_comes_true_with_the_second_that_is_under_way() {
    let mut group = group();
    group.flush(105);
    group.first().tick(105);
    assert!(!group.has(b"k"));
}

#[test]
fn a_flush_for_a_second_that_is_under_way_is_at_once() {
    let mut group = group();
    group.first().tick(105);
    group.flush(103);
    assert!(!group.has(b"k"));
}

#[test]
fn a_flush_at_once_takes_the_place_of_a_later_one() {
    let mut group = group();
    group.flush(105);
    group.settle();
    group.flush(0);
    group.propose(0, 0, b"k", b"newer");
    group.first().tick(105);
    assert!(group.has(b"k"));
}

/// The numbers of views are not bounded, and a cas number has 20 bits of one.
#[test]
fn what_is_stored_behind_a_flush_stays_when_the_views_of_cas_numbers_begin_anew() {
    for is_committed in [false, true] {
        let mut group = group();
        group.first().begin_view((1 << 20) - 1);
        group.flush(0);
        if is_committed {
            group.settle();
        }
        group.first().begin_view(1 << 20);
        group.propose(0, 0, b"k", b"newer");
        assert!(group.has(b"k"));
        group.flush(0);
        assert!(!group.has(b"k"));
    }
}
