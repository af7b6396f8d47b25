//! Pauses between tries that come to nothing.
//!
//! Each is up to twice as long as the one before, up to a bound, and drawn between half of that and all of it: many
//! that lost the same thing at once do not come back at once. Pure: whoever uses it knows the time.

use std::time::Duration;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    least: Duration,
    most: Duration,
    /// The longest that the next one may be.
    next: Duration,
    random: u64,
}

impl Backoff {
    /// Pauses of half of `least` to `most`, drawn from a seed that others do not have.
    pub(super) fn new(least: Duration, most: Duration, seed: u64) -> Self {
        Self {
            least,
            most,
            next: least,
            // Of nothing nothing is drawn.
            random: seed | 1,
        }
    }

    /// How long to wait after one more failure.
    pub(super) fn pause(&mut self) -> Duration {
        let longest = self.next;
        self.next = (longest * 2).min(self.most);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = u32::try_from(self.random >> 32).expect("32 bits");
        longest / 2 + longest.mul_f64(f64::from(share) / f64::from(u32::MAX) / 2.0)
    }

    /// It has worked: the next pause is the shortest again.
    pub(super) fn reset(&mut self) {
        self.next = self.least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(50);
    const MOST: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_to_a_bound_and_begin_again_after_a_success() {
        let mut backoff = Backoff::new(LEAST, MOST, 7);
        let mut longest = LEAST;
        for _ in 0..20 {
            let pause = backoff.pause();
            assert!(
                pause >= longest / 2 && pause <= longest,
                "{pause:?} of {longest:?}"
            );
            longest = (longest * 2).min(MOST);
        }
        assert_eq!(longest, MOST);
        backoff.reset();
        assert!(backoff.pause() <= LEAST);
    }

    #[test]
    fn two_that_fail_together_do_not_come_back_together() {
        let [mut one, mut other] = [1, 2].map(|seed| Backoff::new(LEAST, MOST, seed << 40));
        let pauses =
            |backoff: &mut Backoff| -> Vec<Duration> { (0..10).map(|_| backoff.pause()).collect() };
        assert_ne!(pauses(&mut one), pauses(&mut other));
    }
}
