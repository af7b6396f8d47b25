//! The gate in a fence: whether a chunk that is rebuilt counts, or a write goes through it.
//!
//! A write that goes through costs the chunk: what was rebuilt of it is void, and it is fenced, drained
//! and filled again. Whoever rebuilds closes the gate when the chunk is filled; only when nobody went
//! through before is the chunk part of the slab. Before a page of it is given up the gate is closed as well:
//! a write that went through made that page whole.
//!
//! States: `OPEN -> PASSED` (a write went through) or `OPEN -> CLOSED` (the chunk counts). It is decided
//! once: either the rebuilder sees the write, or the write waits for the next epoch, in which the chunk's
//! pages are written to the new slab as well.
//!
//! Every interleaving of the two is tried by `tests/gate.rs`, which compiles this file with the model's
//! atomics as `crate::sync`.

use std::time::Duration;

use crate::sync::{AtomicU8, Ordering};

/// What makes a chunk void, or whole.
#[derive(Debug)]
pub struct Gate {
    state: AtomicU8,
    /// Writes that have waited less are not let in.
    patience: Duration,
}

const OPEN: u8 = 0;
const PASSED: u8 = 1;
const CLOSED: u8 = 2;

impl Gate {
    pub fn new(patience: Duration) -> Self {
        Self {
            state: AtomicU8::new(OPEN),
            patience,
        }
    }

    /// Whether a write that has waited so long goes through.
    pub fn pass(&self, waited: Duration) -> bool {
        waited >= self.patience && self.decide(PASSED) == PASSED
    }

    /// Lets nobody in any more; whether nobody went through before.
    pub fn close(&self) -> bool {
        self.decide(CLOSED) == CLOSED
    }

    /// Whether a write went through. One may go through right after: what must not happen beside a write
    /// is done once [`Gate::close`] says so.
    pub fn was_passed(&self) -> bool {
        self.state.load(Ordering::Acquire) == PASSED
    }

    /// What it is for good, which is `state` if nothing was decided before.
    fn decide(&self, state: u8) -> u8 {
        // The rebuilder's reads of the chunk come before its `CLOSED`, a write's verbs after its `PASSED`.
        let decided = self
            .state
            .compare_exchange(OPEN, state, Ordering::AcqRel, Ordering::Acquire);
        decided.map_or_else(|before| before, |_| state)
    }
}
