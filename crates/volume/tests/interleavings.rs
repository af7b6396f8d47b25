//! The volume's lock-free words in every interleaving of two threads: claims, entries of pages in
//! flight, epochs.
//!
//! They are the volume's own files, compiled with the atomics of the model checker. Each ordering in them is
//! taken away in turn; the tests name those that must be missed.

#![allow(
    dead_code,
    reason = "the pieces are compiled for the parts that are checked"
)]

#[path = "../src/flights/entry.rs"]
mod entry;
#[path = "../src/directory/epochs.rs"]
mod epochs;
#[path = "../../../tests/model/weakened.rs"]
mod weakened;
#[path = "../src/claims/word.rs"]
mod word;

/// What the pieces take their atomics from.
mod sync {
    pub use crate::weakened::{AtomicU64, Ordering, fence};
}

/// Where an entry looks for the claim's word.
mod claims {
    pub use crate::word::ClaimWord;
}

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use entry::Entry;
use epochs::Epochs;
use weakened::{Source, lines};
use word::ClaimWord;

const WORD: Source = Source("src/claims/word.rs", include_str!("../src/claims/word.rs"));
const ENTRY: Source = Source(
    "src/flights/entry.rs",
    include_str!("../src/flights/entry.rs"),
);
const EPOCHS: Source = Source(
    "src/directory/epochs.rs",
    include_str!("../src/directory/epochs.rs"),
);

/// A page of two splits.
struct Page {
    claim: ClaimWord,
    splits: [AtomicU64; 2],
}

impl Page {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            claim: ClaimWord::new(),
            splits: [0, 0].map(AtomicU64::new),
        })
    }

    fn read(&self) -> [u64; 2] {
        [0, 1].map(|split: usize| self.splits[split].load(Ordering::Relaxed))
    }

    /// One write, if nobody else has the page; whether it was.
    fn write(&self, value: u64) -> bool {
        let is_mine = self.claim.try_claim();
        if is_mine {
            let [first, second] = self.read();
            assert_eq!(first, second, "two writers at a time");
            for split in &self.splits {
                split.store(value, Ordering::Relaxed);
            }
            self.claim.release();
        }
        is_mine
    }
}

/// What one reads of a page that another writes is of one write, and no older than one it knows of.
fn read_beside_a_write() {
    loom::model(|| {
        let page = Page::new();
        let theirs = Arc::clone(&page);
        let writer = thread::spawn(move || {
            assert!(theirs.write(1), "nobody else writes");
        });
        if let Some(version) = page.claim.version() {
            let [first, second] = page.read();
            if page.claim.unchanged(version) {
                assert_eq!(first, second, "torn");
                assert_eq!(first, version / 2, "of another write than the version's");
            }
        }
        writer.join().unwrap();
    });
}

/// Two write; the second copies what it read, if nobody wrote meanwhile.
fn write_beside_a_write() {
    loom::model(|| {
        let page = Page::new();
        let theirs = Arc::clone(&page);
        let writer = thread::spawn(move || theirs.write(1));
        let mine = page.claim.version().is_some_and(|version| {
            let [first, second] = page.read();
            let is_mine = page.claim.try_claim_at(version);
            if is_mine {
                assert_eq!([first, second], page.read(), "written since");
                page.splits[0].store(2, Ordering::Relaxed);
                page.splits[1].store(2, Ordering::Relaxed);
                page.claim.release();
            }
            is_mine
        });
        let others = writer.join().unwrap();
        assert!(mine || others, "nobody was in the way of one of them");
        let [first, second] = page.read();
        assert_eq!(first, second, "splits of two writes");
    });
}

/// One reads a page in flight; its writer ends, and the next one begins.
fn read_beside_a_flight() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let page = Page::new();
        let words = Arc::new([0; 4].map(weakened::AtomicU64::new));
        assert!(page.claim.try_claim());
        page.splits[0].store(1, Ordering::Relaxed);
        Entry(&words[..]).publish(7, 1, 1, 0b01);
        let (theirs, their_words) = (Arc::clone(&page), Arc::clone(&words));
        let writer = thread::spawn(move || {
            let entry = Entry(&their_words[..]);
            theirs.splits[1].store(1, Ordering::Relaxed);
            entry.publish(7, 1, 1, 0b11);
            entry.withdraw();
            theirs.claim.release();
            // The next write, of another page that shares the words: nobody is to take it for this one.
            assert!(theirs.claim.try_claim());
            theirs.splits[1].store(2, Ordering::Relaxed);
            entry.publish(8, 2, 2, 0b10);
        });
        if let Some(flight) = Entry(&words[..]).find(&page.claim, 7) {
            assert_eq!((flight.writer, flight.changed_in), (1, 1), "of another");
            assert!(
                flight.splits == 0b01 || flight.splits == 0b11,
                "of no write"
            );
            let read = page.read();
            if page.claim.unchanged_in_flight(flight.version) {
                for split in [0, 1]
                    .into_iter()
                    .filter(|split| flight.splits >> split & 1 == 1)
                {
                    assert_eq!(read[split], 1, "a split that had not landed");
                }
            }
        }
        writer.join().unwrap();
    });
}

