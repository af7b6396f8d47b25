//! The door of a window: who comes in under its generation, and waiting until nobody is inside.
//!
//! Who enters counts itself in first and looks at the generation second; who closes changes the generation
//! first and looks at the count second. So either the one sees that it came too late, or the other waits.
//!
//! Every interleaving is tried by `tests/interleavings.rs`, which compiles this file with the model's
//! atomics as `crate::sync`.

use crate::sync::{AtomicU32, AtomicU64, Ordering, yield_now};

/// Closed at first.
pub struct Door {
    /// 0: closed.
    generation: AtomicU64,
    /// Verbs inside.
    guards: AtomicU32,
}

impl Default for Door {
    fn default() -> Self {
        Self {
            generation: AtomicU64::new(0),
            guards: AtomicU32::new(0),
        }
    }
}

impl Door {
    /// Lets in who names this generation. What was stored before is seen by them.
    pub fn open(&self, generation: u64) {
        self.generation.store(generation, Ordering::SeqCst);
    }

    /// Lets nobody in any more, and waits for those inside. What they did is seen from here on.
    pub fn close(&self) {
        self.generation.store(0, Ordering::SeqCst);
        while self.guards.load(Ordering::SeqCst) != 0 {
            yield_now();
        }
    }

    /// Counts in; whether the door is open under this generation. [`Door::leave`] follows in any case.
    #[inline]
    pub fn enter(&self, generation: u64) -> bool {
        self.guards.fetch_add(1, Ordering::SeqCst);
        generation != 0 && self.generation() == generation
    }

    /// Counts out.
    #[inline]
    pub fn leave(&self) {
        self.guards.fetch_sub(1, Ordering::SeqCst);
    }

    /// The generation now; 0: closed.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// How many are inside, for tests.
    #[cfg(test)]
    #[allow(dead_code, reason = "not all that compile this file ask")]
    pub fn inside(&self) -> u32 {
        self.guards.load(Ordering::SeqCst)
    }
}
