//! How long requests may wait, by the time in which somebody polls.
//!
//! A program that does something else for a minute comes back to requests that nobody went on with: they
//! have not waited in vain. Of the time between two polls no more than [`COUNTED_MAX`] counts.

use std::time::Duration;

use cenote_fabric::Time;

/// Longer than any who goes on with requests lets pass between two polls.
const COUNTED_MAX: Duration = Duration::from_secs(1);

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    limit: Duration,
    polled_at: Option<Time>,
    uncounted: Duration,
}

impl Patience {
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            polled_at: None,
            uncounted: Duration::ZERO,
        }
    }

    /// Somebody polls.
    pub fn note_poll(&mut self, now: Time) {
        self.uncounted += self.pause(now);
        self.polled_at = self.polled_at.max(Some(now));
    }

    /// The time that counts: what began at such a time is compared with a later one.
    pub fn counted(&self, now: Time) -> Time {
        // A request may begin in a pause, before the poll that notes how long the pause was.
        let uncounted = self.uncounted + self.pause(now);
        let uncounted = u64::try_from(uncounted.as_nanos()).unwrap_or(u64::MAX);
        Time(now.0.saturating_sub(uncounted))
    }

    /// What does not count of the time since the last poll.
    fn pause(&self, now: Time) -> Duration {
        let Some(before) = self.polled_at else {
            return Duration::ZERO;
        };
        now.since(before).saturating_sub(COUNTED_MAX)
    }

    /// Whether what began at a time that counts has waited for too long.
    pub fn is_over(&self, now: Time, began: Time) -> bool {
        self.counted(now).since(began) >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nobody_polls_does_not_count() {
        let at = |ms: u64| Time(0).after(Duration::from_millis(5000 + ms));
        let mut patience = Patience::new(Duration::from_secs(3));
        patience.note_poll(at(0));
        let began = patience.counted(at(100));
        // Away for ten minutes, and back.
        patience.note_poll(at(600_000));
        assert!(!patience.is_over(at(600_000), began), "one second counts");
        patience.note_poll(at(600_900));
        patience.note_poll(at(601_800));
        assert!(!patience.is_over(at(601_800), began));
        patience.note_poll(at(602_700));
        assert!(patience.is_over(at(602_700), began));
    }

    #[test]
    fn what_begins_after_time_in_which_nobody_polled_waits_as_long_as_any_other() {
        let at = |ms: u64| Time(0).after(Duration::from_millis(ms));
        let mut patience = Patience::new(Duration::from_secs(3));
        patience.note_poll(at(0));
        let began = patience.counted(at(600_000));
        for polled in [600_001, 600_901, 601_801, 602_701] {
            patience.note_poll(at(polled));
            assert!(!patience.is_over(at(polled), began), "{polled}");
        }
        patience.note_poll(at(603_601));
        assert!(patience.is_over(at(603_601), began));
    }
}
