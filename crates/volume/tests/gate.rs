//! The gate between a write and whoever rebuilds its chunk, in every interleaving of the two.
//!
//! The gate is the volume's own file, compiled with the atomics of the model checker. The simulator cannot
//! see what is at stake here: it runs on one thread.

#[path = "../src/fence/gate.rs"]
mod gate;

/// What the gate's file takes its atomics from.
mod sync {
    pub use loom::sync::atomic::{AtomicU8, Ordering};
}

use std::time::Duration;

use gate::Gate;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

/// A page of a chunk that is rebuilt.
struct Page {
    gate: Gate,
    /// An error until it is written whole.
    torn: AtomicBool,
    /// What a write puts into it.
    bytes: AtomicBool,
}

/// A page that somebody writes while a rebuilder, whose sources disagreed, does `give_up` to it. Of every
/// interleaving: a write that was acknowledged is no error, and no rebuilder that decodes saw half of it.
fn check(give_up: fn(&Page)) {
    loom::model(move || {
        let page = Arc::new(Page {
            gate: Gate::new(Duration::ZERO),
            torn: AtomicBool::new(false),
            bytes: AtomicBool::new(false),
        });
        let written = Arc::clone(&page);
        let writer = thread::spawn(move || {
            let is_through = written.gate.pass(Duration::ZERO);
            if is_through {
                written.bytes.store(true, Ordering::Relaxed);
                // Written whole, to every member: acknowledged.
                written.torn.store(false, Ordering::Release);
            }
            is_through
        });
        give_up(&page);
        let is_acknowledged = writer.join().unwrap();
        let is_torn = page.torn.load(Ordering::Acquire);
        assert!(
            !(is_acknowledged && is_torn),
            "an acknowledged write is an error"
        );
        assert!(
            is_acknowledged || is_torn,
            "splits that disagree are decoded: nobody wrote the page"
        );
    });
}

/// What `Control::on_disagreement` does.
fn close_first(page: &Page) {
    if page.gate.close() {
        page.torn.store(true, Ordering::Release);
    }
}

/// What it did once.
fn look_first(page: &Page) {
    if !page.gate.was_passed() {
        page.torn.store(true, Ordering::Release);
    }
}

#[test]
fn a_page_is_given_up_only_where_no_write_went_through() {
    check(close_first);
}

#[test]
#[should_panic(expected = "an acknowledged write is an error")]
fn a_look_at_the_gate_does_not_keep_writes_out() {
    check(look_first);
}

/// The chunk counts only if the rebuilder sees nothing of a write, or the write sees nothing of the chunk.
#[test]
fn a_chunk_that_counts_was_not_written_while_it_was_read() {
    loom::model(|| {
        let gate = Arc::new(Gate::new(Duration::ZERO));
        let bytes = Arc::new(loom::cell::UnsafeCell::new(0));
        let (theirs, their_bytes) = (Arc::clone(&gate), Arc::clone(&bytes));
        let rebuilder = thread::spawn(move || {
            // Reads the chunk only as far as it counts: the checker finds a write beside it.
            if theirs.close() {
                // SAFETY: nobody writes once the gate is closed, which is what is checked.
                assert_eq!(their_bytes.with(|bytes| unsafe { *bytes }), 0);
            }
        });
        if gate.pass(Duration::ZERO) {
            // SAFETY: nobody reads once a write went through, which is what is checked.
            bytes.with_mut(|bytes| unsafe { *bytes = 1 });
        }
        rebuilder.join().unwrap();
    });
}
