//! The volume's lock-free pieces, in every interleaving of two threads: the claim word of a page, the
//! entry of a page in flight, the epochs of the directory, and the wait for a worker.
//!
//! They are the volume's own files, compiled with the atomics of a model checker. Each model is also run
//! with mistakes, which it finds.

#![allow(
    dead_code,
    reason = "the pieces are compiled for the parts that are checked"
)]

#[path = "../src/flights/entry.rs"]
mod entry;
#[path = "../src/directory/epochs.rs"]
mod epochs;
#[path = "../src/workers/shared.rs"]
mod shared;
#[path = "../src/claims/word.rs"]
mod word;

/// Where the entry's file takes the claim word from.
mod claims {
    pub use crate::word::Word;
}

use std::array;
use std::sync::Arc as StdArc;

use cenote_test_kit::atomics as sync;
use entry::{ENTRY_WORDS, Entry};
use epochs::Epochs;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use shared::Shared;
use sync::{Mistake, check, with};
use word::Word;

/// The splits of a page, in the memory of two hosts.
struct Page {
    claim: Word,
    splits: [AtomicU64; 2],
    entry: [sync::AtomicU64; ENTRY_WORDS],
}

impl Page {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            claim: Word::new(),
            splits: array::from_fn(|_| AtomicU64::new(0)),
            entry: array::from_fn(|_| sync::AtomicU64::new(0)),
        })
    }

    fn claim(&self) {
        while !self.claim.try_claim() {
            thread::yield_now();
        }
    }

    fn write(&self, value: u64) {
        for split in &self.splits {
            split.store(value, Ordering::Relaxed);
        }
    }

    fn read(&self) -> [u64; 2] {
        array::from_fn(|at| self.splits[at].load(Ordering::Relaxed))
    }
}

/// Two write the same page, each unless it `minds` nobody.
fn overlapping_writes(minds: bool) {
    check(None, move |pair| {
        let page = Page::new();
        let (mine, theirs) = (Arc::clone(&page), Arc::clone(&page));
        pair.run(
            move || {
                if minds {
                    mine.claim();
                }
                mine.write(2);
                if minds {
                    mine.claim.release();
                }
            },
            move || {
                theirs.claim();
                theirs.write(1);
                theirs.claim.release();
            },
        );
        let [first, second] = page.read();
        assert_eq!(first, second, "a stripe of two writes");
        assert_eq!(page.claim.version(), Some(if minds { 4 } else { 2 }));
    });
}

#[test]
fn a_stripe_has_the_splits_of_one_write() {
    overlapping_writes(true);
}

#[test]
#[should_panic(expected = "a stripe of two writes")]
fn a_write_without_a_claim_mixes_a_stripe() {
    overlapping_writes(false);
}

/// One reads a page that another writes twice, and takes what it read if the version `stands`.
fn read_beside_a_writer(stands: fn(&Word, u64) -> bool) {
    check(None, move |pair| {
        let page = Page::new();
        let theirs = Arc::clone(&page);
        pair.run(
            move || {
                let Some(version) = page.claim.version() else {
                    return;
                };
                let [first, second] = page.read();
                if stands(&page.claim, version) {
                    assert_eq!(first, second, "a torn read");
                    assert_eq!(first, version / 2, "a read of another version");
                }
            },
            move || {
                for value in [1, 2] {
                    theirs.claim();
                    theirs.write(value);
                    theirs.claim.release();
                }
            },
        );
    });
}

#[test]
fn a_read_beside_a_writer_is_whole_or_taken_again() {
    read_beside_a_writer(Word::unchanged);
}

#[test]
#[should_panic(expected = "a torn read")]
fn a_read_that_does_not_look_again_is_torn() {
    read_beside_a_writer(|_, _| true);
}

#[test]
#[should_panic(expected = "a torn read")]
fn a_read_without_the_fences_is_torn() {
    with(Mistake::NoFences, || read_beside_a_writer(Word::unchanged));
}

