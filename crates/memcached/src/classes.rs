//! Items of one [class](cenote_kv::memory::classes) at all workers, as `stats` tells them.

use cenote_kv::engine::counters::ClassCounters;
use cenote_kv::group::Counts;
use cenote_kv::memory::classes::Gauge;

use super::backend::ClassFigures;

/// One class at all workers: what is there, what went, and what was counted since the last reset.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) here: Gauge,
    pub(super) went: Counts,
    counted: Vec<u64>,
}

impl Class {
    pub(super) fn new() -> Self {
        Self {
            here: Gauge::default(),
            went: Counts::default(),
            counted: vec![0; ClassCounters::NAMES.len()],
        }
    }

    /// Adds what one worker has of it, and has counted.
    pub(super) fn add(&mut self, figures: &ClassFigures, counters: &ClassCounters) {
        self.here.items += figures.here.items;
        self.here.bytes += figures.here.bytes;
        self.went += figures.went;
        for (total, number) in self.counted.iter_mut().zip(counters.read()) {
            *total += number;
        }
    }

    /// Counts from a reset on, when it was `base`.
    pub(super) fn take_off(&mut self, base: &Self) {
        self.went -= base.went;
        for (number, base) in self.counted.iter_mut().zip(&base.counted) {
            *number = number.saturating_sub(*base);
        }
    }

    pub(super) fn is_used(&self) -> bool {
        self.here.items > 0 || self.went != Counts::default() || self.number("cmd_set") > 0
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        let at = ClassCounters::NAMES.iter().position(|known| *known == name);
        self.counted[at.expect("is one of the names of classes")]
    }
}
