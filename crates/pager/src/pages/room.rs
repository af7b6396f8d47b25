//! Room for pages to come: which go, and when.
//!
//! A dirty page goes once it is written. While the store refuses writes, or none ends for as long,
//! what is read does not wait for them: clean pages make room for it.

use std::time::Duration;

use super::{BATCH_MAX, Pages, State, WRITES_MAX};
use crate::injected_faults::{InjectedFault, is_injected};

/// Pause after a write that failed; and when no write has ended for as long, they are stuck. A volume
/// without space tries again by itself, and says nothing meanwhile.
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How long the only clean page stays at least. Arbitrary: some time slices.
const TOUCHED_WITHIN: Duration = Duration::from_millis(10);

impl Pages {
    /// [`Pages::look`] or [`Pages::retry_lost`] is due within this time: something waits for
    /// another try.
    #[must_use]
    pub fn deadline(&self, now: Duration) -> Option<Duration> {
        let lost = self.lost.deadline().filter(|at| *at > now);
        let due = [self.room_deadline(now), lost.map(|at| at - now)];
        due.into_iter().flatten().min()
    }

    /// [`Pages::tick`], unless what it would try waits for a while. To be called at each turn of a
    /// handler.
    pub fn look(&mut self, now: Duration) {
        if self.room_deadline(now).is_none() {
            self.tick(now);
        }
    }

    fn room_deadline(&self, now: Duration) -> Option<Duration> {
        let is_behind = self.free() < self.spare() && !self.queues.is_empty();
        let retry = is_behind.then_some(self.retry_at);
        let is_held_up = self.free() == 0 && self.is_awaited() && self.clean > 0;
        let clean = (is_held_up && self.writes() > 0)
            .then(|| self.droppable_at().max(self.progress_at + RETRY_AFTER));
        let due = [retry, clean].into_iter().flatten().filter(|at| *at > now);
        due.min().map(|at| at - now)
    }

    /// When a clean page may make room for another, while nothing can be written. The only one stays
    /// until its thread has had the time to touch it: else two threads that need two pages could
    /// take the place from each other for ever.
    fn droppable_at(&self) -> Duration {
        match self.clean {
            1 => self.arrived_at + TOUCHED_WITHIN,
            _ => Duration::ZERO,
        }
    }

    /// Whether writes are under way that do not end.
    fn is_stuck(&self, now: Duration) -> bool {
        self.writes() > 0 && now >= self.progress_at + RETRY_AFTER
    }

    pub(super) fn make_room(&mut self, now: Duration) {
        let is_refused = now < self.retry_at;
        if is_refused || self.is_stuck(now) {
            self.drop_clean(now);
        }
        // Several at once, or none. Pages that are being written will be free.
        let least = self.spare() - (self.spare() / 4).min(BATCH_MAX);
        if is_refused || self.free() + self.writing >= least + self.over() {
            return;
        }
        while self.free() + self.writing < self.spare() + self.over() && self.writes() < WRITES_MAX
        {
            let Some(page) = self.queues.choose() else {
                return;
            };
            match self.pages[page as usize].state {
                State::Clean => self.go(page),
                State::Dirty if is_injected(InjectedFault::DirtyDropped) => self.go(page),
                State::Dirty => self.clean(page, now),
                state => unreachable!("page {page} is queued while it is {state:?}"),
            }
        }
    }

    /// While nothing can be written, lets clean pages go for what somebody waits for, and no more.
    fn drop_clean(&mut self, now: Duration) {
        while self.over() > 0 || self.free() == 0 && self.is_awaited() {
            if now < self.droppable_at() {
                return;
            }
            let Some(page) = self.choose_clean() else {
                return;
            };
            self.go(page);
        }
    }

    /// Takes a clean page out of its queue, if there is one. Dirty ones that are passed over go to the
    /// other end, so that the next search does not see them again.
    fn choose_clean(&mut self) -> Option<u32> {
        if self.clean == 0 {
            return None;
        }
        for _ in 0..self.queues.len() {
            let page = self.queues.take_oldest()?;
            if self.pages[page as usize].state == State::Clean {
                return Some(page);
            }
            self.queues.stay(page);
        }
        None
    }

    /// Pages that may become resident now.
    pub(super) fn free(&self) -> u32 {
        self.room.saturating_sub(self.resident)
    }

    /// Pages by which the room is exceeded, after it became less.
    fn over(&self) -> u32 {
        self.resident.saturating_sub(self.room)
    }

    /// Pages that are kept free for faults to come.
    pub(super) fn spare(&self) -> u32 {
        let absent = self.pages.len() as u32 - self.resident;
        (self.room / 16).clamp(2, 256).min(absent)
    }
}
