//! The lock-free pieces of the log store, in every interleaving of two threads.
//!
//! They are the store's own files, compiled with the atomics of the model checker.

#![allow(
    dead_code,
    reason = "the pieces are compiled for the parts that are checked"
)]

#[path = "../src/log/epoch.rs"]
mod epoch;
#[path = "../src/log/index.rs"]
mod index;
#[path = "../src/log/latch.rs"]
mod latch;

/// Words of the model checker, in place of large pages.
mod huge {
    use loom::sync::atomic::AtomicU64;

    pub fn zeroed(count: usize) -> Box<[AtomicU64]> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    pub fn first_in_line(_: &[AtomicU64]) -> usize {
        0
    }

    pub fn prefetch(_: &AtomicU64) {}
}

/// What the pieces take their atomics from.
mod sync {
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
    pub use loom::thread::yield_now;
}

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use epoch::Epochs;
use index::{BucketTag, Index};

/// One reads a frame that it found above the head, another raises the head and takes the frame.
fn frame_is_read_while_it_is_there(waits: bool) {
    loom::model(move || {
        let epochs = Arc::new(Epochs::new(1));
        let (head, frame) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(7)));
        let slot = epochs.claim().unwrap();
        let reader = {
            let (epochs, head, frame) =
                (Arc::clone(&epochs), Arc::clone(&head), Arc::clone(&frame));
            thread::spawn(move || {
                let _pin = epochs.pin(slot);
                if head.load(Ordering::Relaxed) == 0 {
                    assert_eq!(frame.load(Ordering::Relaxed), 7, "the frame was taken");
                }
            })
        };
        head.store(1, Ordering::Relaxed);
        let epoch = epochs.bump();
        if !waits || epochs.is_past(epoch) {
            frame.store(0, Ordering::Relaxed);
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_frame_is_taken_only_when_nobody_reads_it() {
    frame_is_read_while_it_is_there(true);
}

#[test]
#[should_panic(expected = "the frame was taken")]
fn a_frame_that_is_taken_at_once_is_read() {
    frame_is_read_while_it_is_there(false);
}

/// A record of two words that belong together is changed in place, and read.
#[test]
fn a_value_is_read_whole_or_again() {
    loom::model(|| {
        let word = Arc::new(AtomicU64::new(0));
        let value = Arc::new([AtomicU64::new(1), AtomicU64::new(1)]);
        let (their_word, their_value) = (Arc::clone(&word), Arc::clone(&value));
        let writer = thread::spawn(move || {
            let seen = latch::lock(&their_word).unwrap();
            their_value[0].store(2, Ordering::Relaxed);
            their_value[1].store(2, Ordering::Relaxed);
            latch::unlock(&their_word, seen, 0, false);
        });
        let seen = latch::begin_read(&word);
        let read = [0, 1].map(|number: usize| value[number].load(Ordering::Relaxed));
        if latch::is_unchanged(&word, seen) {
            assert_eq!(read[0], read[1], "torn");
        }
        writer.join().unwrap();
    });
}

/// Two add to a record, one of them by a copy that replaces it: the seal sends the other there.
#[test]
fn no_addition_is_lost_when_a_record_is_replaced() {
    loom::model(|| {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let values = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let front = Arc::new(AtomicU64::new(0));
        let theirs = (Arc::clone(&words), Arc::clone(&values), Arc::clone(&front));
        let in_place = thread::spawn(move || {
            let (words, values, front) = theirs;
            loop {
                let at = front.load(Ordering::Acquire) as usize;
                let Some(seen) = latch::lock(&words[at]) else {
                    thread::yield_now();
                    continue;
                };
                let value = values[at].load(Ordering::Relaxed);
                values[at].store(value + 1, Ordering::Relaxed);
                latch::unlock(&words[at], seen, 0, false);
                break;
            }
        });
        let seen = latch::lock(&words[0]).unwrap();
        let value = values[0].load(Ordering::Relaxed);
        values[1].store(value + 10, Ordering::Relaxed);
        front.store(1, Ordering::Release);
        latch::unlock(&words[0], seen, 0, true);
        in_place.join().unwrap();
        assert_eq!(values[1].load(Ordering::Relaxed), 11);
    });
}

const PLACE: BucketTag = BucketTag { bucket: 0, tag: 5 };

/// Two put a record in front of the same new chain, while an entry in front of theirs becomes free:
/// one entry has both.
#[test]
fn a_tag_has_one_entry_whoever_adds_it() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let index = Arc::new(Index::new(1, 1, 0));
        add(&index, BucketTag { bucket: 0, tag: 9 }, 4);
        let theirs = Arc::clone(&index);
        let other = thread::spawn(move || {
            theirs.sweep(6);
            add(&theirs, PLACE, 8)
        });
        let mine = add(&index, PLACE, 16);
        let others = other.join().unwrap();
        // The second found the first in front.
        let front = index.find(PLACE).unwrap().address();
        assert!(
            (front == 8 && others == 16) || (front == 16 && mine == 8),
            "front {front}, found {mine} and {others}"
        );
        assert_eq!(entries(&index).len(), 1);
    });
}

/// One adds a record to a chain that another sweeps away: the record is found.
#[test]
fn a_sweep_takes_no_record_that_is_above_the_begin() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let index = Arc::new(Index::new(1, 1, 0));
        add(&index, PLACE, 8);
        let theirs = Arc::clone(&index);
        let sweeper = thread::spawn(move || theirs.sweep(16));
        add(&index, PLACE, 24);
        sweeper.join().unwrap();
        assert_eq!(index.find(PLACE).unwrap().address(), 24);
    });
}

/// One finds and replaces an entry of a bucket that another splits: it is always found, and what was
/// put there last is.
#[test]
fn an_entry_is_found_and_replaced_while_its_bucket_is_split() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let index = Arc::new(Index::new(1, 2, 0));
        add(&index, PLACE, 8);
        let theirs = Arc::clone(&index);
        let splitter = thread::spawn(move || theirs.split_next());
        let found = index.find(PLACE).map(|entry| entry.address());
        assert_eq!(found, Some(8), "it was there all the time");
        add(&index, PLACE, 16);
        assert_eq!(index.find(PLACE).unwrap().address(), 16);
        splitter.join().unwrap();
        assert_eq!(index.bucket_count(), 2);
        assert_eq!(entries(&index), [(PLACE, 16)]);
        assert_eq!(index.find(PLACE).unwrap().address(), 16);
    });
}

/// One adds tags to a bucket that another splits: each is where it is looked for, once.
#[test]
fn tags_that_are_added_while_their_bucket_is_split_are_found() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let index = Arc::new(Index::new(1, 2, 0));
        let theirs = Arc::clone(&index);
        let splitter = thread::spawn(move || {
            theirs.split_next();
            add(&theirs, PLACE, 8)
        });
        let mine = add(&index, PLACE, 16);
        let others = splitter.join().unwrap();
        let front = index.find(PLACE).unwrap().address();
        assert!(
            (front == 8 && others == 16) || (front == 16 && mine == 8),
            "front {front}, found {mine} and {others}"
        );
        assert_eq!(entries(&index), [(PLACE, front)]);
    });
}

fn entries(index: &Index) -> Vec<(BucketTag, u64)> {
    let mut entries = Vec::new();
    index.for_each(|place, address| entries.push((place, address)));
    entries
}

/// Puts an address in front of the chain. What was there.
fn add(index: &Index, place: BucketTag, address: u64) -> u64 {
    loop {
        let entry = index.find_or_add(place).unwrap();
        if entry.replace(address) {
            return entry.address();
        }
        thread::yield_now();
    }
}
