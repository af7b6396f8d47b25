//! Words drawn from a seed: the same on every machine, so that a run can be repeated.

/// The increment of splitmix64.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Scatters the bits of a number: one step of splitmix64. Memory that is filled with such words does
/// not compress, and no two pages of it are alike.
#[must_use]
pub fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(STEP);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A stream of words.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`; streams of seeds that are near each other are not.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// The next word.
    #[expect(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// From 0 to `bound`, exclusive; `bound` is not 0, and small beside 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// From `low` to `high`, exclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// From 0 to 1, exclusive.
    pub fn unit(&mut self) -> f64 {
        // As many bits as a number of 64 bits has before its exponent.
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True `percent` times of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`, which is not empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let at = self.below(choices.len() as u64);
        &choices[usize::try_from(at).expect("an index")]
    }

    /// Two words.
    pub fn u128(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_splitmix64() {
        // The first of seed 0, from its reference implementation.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(STEP), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn a_seed_gives_its_words_again() {
        let mut one = Random::new(7);
        let mut same = Random::new(7);
        let mut other = Random::new(8);
        let words = |random: &mut Random| -> Vec<u64> { (0..9).map(|_| random.next()).collect() };
        assert_eq!(words(&mut one), words(&mut same));
        assert_ne!(words(&mut one), words(&mut other));
    }

    #[test]
    fn draws_stay_within_what_is_asked() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            assert!(random.below(3) < 3);
            assert!((5..9).contains(&random.between(5, 9)));
            assert!((0.0..1.0).contains(&random.unit()));
            assert!([2, 4].contains(random.pick(&[2, 4])));
        }
        assert!(random.percent(100) && !random.percent(0));
    }
}
