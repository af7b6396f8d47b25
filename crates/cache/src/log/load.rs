//! Load for a log store: which key comes next, and whether it is read. Pure: seeded, no clock.

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// Each as often.
    Uniform,
    /// Key of rank i as often as i to the power of minus this, from 0 to below 1. YCSB has 0.99.
    Zipf(f64),
}

/// One request of the load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Request {
    /// Read this key.
    Read(u64),
    /// Set it.
    Upsert(u64),
    /// Merge into it.
    Merge(u64),
}

/// A load without an end; the same seed gives the same. A thread has its own.
#[derive(Clone, Debug)]
pub struct Load {
    keys: u64,
    zipf: Option<Zipf>,
    /// Of 2^32 requests so many are reads, and so many reads or upserts.
    reads: u64,
    writes: u64,
    state: u64,
}

/// What Gray's method needs to draw a rank in constant time ("Quickly generating billion-record
/// synthetic databases", SIGMOD 1994; YCSB draws as it does).
#[derive(Clone, Debug)]
struct Zipf {
    theta: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Load {
    /// A load on keys 0 to `keys`, exclusive. Of all requests the shares `reads` and `upserts` are
    /// that, from 0 to 1 together; the rest are merges. A Zipf choice takes time in proportion to `keys`.
    ///
    /// # Panics
    /// There is no key, or a share or exponent is out of its range: the caller's mistake.
    #[must_use]
    pub fn new(keys: u64, choice: Choice, reads: f64, upserts: f64, seed: u64) -> Self {
        assert!(keys > 0 && reads >= 0.0 && upserts >= 0.0 && reads + upserts <= 1.0 + 1e-9);
        let share = |share: f64| (share * (1u64 << 32) as f64) as u64;
        let zipf = match choice {
            Choice::Uniform => None,
            Choice::Zipf(theta) => Some(Zipf::new(keys, theta)),
        };
        Self {
            keys,
            zipf,
            reads: share(reads),
            writes: share(reads + upserts),
            state: seed,
        }
    }

    /// The next request.
    #[inline]
    pub fn next_request(&mut self) -> Request {
        let kind = self.random() >> 32;
        let key = self.next_key();
        if kind < self.reads {
            Request::Read(key)
        } else if kind < self.writes {
            Request::Upsert(key)
        } else {
            Request::Merge(key)
        }
    }

    /// The next key.
    #[inline]
    pub fn next_key(&mut self) -> u64 {
        let random = self.random();
        match &self.zipf {
            None => scale(random, self.keys),
            // Ranks are spread over all keys: neighbours in rank are none in the log.
            Some(zipf) => {
                let rank = zipf.rank((random >> 11) as f64 / (1u64 << 53) as f64, self.keys);
                scale(mix(rank), self.keys)
            }
        }
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }
}

impl Zipf {
    fn new(keys: u64, theta: f64) -> Self {
        assert!((0.0..1.0).contains(&theta));
        let zeta_of = |count: u64| {
            (1..=count)
                .map(|rank| (rank as f64).powf(-theta))
                .sum::<f64>()
        };
        let zeta = zeta_of(keys);
        let eta = if keys < 3 {
            0.0
        } else {
            (1.0 - (2.0 / keys as f64).powf(1.0 - theta)) / (1.0 - zeta_of(2) / zeta)
        };
        Self {
            theta,
            zeta,
            alpha: 1.0 / (1.0 - theta),
            eta,
        }
    }

    /// The rank, from 0, that `random` from 0 to below 1 stands for.
    fn rank(&self, random: f64, keys: u64) -> u64 {
        let share = random * self.zeta;
        if share < 1.0 {
            return 0;
        }
        if share < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(keys - 1);
        }
        let rank = keys as f64 * (self.eta * random - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(keys - 1)
    }
}

/// A number below `count`, from 64 random bits.
fn scale(random: u64, count: u64) -> u64 {
    ((u128::from(random) * u128::from(count)) >> 64) as u64
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// How often each of the most frequent keys comes in so many draws.
    fn counts(choice: Choice, draws: u64) -> Vec<u64> {
        let mut load = Load::new(1000, choice, 1.0, 0.0, 7);
        let mut counts = HashMap::new();
        for _ in 0..draws {
            *counts.entry(load.next_key()).or_insert(0) += 1;
        }
        assert!(counts.keys().all(|key| *key < 1000));
        let mut counts: Vec<u64> = counts.into_values().collect();
        counts.sort_by_key(|count| std::cmp::Reverse(*count));
        counts
    }

    #[test]
    fn the_first_ranks_come_as_often_as_the_law_says() {
        let zeta: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        let counts = counts(Choice::Zipf(0.99), 200_000);
        for rank in [1, 2] {
            let expected = 200_000.0 * f64::from(rank).powf(-0.99) / zeta;
            let found = counts[rank as usize - 1] as f64;
            // Two ranks may share a key once ranks are spread.
            assert!(
                found > expected * 0.95 && found < expected * 1.5,
                "{found} {expected}"
            );
        }
    }

    #[test]
    fn a_uniform_choice_has_no_favourite() {
        let counts = counts(Choice::Uniform, 200_000);
        assert!(counts.len() == 1000 && counts[0] < 300, "{}", counts[0]);
    }

    #[test]
    fn requests_come_in_their_shares() {
        let mut load = Load::new(10, Choice::Uniform, 0.5, 0.25, 1);
        let mut counts = [0; 3];
        for _ in 0..40_000 {
            match load.next_request() {
                Request::Read(_) => counts[0] += 1,
                Request::Upsert(_) => counts[1] += 1,
                Request::Merge(_) => counts[2] += 1,
            }
        }
        assert!((19_000..21_000).contains(&counts[0]), "{counts:?}");
        assert!((9_300..10_700).contains(&counts[1]), "{counts:?}");
    }
}