/// Two read a page, change what they read, and write it if nobody has written it since, which `claim` says.
fn read_and_write_back(claim: fn(&Word, u64) -> bool) {
    check(Some(4), move |pair| {
        let page = Page::new();
        let add = move |page: Arc<Page>| {
            loop {
                if let Some(version) = page.claim.version() {
                    let [first, _] = page.read();
                    if claim(&page.claim, version) {
                        page.write(first + 1);
                        return page.claim.release();
                    }
                }
                thread::yield_now();
            }
        };
        let (mine, theirs) = (Arc::clone(&page), Arc::clone(&page));
        pair.run(move || add(mine), move || add(theirs));
        assert_eq!(page.read(), [2, 2], "a change is lost");
    });
}

#[test]
fn a_part_of_a_page_is_written_into_the_page_that_was_read() {
    read_and_write_back(Word::try_claim_at);
}

#[test]
#[should_panic(expected = "a change is lost")]
fn a_claim_of_any_version_loses_the_change_between() {
    read_and_write_back(|word, _| word.try_claim());
}

/// One reads a page that is written so often, and acknowledged before all has landed: after each split its
/// entry says so. Then it is taken back, unless the writer `forgets` that.
fn read_in_flight(writes: u64, splits: usize, forgets: bool) {
    check(Some(2), move |pair| {
        let page = Page::new();
        let theirs = Arc::clone(&page);
        pair.run(
            move || {
                let Some(found) = Entry(&page.entry).find(&page.claim, 7) else {
                    return;
                };
                let number = found.version.div_ceil(2);
                assert_eq!(found.writer as u64, number, "an entry of two writes");
                let read = page.read();
                if page.claim.unchanged_in_flight(found.version) {
                    for (split, value) in read.into_iter().enumerate() {
                        assert!(
                            found.splits >> split & 1 == 0 || value == number,
                            "a split that had not landed"
                        );
                    }
                }
            },
            move || {
                let entry = Entry(&theirs.entry);
                for number in 1..=writes {
                    theirs.claim();
                    for split in 0..splits {
                        theirs.splits[split].store(number, Ordering::Relaxed);
                        entry.publish(7, number as usize, 1, (2 << split) - 1);
                    }
                    if !forgets {
                        entry.withdraw();
                    }
                    theirs.claim.release();
                }
            },
        );
    });
}

#[test]
fn what_is_found_in_flight_is_of_one_write_and_has_landed() {
    read_in_flight(2, 1, false);
    read_in_flight(1, 2, false);
}

#[test]
#[should_panic(expected = "an entry of two writes")]
fn an_entry_that_outlives_its_claim_is_found_under_the_next() {
    read_in_flight(2, 1, true);
}

#[test]
#[should_panic(expected = "a split that had not landed")]
fn an_entry_without_the_fences_names_splits_of_another_write() {
    with(Mistake::NoFences, || read_in_flight(2, 1, false));
}

/// Two pages share a word and an entry: none is found under the other's name.
fn entries_that_are_shared(named: fn(u64) -> u64) {
    check(Some(2), move |pair| {
        let page = Page::new();
        let theirs = Arc::clone(&page);
        pair.run(
            move || {
                if let Some(found) = Entry(&page.entry).find(&page.claim, 7) {
                    assert_eq!(found.writer, 7, "another page's entry");
                }
            },
            move || {
                for number in [7, 9] {
                    theirs.claim();
                    Entry(&theirs.entry).publish(named(number), number as usize, 1, 0b11);
                    Entry(&theirs.entry).withdraw();
                    theirs.claim.release();
                }
            },
        );
    });
}

#[test]
fn an_entry_is_found_by_its_own_page() {
    entries_that_are_shared(|page| page);
}

#[test]
#[should_panic(expected = "another page's entry")]
fn an_entry_without_its_page_is_taken_for_another() {
    entries_that_are_shared(|_| 7);
}

/// Who does it wrong.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Hasty {
    Nobody,
    /// It leaves before its verbs have ended.
    Worker,
    /// It gives a slab back without asking whether the epoch is settled.
    Publisher,
}

