//! What requests came to, counted: the numbers behind `stats`.
//!
//! Each worker has its own and is the only one that adds; any thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::classes::CLASSES;

/// A number that one thread adds to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only the thread that owns the counter may: there is no lock in it.
    pub fn add(&self, number: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(number);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Adds one.
    pub fn count(&self) {
        self.add(1);
    }

    /// Puts a number in its place. Only the thread that owns the counter may.
    pub fn set(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }

    /// What it is now.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    (
        $(#[doc = $title:literal])+ $struct:ident
        $({ $(#[doc = $also:literal])+ $other:ident: $type:ty })?
        $($(#[doc = $text:literal])+ $name:ident,)+
    ) => {
        $(#[doc = $title])+
        #[derive(Debug, Default)]
        pub struct $struct {
            $($(#[doc = $text])+ pub $name: Counter,)+
            $($(#[doc = $also])+ pub $other: $type,)?
        }

        impl $struct {
            /// Every counter's name, in the order in which they are read.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];

            /// All numbers as they are now.
            pub fn read(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$name.read()),+]
            }
        }
    };
}

counters! {
    /// Counters of requests, named as memcached names them.
    Counters
    {
        /// Some of them by class; not among the numbers of [`read`](Self::read).
        classes: ClassesCounters
    }
    /// Retrievals, by key.
    cmd_get,
    /// Requests that store.
    cmd_set,
    /// `flush_all`.
    cmd_flush,
    /// Requests that give an item another expiry time, by key.
    cmd_touch,
    /// `me`, as memcached 1.6.18 counts.
    cmd_meta,
    /// Retrievals that found their item.
    get_hits,
    /// Retrievals that did not.
    get_misses,
    /// Of these, of items whose time had come.
    get_expired,
    /// Of these, of items that were flushed.
    get_flushed,
    /// Deletes of nothing.
    delete_misses,
    /// Deletes of an item.
    delete_hits,
    /// Counts up of nothing.
    incr_misses,
    /// Counts up.
    incr_hits,
    /// Counts down of nothing.
    decr_misses,
    /// Counts down.
    decr_hits,
    /// `cas` of nothing.
    cas_misses,
    /// `cas` with the right number.
    cas_hits,
    /// `cas` with another number.
    cas_badval,
    /// Touches of an item.
    touch_hits,
    /// Touches of nothing.
    touch_misses,
    /// Items refused because they are too large.
    store_too_large,
    /// Items refused because there was no memory.
    store_no_memory,
    /// Items stored.
    total_items,
}

counters! {
    /// Counters of requests for items of one class.
    ClassCounters
    /// Retrievals that found their item.
    get_hits,
    /// Requests that store.
    cmd_set,
    /// Deletes of an item.
    delete_hits,
    /// Counts up.
    incr_hits,
    /// Counts down.
    decr_hits,
    /// `cas` with the right number.
    cas_hits,
    /// `cas` with another number.
    cas_badval,
    /// Touches of an item.
    touch_hits,
    /// Items refused because there was no memory.
    store_no_memory,
}

/// Counters of all classes of items.
#[derive(Debug)]
pub struct ClassesCounters(Box<[ClassCounters; CLASSES]>);

impl Default for ClassesCounters {
    fn default() -> Self {
        Self(Box::new(std::array::from_fn(|_| ClassCounters::default())))
    }
}

impl ClassesCounters {
    /// Those of one class.
    pub fn of(&self, class: usize) -> &ClassCounters {
        &self.0[class]
    }
}
