//! Whether to move to cheaper machines.

use std::time::Duration;

use super::Price;

/// Other machines that would do what a cache's machines do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    /// What the cache's machines cost now.
    pub current: Price,
    /// What the others cost.
    pub offered: Price,
    /// How long the cache is expected to go on using them. Not longer than a spot machine is expected to
    /// be left to it.
    pub remaining: Duration,
    /// How long the move takes. Both are paid for meanwhile.
    pub copying: Duration,
    /// What it costs besides, once: slower requests meanwhile, in millionths of the currency.
    pub disturbance_micros: u64,
}

/// Least share of the current price by which the other has to be lower: prices that wander by less move
/// nothing. Arbitrary.
const LOWER_BY_PERCENT: u128 = 5;
/// What is saved has to be so many times what the move costs, since how long a cache goes on is a guess.
const PAYS_TIMES: u128 = 2;

impl Move {
    /// Whether what is saved until the end is well above what the move costs. Never true for
    /// the way there and the way back at the same prices.
    #[must_use]
    pub fn is_worth_it(&self) -> bool {
        let (current, offered) = (
            u128::from(self.current.micros()),
            u128::from(self.offered.micros()),
        );
        if offered * 100 > current * (100 - LOWER_BY_PERCENT) || offered >= current {
            return false;
        }
        // In micros * nanoseconds / hour, so that nothing is rounded. What remains after the copying is saved;
        // the copying costs the new machines besides the old ones.
        let saved_for = self.remaining.saturating_sub(self.copying).as_nanos();
        let saved = (current - offered).saturating_mul(saved_for);
        let copying = offered.saturating_mul(self.copying.as_nanos());
        let disturbance = u128::from(self.disturbance_micros).saturating_mul(HOUR.as_nanos());
        saved
            > copying
                .saturating_add(disturbance)
                .saturating_mul(PAYS_TIMES)
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offer(current: u64, offered: u64) -> Move {
        Move {
            current: Price::from_micros(current),
            offered: Price::from_micros(offered),
            remaining: HOUR,
            copying: Duration::from_secs(60),
            disturbance_micros: 0,
        }
    }

    #[test]
    fn a_move_has_to_pay_for_itself_twice() {
        assert!(offer(1_000_000, 500_000).is_worth_it());
        // A minute of the new machines at 0.95 is 0.0158; 0.05 is saved for 59 minutes: 0.0492.
        assert!(offer(1_000_000, 950_000).is_worth_it());
        assert!(
            !offer(1_000_000, 950_001).is_worth_it(),
            "less than 5 % lower"
        );
        let costly = |disturbance_micros| Move {
            disturbance_micros,
            ..offer(1_000_000, 500_000)
        };
        // Saved: 0.5 * 59 / 60 = 0.491667; copied for: 0.5 / 60 = 0.008333; half of it less that: 0.2375.
        assert!(costly(237_499).is_worth_it());
        assert!(!costly(237_501).is_worth_it());
        let short = Move {
            remaining: Duration::from_secs(60),
            ..offer(1_000_000, 1)
        };
        assert!(!short.is_worth_it(), "over before the copy is");
        let free = Move {
            copying: Duration::ZERO,
            ..offer(0, 0)
        };
        assert!(!free.is_worth_it(), "nothing is saved");
    }

    proptest! {
        #[test]
        fn nothing_moves_there_and_back(
            one in 0_u64..2_000_000, other in 0_u64..2_000_000,
            remaining_s in 0_u64..10_000_000, copying_s in 0_u64..10_000,
        ) {
            let there = |current, offered| Move {
                remaining: Duration::from_secs(remaining_s),
                copying: Duration::from_secs(copying_s),
                ..offer(current, offered)
            };
            prop_assert!(!(there(one, other).is_worth_it() && there(other, one).is_worth_it()));
        }

        /// Prices of two machines that wander by up to 2 % move a cache once at most.
        #[test]
        fn wandering_prices_move_a_cache_once_at_most(
            base in 1_000_u64..2_000_000,
            dearer_percent in 100_u64..120,
            wander in proptest::collection::vec((980_u64..1020, 980_u64..1020), 1..50),
        ) {
            let (mut on_first, mut moves) = (true, 0);
            for (first, second) in wander {
                let (first, second) = (base * dearer_percent * first / 1000, base * 100 * second / 1000);
                let (current, offered) = if on_first { (first, second) } else { (second, first) };
                if (Move { copying: Duration::ZERO, ..offer(current, offered) }).is_worth_it() {
                    on_first = !on_first;
                    moves += 1;
                }
            }
            prop_assert!(moves <= 1, "{moves}");
        }

        #[test]
        fn extremes_are_no_panic(
            current: u64, offered: u64, disturbance_micros: u64, copying_s: u64, is_long: bool,
        ) {
            let extreme = Move {
                remaining: if is_long { Duration::MAX } else { Duration::ZERO },
                copying: Duration::from_secs(copying_s),
                disturbance_micros,
                ..offer(current, offered)
            };
            prop_assert!(is_long || !extreme.is_worth_it());
        }
    }
}
