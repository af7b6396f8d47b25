//! Who has connected to a handler and not said why, and who of them has to go.
//!
//! Nobody is kept out: who comes takes the place of the oldest once all are taken, and one that
//! says nothing goes after a while. Pure: time is passed in.

use std::collections::VecDeque;
use std::time::Duration;

/// Places. Arbitrary: more than the programs that connect at the same moment.
pub const PLACES: usize = 128;

/// How long a program may be silent. It speaks at once, but its machine may be slow; one that was
/// stopped meanwhile connects again.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Shortest time between two reports: a crowd of silent connections fills no log.
const REPORT_PAUSE: Duration = Duration::from_secs(10);

/// See the module.
pub struct Strangers<T> {
    /// Each with its deadline, oldest first.
    waiting: VecDeque<(T, Duration)>,
    /// Who went without a word since the last report.
    silent: u64,
    next_report: Duration,
}

impl<T> Strangers<T> {
    pub const fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            silent: 0,
            next_report: Duration::ZERO,
        }
    }

    /// One comes. Who goes for it, if all places are taken.
    pub fn enter(&mut self, stranger: T, now: Duration) -> Option<T> {
        let is_full = self.waiting.len() == PLACES;
        let displaced = is_full.then(|| self.waiting.pop_front()).flatten();
        self.waiting.push_back((stranger, now + PATIENCE));
        self.silent += u64::from(is_full);
        displaced.map(|(stranger, _)| stranger)
    }

    /// Takes those out who have said something, each with that.
    pub fn heard<P>(&mut self, mut said: impl FnMut(&T) -> Option<P>) -> Vec<(T, P)> {
        let mut heard = Vec::new();
        for (stranger, deadline) in std::mem::take(&mut self.waiting) {
            match said(&stranger) {
                Some(what) => heard.push((stranger, what)),
                None => self.waiting.push_back((stranger, deadline)),
            }
        }
        heard
    }

    /// Takes one out whose time is over.
    pub fn late(&mut self, now: Duration) -> Option<T> {
        let late = self.waiting.pop_front_if(|(_, deadline)| *deadline <= now);
        self.silent += u64::from(late.is_some());
        late.map(|(stranger, _)| stranger)
    }

    /// How many went without a word, if that is to be told now.
    pub fn report(&mut self, now: Duration) -> Option<u64> {
        if self.silent == 0 || now < self.next_report {
            return None;
        }
        self.next_report = now + REPORT_PAUSE;
        Some(std::mem::take(&mut self.silent))
    }

    /// When the next one is late.
    pub fn deadline(&self) -> Option<Duration> {
        self.waiting.front().map(|(_, deadline)| *deadline)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().map(|(stranger, _)| stranger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    #[test]
    fn the_oldest_goes_for_who_comes_when_all_places_are_taken() {
        let mut strangers = Strangers::new();
        for stranger in 0..PLACES {
            assert_eq!(strangers.enter(stranger, START), None);
        }
        assert_eq!(strangers.enter(PLACES, START), Some(0));
        assert_eq!(strangers.enter(PLACES + 1, START), Some(1));
        assert_eq!(strangers.iter().count(), PLACES);
    }

    #[test]
    fn a_crowd_is_told_of_once_in_a_while() {
        let mut strangers = Strangers::new();
        assert_eq!(strangers.report(START), None);
        for stranger in 0..PLACES + 3 {
            strangers.enter(stranger, START);
        }
        assert_eq!(strangers.report(START), Some(3));
        while strangers.late(START + PATIENCE).is_some() {}
        assert_eq!(strangers.report(START + PATIENCE), None);
        let later = START + REPORT_PAUSE;
        assert_eq!(strangers.report(later), Some(PLACES as u64));
        assert_eq!(strangers.report(later + REPORT_PAUSE), None);
    }

    #[test]
    fn who_says_nothing_goes_in_time_and_who_speaks_does_not() {
        let mut strangers = Strangers::new();
        let second = Duration::from_secs(1);
        for (stranger, now) in [(1, START), (2, START), (3, START + second)] {
            assert_eq!(strangers.enter(stranger, now), None);
        }
        let spoke = strangers.heard(|stranger| (*stranger == 2).then_some("a word"));
        assert_eq!(spoke, [(2, "a word")]);
        assert_eq!(strangers.deadline(), Some(START + PATIENCE));
        let almost = START + PATIENCE - Duration::from_nanos(1);
        assert_eq!(strangers.late(almost), None);
        assert_eq!(strangers.late(START + PATIENCE), Some(1));
        assert_eq!(strangers.late(START + PATIENCE), None);
        assert_eq!(strangers.late(START + PATIENCE + second), Some(3));
        assert_eq!(strangers.deadline(), None);
    }
}
