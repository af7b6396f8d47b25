//! Whether a thread that has nothing to do looks for work or blocks: learned from what looking
//! brought.
//!
//! Looking saves a wake where the peer has a processor of its own, and costs the peer its time
//! where the two share one. Which of these holds changes with whatever else the machine does. So a
//! score is kept: a wait that looking ended raises it, one that it did not lowers it twice as much.
//! While there is a score each wait looks for the whole time; without one it blocks at once, and a
//! wait now and then looks all the same. Who blocked costs nothing, so an idle thread does not.
//! Pure: time is passed in.
//!
//! The time to look is whole or none: a shorter one that ends before the peer's usual turn is lost
//! each time, and teaches nothing.

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
    /// At most [`SCORE_MAX`]; waits look while it is above 0.
    score: u32,
    /// Without a score: waits from one that looks to the next, and how many of them are left.
    probe_every: u32,
    probe_in: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// There was work at the last look.
    Busy,
    /// Nothing was there since; looks until then.
    Looking(Time),
    /// Does not look, or did so long enough.
    Blocking,
}

impl Spinner {
    /// Looks for as long as `spin` says at most.
    #[must_use]
    pub fn new(spin: Spin) -> Self {
        Self {
            longest: spin.0,
            score: SCORE_FIRST,
            probe_every: PROBE_EVERY_MIN,
            probe_in: PROBE_EVERY_MIN,
            state: State::Busy,
        }
    }

    /// There was work.
    pub fn found(&mut self) {
        if let State::Looking(_) = self.state {
            self.score = (self.score + 1).min(SCORE_MAX);
            self.probe_every = PROBE_EVERY_MIN;
        }
        self.state = State::Busy;
    }

    /// There was nothing at `now`: whether to look again, or to block.
    pub fn looks_on(&mut self, now: Time) -> bool {
        if self.state == State::Busy {
            self.state = if self.is_look_due() {
                State::Looking(now.after(self.longest))
            } else {
                State::Blocking
            };
        }
        let State::Looking(until) = self.state else {
            return false;
        };
        if now < until {
            return true;
        }
        self.miss();
        self.state = State::Blocking;
        false
    }

    fn is_look_due(&mut self) -> bool {
        if self.score > 0 {
            return true;
        }
        self.probe_in -= 1;
        self.probe_in == 0
    }

    fn miss(&mut self) {
        if self.score == 0 {
            self.probe_every = (self.probe_every * 2).min(PROBE_EVERY_MAX);
        }
        self.score = self.score.saturating_sub(MISS);
        self.probe_in = self.probe_every;
    }
}

/// Looks in vain that a busy thread may have in a row; a pause of its peer is one.
const SCORE_MAX: u32 = 4 * MISS;
const SCORE_FIRST: u32 = 2 * MISS;
/// What a look in vain costs: looking goes on while two of three bring something.
const MISS: u32 = 2;
/// Without a score one of so many waits looks, fewer the longer that brings nothing: often enough
/// to find within milliseconds that the peer has a processor again, rare enough to cost nothing.
const PROBE_EVERY_MIN: u32 = 16;
const PROBE_EVERY_MAX: u32 = 256;

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
        let (looked, blocked) = wait(&mut spinner, &mut now, 1000, 1000);
        // Two that were hoped for, and probes after 16, 32, 64, 128 waits and then each 256.
        assert_eq!((looked, blocked), ((2 + 4 + 2) * 100, 1000));
        let (looked, blocked) = wait(&mut spinner, &mut now, 2560, 1000);
        assert_eq!((looked, blocked), (10 * 100, 2560));
    }

    #[test]
    fn looking_is_taken_up_again_when_it_brings_something_however_long_that_takes() {
        for takes_us in [2, 30, 90] {
            let mut spinner = Spinner::new(Spin(LONGEST));
            let mut now = 0;
            wait(&mut spinner, &mut now, 1000, 1000);
            wait(&mut spinner, &mut now, PROBE_EVERY_MAX as usize, takes_us);
            let blocked = wait(&mut spinner, &mut now, 1000, takes_us).1;
            assert_eq!(blocked, 0, "{takes_us} us");
        }
    }

    #[test]
    fn one_pause_of_the_peer_in_a_hundred_ends_no_look_but_its_own() {
        let mut spinner = Spinner::new(Spin(LONGEST));
        let mut now = 0;
        wait(&mut spinner, &mut now, 10, 60);
        for _ in 0..100 {
            assert_eq!(wait(&mut spinner, &mut now, 1, 2000), (100, 1));
            assert_eq!(wait(&mut spinner, &mut now, 99, 60).1, 0);
        }
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
