//! The simulation's only source of chance: one small generator, seeded once.
//!
//! xoshiro256++, filled from splitmix64 as its authors advise. Integers only, so that every
//! machine draws the same.

/// A seeded stream of numbers.
#[derive(Clone, Debug)]
pub(super) struct Random([u64; 4]);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let mut state = seed;
        Self([(); 4].map(|()| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mix(state)
        }))
    }

    /// Any number.
    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let drawn = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        drawn
    }

    /// A number below `bound`, which is not 0. Its bias is below `bound` / 2^64.
    #[inline]
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Whether something of this probability happens; draws nothing where it is certain not to.
    #[inline]
    pub(super) fn happens(&mut self, chance_ppm: u32) -> bool {
        chance_ppm > 0 && self.below(1_000_000) < u64::from(chance_ppm)
    }
}

/// Scatters the bits of a number: splitmix64's last step.
#[inline]
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_what_the_published_generators_draw() {
        // splitmix64 of seed 0, from its reference implementation.
        assert_eq!(mix(0x9E37_79B9_7F4A_7C15), 0xE220_A839_7B1D_CDAF);
        // xoshiro256++ of the state 1, 2, 3, 4, from its reference implementation.
        let mut random = Random([1, 2, 3, 4]);
        let drawn = [(); 4].map(|()| random.next());
        assert_eq!(
            drawn,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386
            ]
        );
    }

    #[test]
    fn chances_are_about_what_they_say() {
        let mut random = Random::new(1);
        let hits = (0..100_000).filter(|_| random.happens(250_000)).count();
        assert!((24_000..26_000).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| random.below(7) < 7 && !random.happens(0)));
    }
}
