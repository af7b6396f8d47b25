//! How long an owner decides, and how long its cache is kept.

use std::time::Duration;

use cenote_fabric::Time;

use super::region::{Region, Task};
use super::{Life, Owner, Reign};
use crate::injected_faults::{InjectedFault, is_injected};

impl Owner {
    /// A host says that the cache has a later owner: this one decides nothing any more, grants no
    /// lease and records nothing. Clients are told to find the other.
    pub fn handle_superseded(&mut self) {
        if is_injected(InjectedFault::SupersededGoesOn) {
            return;
        }
        self.reign = Reign::Superseded;
        self.actions.clear();
    }

    /// No other owner can begin before `until`, as whoever keeps them apart says: nobody has a
    /// lease from this one after that. The end of time, as at first, where a lock does that.
    pub fn handle_reign(&mut self, until: Time) {
        if !self.is_superseded() && !is_injected(InjectedFault::SupersededGoesOn) {
            self.reign = Reign::Stands { until };
        }
    }

    /// Whether the cache has a later owner.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.reign == Reign::Superseded
    }

    /// Somebody wants the cache for `duration` from now on; `None`: until it is deleted. One that
    /// is over stays so. The time of an owner that is not there does not count.
    pub fn handle_life_renewed(&mut self, now: Time, duration: Option<Duration>) {
        if self.life == Life::Over {
            return;
        }
        let before = self.duration();
        self.life = match duration {
            None => Life::Unbounded,
            Some(duration) => Life::Leased {
                duration,
                until: now.after(duration),
            },
        };
        if self.duration() != before {
            self.push_record();
        }
        self.advance(now);
    }

    /// How long the cache is kept after it was renewed; `None`: until it is deleted.
    #[must_use]
    pub fn duration(&self) -> Option<Duration> {
        match self.life {
            Life::Unbounded => None,
            Life::Leased { duration, .. } => Some(duration),
            Life::Over => Some(Duration::ZERO),
        }
    }

    /// When the cache ends unless it is renewed.
    #[must_use]
    pub fn ends_at(&self) -> Option<Time> {
        match self.life {
            Life::Leased { until, .. } => Some(until),
            Life::Unbounded | Life::Over => None,
        }
    }

    /// Whether the cache has ended, and all its memory that can be reached was given back.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let is_gone = |region: &Region| region.is_cut() && matches!(region.task, Task::None);
        let is_all_back = self.actions.is_empty() && self.idle.is_empty();
        let is_told = is_all_back && self.recording.is_none();
        self.life == Life::Over && is_told && self.regions.iter().all(is_gone)
    }

    /// A cache that nobody renewed in time gives everything back.
    pub(super) fn end_life(&mut self, now: Time) {
        if let Life::Leased { until, .. } = self.life
            && now >= until
        {
            self.life = Life::Over;
            self.resize(0);
            self.push_record();
        }
    }
}
