//! Which key comes next, and whether it is read. The peers' programs draw in the same way
//! (scripts/peers/load.h).

use cenote_measure::random::{Random, mix};
use cenote_measure::zipf::Zipf;

use super::Mix;

/// One request of the load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Request {
    /// Read this key.
    Read(u64),
    /// Set it.
    Upsert(u64),
}

/// A load without an end; the same seed gives the same.
#[derive(Clone, Debug)]
pub(super) struct Load {
    keys: u64,
    /// How often keys of a rank come; `None`: each key as often, and all requests are reads.
    ranks: Option<Zipf>,
    random: Random,
}

impl Load {
    /// On keys 0 to `keys`, exclusive; takes time in proportion to `keys` where they are not alike.
    pub(super) fn new(keys: u64, mix: Mix, seed: u64) -> Self {
        Self {
            keys,
            ranks: (mix == Mix::Zipf).then(|| Zipf::new(keys)),
            random: Random::new(seed),
        }
    }

    /// The next request.
    #[inline]
    pub(super) fn next_request(&mut self) -> Request {
        let Some(ranks) = &self.ranks else {
            return Request::Read(scale(self.random.next(), self.keys));
        };
        let is_read = self.random.next() >> 63 == 0;
        // Ranks are spread over all keys: neighbours in rank are none in the log.
        let key = scale(mix(ranks.rank(self.random.unit())), self.keys);
        if is_read {
            Request::Read(key)
        } else {
            Request::Upsert(key)
        }
    }
}

/// A number below `count`, from 64 random bits.
fn scale(random: u64, count: u64) -> u64 {
    ((u128::from(random) * u128::from(count)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each key came in 200,000 requests, the most frequent first, and how many were
    /// reads.
    fn counts(mix: Mix) -> (Vec<u32>, u32) {
        let mut load = Load::new(1000, mix, 7);
        let (mut counts, mut reads) = (vec![0; 1000], 0);
        for _ in 0..200_000 {
            let request = load.next_request();
            reads += u32::from(matches!(request, Request::Read(_)));
            let (Request::Read(key) | Request::Upsert(key)) = request;
            counts[key as usize] += 1;
        }
        counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        (counts, reads)
    }

    #[test]
    fn the_first_ranks_come_as_often_as_the_law_says_and_half_of_all_is_read() {
        let zeta: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        let (counts, reads) = counts(Mix::Zipf);
        for (count, rank) in counts.into_iter().zip([1, 2]) {
            let expected = 200_000.0 * f64::from(rank).powf(-0.99) / zeta;
            // Two ranks may share a key once ranks are spread.
            let shares = f64::from(count) / expected;
            assert!(shares > 0.95 && shares < 1.5, "{shares} of rank {rank}");
        }
        assert!((99_000..101_000).contains(&reads), "{reads}");
    }

    #[test]
    fn a_uniform_choice_has_no_favourite_and_reads_alone() {
        let (counts, reads) = counts(Mix::Uniform);
        assert!(counts[0] < 300, "{}", counts[0]);
        assert_eq!(reads, 200_000);
    }
}