/// A worker finds the slab of its epoch and writes to it, while another makes an epoch without that slab and
/// gives it back when that is settled.
fn slab_is_given_back(hasty: Hasty) {
    check(None, move |pair| {
        let epochs = Arc::new(Epochs::new(2));
        let is_given_back = Arc::new(AtomicBool::new(false));
        let (mine, my_slab) = (Arc::clone(&epochs), Arc::clone(&is_given_back));
        let theirs = Arc::clone(&epochs);
        pair.run(
            move || {
                let slot = mine.take().expect("one is free");
                // The snapshot that it has is of the first epoch.
                if mine.enter(slot, 1, false) {
                    if hasty == Hasty::Worker {
                        mine.leave(slot, None);
                    }
                    assert!(
                        !my_slab.load(Ordering::Relaxed),
                        "a slab that was given back is written"
                    );
                } else {
                    assert!(mine.enter(slot, 2, false), "there is no later one");
                }
                mine.leave(slot, None);
                mine.give_back(slot);
            },
            move || {
                theirs.advance(2);
                if hasty == Hasty::Publisher || theirs.is_settled(2) {
                    is_given_back.store(true, Ordering::Relaxed);
                }
            },
        );
        assert!(epochs.is_settled(2), "nobody works any more");
    });
}

#[test]
fn a_slab_is_given_back_when_no_worker_writes_to_it() {
    slab_is_given_back(Hasty::Nobody);
}

#[test]
#[should_panic(expected = "a slab that was given back is written")]
fn a_slab_that_is_given_back_at_once_is_written() {
    slab_is_given_back(Hasty::Publisher);
}

#[test]
#[should_panic(expected = "a slab that was given back is written")]
fn a_worker_that_leaves_early_writes_to_a_slab_that_was_given_back() {
    slab_is_given_back(Hasty::Worker);
}

#[test]
#[should_panic(expected = "a slab that was given back is written")]
fn a_slot_that_is_not_stored_before_the_look_is_not_seen() {
    with(Mistake::WeakAccesses, || slab_is_given_back(Hasty::Nobody));
}

/// A worker has one operation in an old epoch when it enters the next: the old one settles with it.
fn older_operation(holds_older: bool) {
    check(None, move |pair| {
        let epochs = Arc::new(Epochs::new(1));
        let is_given_back = Arc::new(AtomicBool::new(false));
        let slot = epochs.take().expect("one is free");
        assert!(epochs.enter(slot, 1, false));
        let (mine, my_slab) = (Arc::clone(&epochs), Arc::clone(&is_given_back));
        let theirs = Arc::clone(&epochs);
        pair.run(
            move || {
                if !mine.enter(slot, 1, holds_older) {
                    mine.enter(slot, 2, holds_older);
                }
                assert!(!my_slab.load(Ordering::Relaxed), "it is written yet");
                // The old one has ended.
                mine.leave(slot, Some(2));
            },
            move || {
                theirs.advance(2);
                if theirs.is_settled(2) {
                    is_given_back.store(true, Ordering::Relaxed);
                }
            },
        );
        assert!(epochs.is_settled(2));
    });
}

#[test]
fn an_epoch_settles_when_its_last_operation_has_ended() {
    older_operation(true);
}

#[test]
#[should_panic(expected = "it is written yet")]
fn an_operation_that_is_forgotten_lets_its_epoch_settle() {
    older_operation(false);
}

/// Two threads and one thing: each gets it. What is shared is not loom's: a thread that waits for ever is
/// unwound when the model has ended.
fn thing_is_shared() {
    check(None, |pair| {
        let shared = StdArc::new(Shared::new(vec![0_u64]));
        // Where loom may have the other go on: it goes through no lock that is tried, and not waited for.
        let step = StdArc::new(AtomicU64::new(0));
        let take = |shared: StdArc<Shared<u64>>, step: StdArc<AtomicU64>| {
            move || {
                step.fetch_add(1, Ordering::Relaxed);
                let mut taken = shared.get();
                step.fetch_add(1, Ordering::Relaxed);
                *taken += 1;
            }
        };
        pair.run(
            take(StdArc::clone(&shared), StdArc::clone(&step)),
            take(StdArc::clone(&shared), step),
        );
        assert_eq!(*shared.get(), 2);
    });
}

#[test]
fn nobody_waits_for_a_worker_that_was_given_back() {
    thing_is_shared();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_wait_without_the_fences_is_missed() {
    with(Mistake::NoFences, thing_is_shared);
}
