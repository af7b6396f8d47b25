//! Who is inside a window, and until when it lets anybody in.
//!
//! Who enters counts itself in first and looks at the generation second; who closes changes the
//! generation first and looks at the count second. So either the one that enters sees that it came too
//! late, or the one that closes waits for it.
//!
//! Every interleaving is tried by `tests/protocols_loom.rs`, which compiles this file with the model's
//! atomics as `crate::sync`.

use crate::sync::{AtomicU32, AtomicU64, Ordering, yield_now};

/// A window's generation, and how many verbs are inside.
pub struct Entrance {
    /// 0: no window.
    generation: AtomicU64,
    /// Verbs inside.
    guards: AtomicU32,
}

impl Entrance {
    pub fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            guards: AtomicU32::new(0),
        }
    }

    /// The generation that stands; 0: none.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Lets those in who know the generation. What they find was stored before.
    pub fn open(&self, generation: u64) {
        self.generation.store(generation, Ordering::SeqCst);
    }

    /// Counts a verb in, which [`Entrance::leave`]s also if it is refused; whether the generation stands.
    #[inline]
    pub fn enter(&self, generation: u64) -> bool {
        self.guards.fetch_add(1, Ordering::SeqCst);
        generation != 0 && self.generation() == generation
    }

    /// Counts a verb out, after its last access.
    #[inline]
    pub fn leave(&self) {
        self.guards.fetch_sub(1, Ordering::SeqCst);
    }

    /// Verbs inside, and those that are being refused.
    pub fn inside(&self) -> u32 {
        self.guards.load(Ordering::SeqCst)
    }

    /// Lets nobody in any more, and waits for those inside.
    pub fn close(&self) {
        self.generation.store(0, Ordering::SeqCst);
        while self.inside() != 0 {
            yield_now();
        }
    }
}

impl Default for Entrance {
    fn default() -> Self {
        Self::new()
    }
}
