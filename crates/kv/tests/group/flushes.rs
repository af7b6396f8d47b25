//! What an owner takes for flushed while flushes and its time are under way: what it will be once all is
//! committed.

use cenote_kv::group::owner::{Change, Owner};

use super::Group;

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
