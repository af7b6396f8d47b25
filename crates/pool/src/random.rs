//! Random numbers from a seed: the same seed gives the same decisions on every machine, in a daemon
//! and in a simulator alike.

/// A sequence of numbers (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Random(u64);

/// What one number of a sequence is ahead of the one before.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// The sequence that `seed` names.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, of all 64-bit numbers.
    pub fn number(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// From 0 to 1, exclusive.
    pub fn unit(&mut self) -> f64 {
        // As many bits as a number of 64 bits has before its exponent.
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number below `bound`. Biased by less than `bound` in 2^64.
    ///
    /// # Panics
    /// `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "no number is below 0");
        let wide = u128::from(self.number()) * bound as u128;
        usize::try_from(wide >> 64).expect("below a usize")
    }

    /// From `low` to `high`, with even odds for each factor.
    pub fn between_by_factor(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }
}

/// A permutation of the 64-bit numbers whose output bits all depend on all input bits
/// (the finaliser of `SplitMix64`).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(STEP);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator_and_spread_below_a_bound() {
        // First outputs of SplitMix64 for the seed 1234567, as its author lists them.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.number(), 6_457_827_717_110_365_317);
        assert_eq!(random.number(), 3_203_168_211_198_807_973);
        let mut times = [0_u32; 7];
        for _ in 0..7000 {
            times[random.below(7)] += 1;
        }
        // 1000 each in the mean, with a deviation of 29.
        assert!(times.iter().all(|n| (850..1150).contains(n)), "{times:?}");
    }
}
