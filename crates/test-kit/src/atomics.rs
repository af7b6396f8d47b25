//! What files of the product take for `crate::sync` when a model checker runs them: loom's atomics.
//!
//! Loom takes an access that is `SeqCst` for one that is `AcqRel`, and would find what cannot be.
//! Here such an access stands between two fences, which is what a locked instruction of x86 amounts
//! to. A plain `SeqCst` load there is a plain load: but for two loads and two stores of four
//! threads, which nothing here has, the store's fence is what orders it.
//!
//! A test that shows what an ordering is for leaves it out ([`with`]).

#![allow(missing_docs, reason = "they are as those of `std`")]

use std::cell::Cell;

pub use loom::sync::atomic::Ordering;
pub use loom::sync::{Condvar, Mutex, MutexGuard};
pub use loom::thread::yield_now;

/// What a file's mistake is, for as long as a model runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mistake {
    /// None.
    Nothing,
    /// Its fences are not there.
    NoFences,
    /// Its `SeqCst` accesses are `AcqRel`.
    WeakAccesses,
    /// All its accesses are `Relaxed`.
    RelaxedAccesses,
}

thread_local! {
    /// All threads of a model run on the one that began it.
    static MISTAKE: Cell<Mistake> = const { Cell::new(Mistake::Nothing) };
}

/// Runs a model with a mistake in the files that it checks.
pub fn with(mistake: Mistake, model: impl FnOnce()) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            MISTAKE.set(Mistake::Nothing);
        }
    }
    let _reset = Reset;
    MISTAKE.set(mistake);
    model();
}

pub fn fence(order: Ordering) {
    if MISTAKE.get() != Mistake::NoFences {
        loom::sync::atomic::fence(order);
    }
}

fn ordered<T>(order: Ordering, access: impl FnOnce(Ordering) -> T) -> T {
    if MISTAKE.get() == Mistake::RelaxedAccesses {
        return access(Ordering::Relaxed);
    }
    if order != Ordering::SeqCst || MISTAKE.get() == Mistake::WeakAccesses {
        return access(order);
    }
    loom::sync::atomic::fence(Ordering::SeqCst);
    let value = access(order);
    loom::sync::atomic::fence(Ordering::SeqCst);
    value
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug)]
        pub struct $name(loom::sync::atomic::$name);

        impl $name {
            pub fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $value {
                ordered(order, |order| self.0.load(order))
            }

            pub fn store(&self, value: $value, order: Ordering) {
                ordered(order, |order| self.0.store(value, order));
            }

            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                ordered(order, |order| self.0.swap(value, order))
            }

            pub fn compare_exchange(
                &self,
                seen: $value,
                value: $value,
                order: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                ordered(order, |order| {
                    self.0.compare_exchange(seen, value, order, failed)
                })
            }
        }
    };
}

macro_rules! counting {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);

        impl $name {
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                ordered(order, |order| self.0.fetch_add(value, order))
            }

            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                ordered(order, |order| self.0.fetch_sub(value, order))
            }

            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                ordered(order, |order| self.0.fetch_and(value, order))
            }

            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                ordered(order, |order| self.0.fetch_or(value, order))
            }

            pub fn fetch_xor(&self, value: $value, order: Ordering) -> $value {
                ordered(order, |order| self.0.fetch_xor(value, order))
            }

            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                ordered(order, |order| self.0.fetch_max(value, order))
            }
        }
    };
}

counting!(AtomicU8, u8);
counting!(AtomicU32, u32);
counting!(AtomicU64, u64);
counting!(AtomicUsize, usize);
atomic!(AtomicBool, bool);

/// A pointer; what it points to is not the model's.
#[derive(Debug)]
pub struct AtomicPtr<T>(loom::sync::atomic::AtomicPtr<T>);

impl<T> AtomicPtr<T> {
    pub fn new(value: *mut T) -> Self {
        Self(loom::sync::atomic::AtomicPtr::new(value))
    }

    pub fn load(&self, order: Ordering) -> *mut T {
        ordered(order, |order| self.0.load(order))
    }

    pub fn store(&self, value: *mut T, order: Ordering) {
        ordered(order, |order| self.0.store(value, order));
    }
}

/// Every interleaving of two threads, with at most so many switches of one that could have gone on.
///
/// The model hands both to the [`Pair`] that it is given, and is run in either order of the two.
/// Loom remembers one access of each word, the last: where a thread that goes first only looks, and
/// the other looks at the same word before it changes it, loom does not come back to the first
/// look.
pub fn check(preemptions: Option<usize>, model: impl Fn(Pair) + Sync + Send + Copy + 'static) {
    for is_swapped in [false, true] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(move || model(Pair { is_swapped }));
    }
}

/// Runs two threads beside each other.
pub struct Pair {
    is_swapped: bool,
}

impl Pair {
    /// What the two come to.
    pub fn run<A: 'static, B: 'static>(
        self,
        first: impl FnOnce() -> A + 'static,
        second: impl FnOnce() -> B + 'static,
    ) -> (A, B) {
        if self.is_swapped {
            let first = loom::thread::spawn(first);
            let second = second();
            (first.join().unwrap(), second)
        } else {
            let second = loom::thread::spawn(second);
            let first = first();
            (first, second.join().unwrap())
        }
    }
}
