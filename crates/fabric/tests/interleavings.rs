//! The fabric's lock-free words in every interleaving of two threads: the slots of the SIGBUS handler, the
//! doors of windows.
//!
//! They are the fabric's own files, compiled with the atomics of the model checker.

#[path = "../src/windows/door.rs"]
mod door;
#[path = "../src/memory/sigbus/slots.rs"]
mod slots;
#[path = "../../../tests/model/weakened.rs"]
mod weakened;

/// What they take their atomics from.
mod sync {
    pub use crate::weakened::{
        AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering, fence, yield_now,
    };
}

use door::Door;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use weakened::Source;

const LEN_BYTES: usize = 0x1000;
const OLD: usize = 0x10_0000;
const NEW: usize = 0x20_0000;
const OTHER: usize = 0x30_0000;
/// Below every mapping of ours, where programs are that are linked to fixed addresses.
const LOW: usize = 0x40;

type Slots = slots::Slots<2, 1>;

/// A mapping goes and another of the same length comes, while a handler looks for an address that was in
/// neither.
fn an_address_of_others_is_looked_for() {
    loom::model(|| {
        let slots = Arc::new(Slots::new());
        let old = slots.add(OLD, LEN_BYTES).unwrap();
        let theirs = Arc::clone(&slots);
        let changer = thread::spawn(move || {
            theirs.remove(old);
            theirs.add(NEW, LEN_BYTES).unwrap();
        });
        assert!(
            slots.find(LOW).is_none(),
            "memory of others is taken for ours"
        );
        changer.join().unwrap();
        assert!(slots.find(NEW).is_some() && slots.find(OLD).is_none());
    });
}

/// The same, where others have memory now at which a mapping of ours was.
fn an_address_that_was_ours_is_looked_for() {
    loom::model(|| {
        let slots = Arc::new(Slots::new());
        let old = slots.add(OLD, LEN_BYTES).unwrap();
        let is_mapped_anew = Arc::new(AtomicBool::new(false));
        let (theirs, anew) = (Arc::clone(&slots), Arc::clone(&is_mapped_anew));
        let changer = thread::spawn(move || {
            theirs.remove(old);
            // Others map memory there, and touch it.
            anew.store(true, Ordering::Release);
            theirs.add(NEW, LEN_BYTES).unwrap();
        });
        if is_mapped_anew.load(Ordering::Acquire) {
            assert!(
                slots.find(OLD).is_none(),
                "memory of others is taken for ours"
            );
        }
        changer.join().unwrap();
    });
}

/// A mapping stands while others come and go: it is found, and its loss is seen. `says_first`: what the
/// handler does; the other way round zeros are taken for bytes.
fn a_mapping_that_stands_is_lost(says_first: bool) {
    loom::model(move || {
        let slots = Arc::new(Slots::new());
        let old = slots.add(OLD, LEN_BYTES).unwrap();
        let standing = slots.add(OTHER, LEN_BYTES).unwrap();
        let bytes = Arc::new(AtomicU64::new(7));
        let (theirs, lost) = (Arc::clone(&slots), Arc::clone(&bytes));
        let handler = thread::spawn(move || {
            let found = theirs.find(OTHER + 8).expect("it stands");
            assert_eq!(found.place(), (OTHER, LEN_BYTES), "another's");
            if says_first {
                found.kill();
            }
            // What the kernel does with a new mapping is seen by all processors in order.
            lost.store(0, Ordering::Release);
            if !says_first {
                found.kill();
            }
        });
        slots.remove(old);
        let read = bytes.load(Ordering::Relaxed);
        assert!(read == 7 || standing.is_dead(), "zeros are taken for bytes");
        handler.join().unwrap();
    });
}

#[test]
fn a_handler_finds_the_mapping_that_faulted_and_no_other() {
    an_address_of_others_is_looked_for();
    an_address_that_was_ours_is_looked_for();
    a_mapping_that_stands_is_lost(true);
}

#[test]
fn memory_that_is_replaced_before_it_is_said_to_be_lost_is_found() {
    let test = "memory_that_is_replaced_before_it_is_said_to_be_lost_is_found";
    assert!(weakened::is_found(test, || a_mapping_that_stands_is_lost(
        false
    )));
}

const DOOR: Source = Source(
    "src/windows/door.rs",
    include_str!("../src/windows/door.rs"),
);

/// A verb comes while its window is revoked: what is behind the door is not touched once that is over.
fn verb_beside_a_revoke() {
    loom::model(|| {
        let door = Arc::new(Door::default());
        let bytes = Arc::new(loom::cell::UnsafeCell::new(0));
        door.open(7);
        let (theirs, their_bytes) = (Arc::clone(&door), Arc::clone(&bytes));
        let verb = thread::spawn(move || {
            if theirs.enter(7) {
                // SAFETY: the revoker waits for who is inside, which is what is checked.
                their_bytes.with_mut(|bytes| unsafe { *bytes += 1 });
            }
            theirs.leave();
        });
        door.close();
        // SAFETY: nobody is inside any more, which is what is checked.
        bytes.with_mut(|bytes| unsafe { *bytes = 0 });
        verb.join().unwrap();
    });
}

/// A verb comes under a generation that is just being given: what the window is was stored before.
fn verb_beside_an_open() {
    loom::model(|| {
        let door = Arc::new(Door::default());
        let base = Arc::new(loom::cell::UnsafeCell::new(0));
        let (theirs, their_base) = (Arc::clone(&door), Arc::clone(&base));
        let verb = thread::spawn(move || {
            if theirs.enter(7) {
                // SAFETY: nobody changes it while the door is open, which is what is checked.
                assert_eq!(their_base.with(|base| unsafe { *base }), 5, "no window");
            }
            theirs.leave();
        });
        // SAFETY: nobody is let in yet, which is what is checked.
        base.with_mut(|base| unsafe { *base = 5 });
        door.open(7);
        verb.join().unwrap();
    });
}

#[test]
fn a_verb_is_inside_only_while_its_window_stands() {
    let test = "a_verb_is_inside_only_while_its_window_stands";
    let lines = weakened::lines(test, DOOR, || {
        verb_beside_a_revoke();
        verb_beside_an_open();
    });
    lines.assert_needed(&[
        "self.generation.store(generation, Ordering::SeqCst);",
        "self.guards.fetch_sub(1, Ordering::SeqCst);",
        "self.generation.load(Ordering::SeqCst)",
    ]);
}
