//! What a worker tells others of itself: how full it is, what it does, and how long that takes.

use cenote_kv::engine::Partition as _;

use super::Core;
use crate::backend::Backend;
use crate::clock::now_ns;
use crate::times::Timed;
use crate::watch::{EVICTIONS, FETCHERS, MUTATIONS, evicted, line_of};

impl<B: Backend> Core<B> {
    /// Tells all how full this worker's partitions are.
    pub(crate) fn show_figures(&mut self) {
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

    /// Tells who watches what the last request did, and counts it.
    pub(crate) fn note_events(&mut self, key: &[u8], connection: impl FnOnce() -> i32) {
        if !self.engine.is_watched() {
            return;
        }
        let events = self.engine.take_events();
        if events.is_empty() {
            return;
        }
        for event in &events {
            self.shared.details.count(event, key);
        }
        // Whose request it was is only asked where somebody is told.
        if !self.shared.watchers.want(FETCHERS | MUTATIONS) {
            return;
        }
        let connection = connection();
        for event in &events {
            if let Some((kind, line)) = line_of(event, key, connection) {
                self.shared.watched(kind, || line);
            }
        }
    }

    /// What is kept for who watches, from this turn on; tells them what made room.
    pub(crate) fn look_for_watchers(&mut self) {
        let watchers = &self.shared.watchers;
        let is_watched = watchers.want(FETCHERS | MUTATIONS) || self.shared.details.is_on();
        self.engine.set_watched(is_watched);
        let sees_evictions = watchers.want(EVICTIONS);
        for index in 0..self.backend.partition_count() {
            if !self.backend.is_here(index) {
                continue;
            }
            let partition = self.backend.partition(index);
            for (key, item) in partition.take_evicted(sees_evictions) {
                let line = || evicted(&key, &item, self.now);
                self.shared.watched(EVICTIONS, line);
            }
        }
    }

    /// Answers have come, all at this moment.
    pub(crate) fn look_at_clock(&mut self) {
        self.stopwatch.look(now_ns());
    }

    /// One that was waited for is there.
    pub(crate) fn note_answer(&self, timed: Option<Timed>) {
        if let Some(timed) = timed {
            let times = &self.shared.workers[self.index].times;
            self.stopwatch.note(times, timed);
        }
    }

    /// A client's turn is over.
    pub(crate) fn end_turn(&mut self) {
        let times = &self.shared.workers[self.index].times;
        self.stopwatch.end_turn(times, now_ns());
    }
}
