//! The fence around a chunk that is rebuilt. Writes wait before it, or go through its gate ([`Gate`]).

mod gate;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use gate::Gate;

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
