//! Which units of an address space are there.

use super::message::{RUN_UNITS_MAX, Run, UNIT_BYTES};
use std::ops::Range;

/// A set of units that only grows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Units {
    /// A bit per unit, 64 to a word: a word is an aligned run.
    words: Vec<u64>,
    missing: u64,
    /// Where the first word that is not full may be, and none is before.
    low: usize,
    total: u64,
}

const _: () = assert!(RUN_UNITS_MAX == u64::BITS);

impl Units {
    /// None of the units of an address space.
    pub fn none(region_bytes: u64) -> Self {
        let total = region_bytes.div_ceil(UNIT_BYTES);
        let words = usize::try_from(total.div_ceil(64)).expect("an address space fits memory");
        let mut units = Self {
            words: vec![0; words],
            missing: total,
            low: 0,
            total,
        };
        // Bits behind the end count as there, so that a word is full or is not.
        if !total.is_multiple_of(64) {
            units.words[words - 1] = u64::MAX << (total % 64);
        }
        units
    }

    /// Units that there are not.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Units of the address space.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether all are there.
    pub fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// Whether one is there.
    pub fn has(&self, unit: u64) -> bool {
        self.words[(unit / 64) as usize] >> (unit % 64) & 1 == 1
    }

    /// Adds one, and says whether it is new.
    pub fn add(&mut self, unit: u64) -> bool {
        let word = &mut self.words[(unit / 64) as usize];
        let bit = 1 << (unit % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        // Not `missing -= u64::from(is_new)`: inlined where its result is tested, rustc 1.95 leaves
        // the subtraction out of a release build (rust-lang/rust#158206).
        if is_new {
            self.missing -= 1;
        }
        is_new
    }

    /// Adds all of a run.
    pub fn add_all(&mut self, run: &Run) {
        (run.first..run.first + u64::from(run.units)).for_each(|unit| {
            self.add(unit);
        });
    }

    /// How many units of a run are there.
    pub fn count(&self, run: &Run) -> u32 {
        let units = run.first..run.first + u64::from(run.units);
        u32::try_from(units.filter(|unit| self.has(*unit)).count()).expect("a run is short")
    }

    /// The aligned run around the first unit of some addresses that is not there, without units that are
    /// there at its ends.
    pub fn missing_in(&self, addresses: &Range<u64>) -> Option<Run> {
        if self.is_whole() || addresses.is_empty() {
            return None;
        }
        let mut units = addresses.start / UNIT_BYTES..addresses.end.div_ceil(UNIT_BYTES);
        let unit = units.find(|unit| !self.has(*unit))?;
        Some(self.run_around(usize::try_from(unit / 64).expect("a word in memory")))
    }

    /// The first run at or after a place that is not there at all or in part; from the start again
    /// where there is none.
    pub fn next_missing(&mut self, after: u64) -> Option<Run> {
        if self.is_whole() {
            return None;
        }
        while self.words[self.low] == u64::MAX {
            self.low += 1;
        }
        let after = usize::try_from(after / 64).unwrap_or(0).max(self.low);
        let mut words = (after..self.words.len()).chain(self.low..after);
        let word = words.find(|word| self.words[*word] != u64::MAX)?;
        Some(self.run_around(word))
    }

    fn run_around(&self, word: usize) -> Run {
        let missing = !self.words[word];
        let first = missing.trailing_zeros();
        let units = 64 - missing.leading_zeros() - first;
        Run {
            first: word as u64 * 64 + u64::from(first),
            units,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_what_is_missing_and_no_more() {
        let mut units = Units::none(100 * UNIT_BYTES - 5);
        assert_eq!(units.total(), 100);
        assert_eq!(
            units.next_missing(0),
            Some(Run {
                first: 0,
                units: 64
            })
        );
        assert_eq!(
            units.next_missing(64),
            Some(Run {
                first: 64,
                units: 36
            })
        );
        for unit in 0..64 {
            assert!(units.add(unit));
            assert!(!units.add(unit));
        }
        assert!(units.add(99) && units.add(64));
        assert_eq!(units.missing_in(&(0..UNIT_BYTES)), None);
        let around = Some(Run {
            first: 65,
            units: 34,
        });
        assert_eq!(
            units.missing_in(&(63 * UNIT_BYTES..66 * UNIT_BYTES)),
            around
        );
        assert_eq!(units.next_missing(0), around);
        for unit in 65..99 {
            units.add(unit);
        }
        assert!(units.is_whole());
        assert_eq!(units.next_missing(7), None);
    }

    proptest::proptest! {
        #[test]
        fn a_set_of_any_length_is_filled_in_any_order(
            total in 1_u64..400,
            seed in proptest::prelude::any::<u64>(),
            asked in 0_u64..500,
        ) {
            let mut units = Units::none(total * UNIT_BYTES);
            let mut rest: Vec<u64> = (0..total).collect();
            let mut random = seed;
            while !rest.is_empty() {
                let run = units.next_missing(asked).expect("some are missing");
                let wanted = run.first..run.first + u64::from(run.units);
                proptest::prop_assert!(wanted.end <= total && rest.iter().any(|unit| wanted.contains(unit)));
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let unit = rest.swap_remove(usize::try_from(random >> 33).unwrap() % rest.len());
                proptest::prop_assert!(units.add(unit));
                proptest::prop_assert_eq!(units.missing(), rest.len() as u64);
            }
            proptest::prop_assert_eq!(units.next_missing(asked), None);
        }
    }
}
