//! The fence around a chunk that is rebuilt, and the gate in it.
//!
//! Writes wait before a fence. Where it has a gate a write goes through, at the cost of the chunk: what
//! was rebuilt of it is void, and it is fenced, drained and filled again. Whoever rebuilds closes the gate
//! when the chunk is filled; only when nobody went through before is the chunk part of the slab.
//!
//! States of a gate: `OPEN -> PASSED` (a write went through) or `OPEN -> CLOSED` (the chunk counts). It
//! is decided once: either the rebuilder sees the write, or the write waits for the next epoch, in which
//! the chunk's pages are written to the new slab as well.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// Pages of an extent in which writes wait; by default none.
#[derive(Clone, Debug, Default)]
pub struct Fence {
    pages: Range<u32>,
    /// `None`: nobody goes through.
    gate: Option<Arc<Gate>>,
}

impl Fence {
    /// One without a gate.
    pub fn around(pages: Range<u32>) -> Self {
        Self { pages, gate: None }
    }

    pub fn with_gate(pages: Range<u32>, gate: Arc<Gate>) -> Self {
        Self {
            pages,
            gate: Some(gate),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    pub fn contains(&self, page: u32) -> bool {
        self.pages.contains(&page)
    }

    /// Whether a write that has waited so long goes on inside, in the epoch that it has entered.
    pub fn lets_in(&self, waited: Duration) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.pass(waited))
    }
}

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

    fn pass(&self, waited: Duration) -> bool {
        waited >= self.patience && self.decide(PASSED) == PASSED
    }

    /// Lets nobody in any more; whether nobody went through before.
    pub fn close(&self) -> bool {
        self.decide(CLOSED) == CLOSED
    }

    /// Whether a write went through.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_counts_unless_a_write_went_through_before() {
        let passed = Gate::new(Duration::ZERO);
        let closed = Gate::new(Duration::ZERO);
        assert!(passed.pass(Duration::ZERO) && passed.was_passed());
        assert!(!passed.close(), "void");
        assert!(passed.pass(Duration::ZERO), "as void as before");
        assert!(closed.close() && !closed.was_passed());
        assert!(!closed.pass(Duration::MAX), "for the next epoch");
        assert!(closed.close(), "nothing else was decided");
    }

    #[test]
    fn a_write_waits_as_long_as_the_gate_says() {
        let gate = Arc::new(Gate::new(Duration::from_micros(500)));
        let fence = Fence::with_gate(4..8, Arc::clone(&gate));
        assert!(fence.contains(4) && !fence.contains(8));
        assert!(!fence.lets_in(Duration::from_micros(499)));
        assert!(!gate.was_passed());
        assert!(fence.lets_in(Duration::from_micros(500)));
        assert!(gate.was_passed());
    }

    #[test]
    fn a_fence_without_a_gate_lets_nobody_in() {
        assert!(Fence::default().is_empty());
        assert!(!Fence::around(0..1).lets_in(Duration::MAX));
    }
}
