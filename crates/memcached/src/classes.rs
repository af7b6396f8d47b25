//! Items by their [classes](cenote_kv::memory::classes): what each worker has and counts, and what is told of all.

use cenote_kv::engine::counters::{ClassCounters, Counter};
use cenote_kv::group::Counts;
use cenote_kv::memory::classes::{CLASSES, Gauge};

use super::backend::{Backend, ClassFigures};
use super::core::Core;
use super::mailboxes::{Shared, locked};

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
    evictions: Counter,
    evicted_unfetched: Counter,
    reclaimed: Counter,
    expired_unfetched: Counter,
}

impl Published {
    pub(super) fn set(&self, class: usize, figures: &ClassFigures) {
        let class = &self.0[class];
        class.items.set(figures.here.items);
        class.bytes.set(figures.here.bytes);
        class.evictions.set(figures.went.evictions);
        class.evicted_unfetched.set(figures.went.evicted_unfetched);
        class.reclaimed.set(figures.went.reclaimed);
        class.expired_unfetched.set(figures.went.expired_unfetched);
    }

    pub(super) fn of(&self, class: usize) -> ClassFigures {
        let class = &self.0[class];
        ClassFigures {
            here: Gauge {
                items: class.items.read(),
                bytes: class.bytes.read(),
            },
            went: Counts {
                evictions: class.evictions.read(),
                evicted_unfetched: class.evicted_unfetched.read(),
                reclaimed: class.reclaimed.read(),
                expired_unfetched: class.expired_unfetched.read(),
            },
        }
    }
}

/// One class at all workers: what is there, what went, and what was counted since the last reset.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) here: Gauge,
    pub(super) went: Counts,
    counted: Vec<u64>,
}

impl Class {
    /// What is told of classes that have items, or had some since the last reset; by their numbers.
    pub(super) fn all(shared: &Shared) -> Vec<(usize, Self)> {
        let bases = locked(&shared.class_baseline);
        let classes = (1..CLASSES).map(|class| {
            let mut all = Self::total(shared, class);
            if let Some(base) = bases.get(class) {
                all.take_off(base);
            }
            (class, all)
        });
        classes.filter(|(_, class)| class.is_used()).collect()
    }

    pub(super) fn total(shared: &Shared, class: usize) -> Self {
        let mut all = Self {
            here: Gauge::default(),
            went: Counts::default(),
            counted: vec![0; ClassCounters::NAMES.len()],
        };
        for worker in &shared.workers {
            let figures = worker.traffic.classes.of(class);
            all.here.items += figures.here.items;
            all.here.bytes += figures.here.bytes;
            all.went += figures.went;
            let numbers = worker.counters.classes.of(class).read();
            for (total, number) in all.counted.iter_mut().zip(numbers) {
                *total += number;
            }
        }
        all
    }

    /// Counts from a reset on, when it was `base`.
    fn take_off(&mut self, base: &Self) {
        self.went -= base.went;
        for (number, base) in self.counted.iter_mut().zip(&base.counted) {
            *number = number.saturating_sub(*base);
        }
    }

    fn is_used(&self) -> bool {
        self.here.items > 0 || self.went != Counts::default() || self.number("cmd_set") > 0
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        let at = ClassCounters::NAMES.iter().position(|known| *known == name);
        self.counted[at.expect("is one of the names of classes")]
    }
}

impl<B: Backend> Core<B> {
    /// Tells all how full this worker's partitions are.
    pub(super) fn show_figures(&mut self) {
        let figures = self.backend.figures();
        self.traffic().set_figures(&figures);
        let mut changed = self.backend.take_changed_classes();
        while changed != 0 {
            let class = changed.trailing_zeros() as usize;
            let figures = self.backend.class(class);
            self.traffic().classes.set(class, &figures);
            changed &= changed - 1;
        }
    }
}
