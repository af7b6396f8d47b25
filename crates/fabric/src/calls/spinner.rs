//! Whether a thread that has nothing to do looks for work or blocks: learned from what looking
//! brought.
//!
//! Looking saves a wake where the peer has a processor of its own, and costs the peer its time where
//! the two share one. Which of these holds changes with whatever else the machine does. So each wait
//! that looking ended makes the next look longer, each that it did not makes it shorter, down to none
//! at all; then one wait in [`PROBE_EVERY`] looks again. Who blocked costs nothing, so an idle thread
//! does not. Pure: time is passed in.

use std::time::Duration;

use crate::Time;

/// The longest that a thread looks for work before it blocks; zero: it blocks at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Spin(pub Duration);

impl Default for Spin {
    /// Longer than it takes to wake a thread on a processor that sleeps.
    fn default() -> Self {
        Self(Duration::from_micros(100))
    }
}

/// One thread's choice. Say [`Spinner::found`] after each look that brought work, and ask
/// [`Spinner::looks_on`] after each that did not.
#[derive(Clone, Debug)]
pub struct Spinner {
    longest: Duration,
    /// For how long the next wait looks.
    budget: Duration,
    waits: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// There was work at the last look.
    Busy,
    /// Nothing was there since; looks until then.
    Looking(Time),
    /// Looked long enough.
    Blocking,
}

impl Spinner {
    /// Looks for as long as `spin` says at most.
    #[must_use]
    pub fn new(spin: Spin) -> Self {
        Self {
            longest: spin.0,
            budget: spin.0,
            waits: 0,
            state: State::Busy,
        }
    }

    /// There was work.
    pub fn found(&mut self) {
        if let State::Looking(_) = self.state {
            let least = self.longest / BUDGET_STEPS;
            self.budget = (self.budget * 2).clamp(least, self.longest);
        }
        self.state = State::Busy;
    }

    /// There was nothing at `now`: whether to look again, or to block.
    pub fn looks_on(&mut self, now: Time) -> bool {
        if self.state == State::Busy {
            self.waits = self.waits.wrapping_add(1);
            let budget = if self.waits.is_multiple_of(PROBE_EVERY) {
                self.longest
            } else {
                self.budget
            };
            self.state = State::Looking(now.after(budget));
        }
        let State::Looking(until) = self.state else {
            return false;
        };
        if now < until {
            return true;
        }
        self.budget /= 2;
        if self.budget < self.longest / BUDGET_STEPS {
            self.budget = Duration::ZERO;
        }
        self.state = State::Blocking;
        false
    }
}

/// One of so many waits looks for the longest time, whatever was learned: rare enough to cost
/// nothing, often enough to find within milliseconds that the peer has a processor again.
const PROBE_EVERY: u32 = 256;
/// Below this part of the longest time looking is not worth a start.
const BUDGET_STEPS: u32 = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONGEST: Duration = Duration::from_micros(100);

    /// Waits of so many microseconds each; microseconds spent looking, and waits that blocked.
    fn wait(spinner: &mut Spinner, now: &mut u64, waits: usize, takes_us: u64) -> (u64, usize) {
        let (mut looked, mut blocked) = (0, 0);
        for _ in 0..waits {
            let over = *now + takes_us;
            while *now < over && spinner.looks_on(Time(*now * 1000)) {
                *now += 1;
                looked += 1;
            }
            blocked += usize::from(*now < over);
            *now = over;
            spinner.found();
        }
        (looked, blocked)
    }

    #[test]
    fn short_waits_are_looked_through() {
        let mut spinner = Spinner::new(Spin(LONGEST));
        assert_eq!(wait(&mut spinner, &mut 0, 1000, 2).1, 0);
    }

    #[test]
    fn where_looking_brings_nothing_it_ends_but_for_probes() {
        let mut spinner = Spinner::new(Spin(LONGEST));
        let mut now = 0;
        wait(&mut spinner, &mut now, 20, 1000);
        let (looked, blocked) = wait(&mut spinner, &mut now, 2560, 1000);
        assert_eq!((looked, blocked), (10 * 100, 2560));
        // And it is taken up again when it brings something.
        wait(&mut spinner, &mut now, 260, 2);
        assert_eq!(wait(&mut spinner, &mut now, 100, 2).1, 0);
    }

    #[test]
    fn without_a_time_to_look_every_wait_blocks() {
        let mut spinner = Spinner::new(Spin(Duration::ZERO));
        assert_eq!(wait(&mut spinner, &mut 0, 1000, 2), (0, 1000));
    }

    proptest! {
        /// Whatever it has learned, one wait is not looked through for longer than was allowed.
        #[test]
        fn a_wait_looks_no_longer_than_allowed(waits in prop::collection::vec(0..1000_u64, 1..600)) {
            let mut spinner = Spinner::new(Spin(LONGEST));
            let mut now = 0;
            for takes_us in waits {
                prop_assert!(wait(&mut spinner, &mut now, 1, takes_us).0 <= 100);
            }
        }
    }
}
