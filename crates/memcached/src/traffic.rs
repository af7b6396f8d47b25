//! The numbers of one worker, which only it writes and all threads may read.

use cenote_kv::engine::counters::Counter;
use cenote_kv::group::Counts;
use cenote_kv::memory::classes::{CLASSES, Gauge};

use super::backend::{ClassFigures, Figures};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) bytes_read: Counter,
    pub(super) bytes_written: Counter,
    pub(super) auth_cmds: Counter,
    pub(super) auth_errors: Counter,
    pub(super) conn_yields: Counter,
    pub(super) idle_kicks: Counter,
    items: Counter,
    bytes: Counter,
    resident_bytes: Counter,
    /// Of clients' buffers.
    pub(super) buffer_bytes: Counter,
    /// Of requests of clients that wait here, or for other nodes.
    pub(super) asked_bytes: Counter,
    went: Went,
    pub(super) classes: Published,
}

impl Traffic {
    pub(super) fn set_figures(&self, figures: &Figures) {
        self.items.set(figures.items);
        self.bytes.set(figures.bytes);
        self.resident_bytes.set(figures.resident_bytes);
        self.went.set(&figures.went);
    }

    pub(super) fn figures(&self) -> Figures {
        Figures {
            items: self.items.read(),
            bytes: self.bytes.read(),
            resident_bytes: self.resident_bytes.read(),
            went: self.went.read(),
        }
    }
}

/// Numbers of one worker's items of each class, which only it writes.
#[derive(Debug)]
pub(super) struct Published(Box<[Numbers; CLASSES]>);

impl Default for Published {
    fn default() -> Self {
        Self(Box::new(std::array::from_fn(|_| Numbers::default())))
    }
}

#[derive(Debug, Default)]
struct Numbers {
    items: Counter,
    bytes: Counter,
    went: Went,
}

impl Published {
    pub(super) fn set(&self, class: usize, figures: &ClassFigures) {
        let class = &self.0[class];
        class.items.set(figures.here.items);
        class.bytes.set(figures.here.bytes);
        class.went.set(&figures.went);
    }

    pub(super) fn of(&self, class: usize) -> ClassFigures {
        let class = &self.0[class];
        ClassFigures {
            here: Gauge {
                items: class.items.read(),
                bytes: class.bytes.read(),
            },
            went: class.went.read(),
        }
    }
}

/// Items that went without being asked to.
#[derive(Debug, Default)]
struct Went {
    evictions: Counter,
    evicted_unfetched: Counter,
    reclaimed: Counter,
    expired_unfetched: Counter,
}

impl Went {
    fn set(&self, counts: &Counts) {
        self.evictions.set(counts.evictions);
        self.evicted_unfetched.set(counts.evicted_unfetched);
        self.reclaimed.set(counts.reclaimed);
        self.expired_unfetched.set(counts.expired_unfetched);
    }

    fn read(&self) -> Counts {
        Counts {
            evictions: self.evictions.read(),
            evicted_unfetched: self.evicted_unfetched.read(),
            reclaimed: self.reclaimed.read(),
            expired_unfetched: self.expired_unfetched.read(),
        }
    }
}