/// A slab that is read while it stands, and given back after: the checker finds a read beside that.
#[derive(Clone)]
struct Slab(Arc<loom::cell::UnsafeCell<u64>>);

impl Slab {
    fn new() -> Self {
        Self(Arc::new(loom::cell::UnsafeCell::new(7)))
    }

    fn read(&self) {
        // SAFETY: nobody gives it back while one works in an epoch that has it, which is what is checked.
        let bytes = self.0.with(|bytes| unsafe { *bytes });
        assert_eq!(bytes, 7, "the slab was given back");
    }

    fn give_back(&self) {
        // SAFETY: nobody works in an epoch that has it, which is what is checked.
        self.0.with_mut(|bytes| unsafe { *bytes = 0 });
    }
}

/// One works with a slab that another drops, and gives back once the epoch has settled.
fn slab_that_goes_beside_a_worker() {
    loom::model(|| {
        let epochs = Arc::new(Epochs::new(1));
        let newest = Arc::new(loom::sync::Mutex::new(1));
        let slab = Slab::new();
        let (their_epochs, theirs, bytes) =
            (Arc::clone(&epochs), Arc::clone(&newest), slab.clone());
        let worker = thread::spawn(move || {
            let slot = their_epochs.claim().unwrap();
            let mut known = 1;
            their_epochs.enter(slot, false, 1, || {
                known = *theirs.lock().unwrap();
                known
            });
            if known == 1 {
                bytes.read();
            }
            their_epochs.leave(slot, None);
        });
        {
            let mut newest = newest.lock().unwrap();
            *newest = 2;
            epochs.begin(2);
        }
        if epochs.is_settled(2) {
            slab.give_back();
        }
        worker.join().unwrap();
        assert!(epochs.is_settled(2), "nobody works");
    });
}

/// As before, where another has asked whether it has settled: one goes by what that one found.
fn slab_that_goes_by_word_of_another() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let epochs = Arc::new(Epochs::new(1));
        let slab = Slab::new();
        let slot = epochs.claim().unwrap();
        epochs.enter(slot, false, 1, || unreachable!("it is the newest"));
        epochs.begin(2);
        let (theirs, bytes) = (Arc::clone(&epochs), slab.clone());
        let worker = thread::spawn(move || {
            bytes.read();
            theirs.leave(slot, None);
        });
        let asker = Arc::clone(&epochs);
        let other = thread::spawn(move || asker.is_settled(2));
        if epochs.is_settled(2) {
            slab.give_back();
        }
        other.join().unwrap();
        worker.join().unwrap();
    });
}

/// An operation goes on in an older epoch while its worker takes up another in the newest.
fn epoch_that_is_still_held() {
    loom::model(|| {
        let epochs = Arc::new(Epochs::new(1));
        let slot = epochs.claim().unwrap();
        epochs.enter(slot, false, 1, || unreachable!("it is the newest"));
        let slab = Slab::new();
        let (theirs, bytes) = (Arc::clone(&epochs), slab.clone());
        let worker = thread::spawn(move || {
            theirs.enter(slot, true, 1, || 2);
            bytes.read();
            theirs.leave(slot, Some(2));
        });
        epochs.begin(2);
        if epochs.is_settled(2) {
            slab.give_back();
        }
        worker.join().unwrap();
    });
}

/// One gives its slot back, and another claims it: what the first did in it was before.
fn slot_that_another_had() {
    loom::model(|| {
        let epochs = Arc::new(Epochs::new(1));
        let slot = epochs.claim().unwrap();
        let used = Arc::new(loom::cell::UnsafeCell::new(0));
        let (theirs, their_use) = (Arc::clone(&epochs), Arc::clone(&used));
        let next = thread::spawn(move || {
            if theirs.claim().is_some() {
                // SAFETY: who has the slot is alone with it, which is what is checked.
                their_use.with_mut(|used| unsafe { *used += 1 });
            }
        });
        // SAFETY: as above.
        used.with_mut(|used| unsafe { *used += 1 });
        epochs.release(slot);
        next.join().unwrap();
    });
}

#[test]
fn orderings_of_the_claim_word_are_needed() {
    let lines = lines("orderings_of_the_claim_word_are_needed", WORD, || {
        read_beside_a_write();
        write_beside_a_write();
    });
    lines.assert_needed(&[
        ".compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed)",
        ".store(self.0.load(Ordering::Relaxed) + 1, Ordering::Release);",
    ]);
}

#[test]
fn orderings_of_a_page_in_flight_are_needed() {
    let test = "orderings_of_a_page_in_flight_are_needed";
    lines(test, ENTRY, read_beside_a_flight).assert_needed(&[
        "words[3].store(splits, Ordering::Release);",
        "fence(Ordering::Acquire);",
    ]);
}

#[test]
fn orderings_of_the_epochs_are_needed() {
    let lines = lines("orderings_of_the_epochs_are_needed", EPOCHS, || {
        slab_that_goes_beside_a_worker();
        slab_that_goes_by_word_of_another();
        epoch_that_is_still_held();
        slot_that_another_had();
    });
    lines.assert_needed(&[
        "self.workers[worker].0.store(known, Ordering::SeqCst);",
        "self.workers[worker].0.store(oldest, Ordering::Release);",
    ]);
}
