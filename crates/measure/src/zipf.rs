//! YCSB's Zipf generators: which item is asked for, and how long a value is.
//!
//! A rank is drawn by the method of Gray et al. (SIGMOD 1994) from a uniform number; the
//! *scrambled* generator spreads ranks out of ten thousand million over the items by FNV-1a, so
//! that popular items are neighbours of none. The constants are those of YCSB 0.17.0, so shares
//! of requests are comparable with what others measured. No state: the caller brings chance.

/// YCSB's exponent.
const THETA: f64 = 0.99;
/// Ranks of the scrambled generator, whatever the number of items.
const SCRAMBLED_RANKS: u64 = 10_000_000_000;
/// The sum of `1 / i^THETA` over them, as YCSB has it.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Ranks by Zipf's law, 0 the most popular.
#[derive(Clone, Debug)]
pub struct Zipf {
    ranks: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Of so many ranks; takes a sum over all of them.
    pub fn new(rank_count: u64) -> Self {
        Self::with_zeta(rank_count, zeta(rank_count))
    }

    fn with_zeta(rank_count: u64, sum: f64) -> Self {
        let ranks = rank_count as f64;
        let eta = (1.0 - (2.0 / ranks).powf(1.0 - THETA)) / (1.0 - zeta(2) / sum);
        Self {
            ranks,
            zeta: sum,
            eta,
        }
    }

    /// The rank that a number from 0 up to, but not, 1 stands for.
    #[inline]
    pub fn rank(&self, unit: f64) -> u64 {
        let share = unit * self.zeta;
        if share < 1.0 {
            return 0;
        }
        if share < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        let base = self.eta * unit - self.eta + 1.0;
        let rank = self.ranks * base.powf(1.0 / (1.0 - THETA));
        // The largest numbers below 1 are rounded up to 1.
        rank.min(self.ranks - 1.0) as u64
    }
}

/// Items by Zipf's law, the popular ones scattered over all.
#[derive(Clone, Debug)]
pub struct Scrambled {
    ranks: Zipf,
    item_count: u64,
}

impl Scrambled {
    /// Over at least one item.
    pub fn new(item_count: u64) -> Self {
        assert!(item_count > 0, "an item is drawn of at least one");
        Self {
            ranks: Zipf::with_zeta(SCRAMBLED_RANKS, SCRAMBLED_ZETA),
            item_count,
        }
    }

    /// The item that a number from 0 up to, but not, 1 stands for.
    pub fn item(&self, unit: f64) -> u64 {
        fnv(self.ranks.rank(unit)) % self.item_count
    }
}

fn zeta(count: u64) -> f64 {
    (1..=count).map(|at| (at as f64).powf(-THETA)).sum()
}

/// YCSB's `fnvhash64`: FNV-1a of the eight bytes, and the magnitude of that as a signed number.
fn fnv(number: u64) -> u64 {
    let hash = number
        .to_le_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    hash.cast_signed().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const DRAWS: u32 = 400_000;

    #[test]
    fn the_scrambling_is_ycsbs() {
        // The keys of YCSB's first two records, as its documentation and every table of it shows.
        assert_eq!(fnv(0), 6_284_781_860_667_377_211);
        assert_eq!(fnv(1), 8_517_097_267_634_966_620);
    }

    /// Ranks of 1000 in classes of one to five hundred, beside the law itself.
    #[test]
    fn ranks_follow_zipfs_law() {
        let zipf = Zipf::new(1000);
        let mut random = Random::new(1);
        let mut counts = vec![0_u32; 1000];
        for _ in 0..DRAWS {
            counts[usize::try_from(zipf.rank(random.unit())).unwrap()] += 1;
        }
        let weight = |rank: usize| 1.0 / (rank as f64 + 1.0).powf(0.99);
        let all: f64 = (0..1000).map(weight).sum();
        for (from, to, tolerance) in [
            (0, 1, 0.02),
            (1, 2, 0.02),
            // The method is exact for two ranks and close for the others.
            (2, 10, 0.15),
            (10, 100, 0.05),
            (100, 500, 0.05),
            (500, 1000, 0.05),
        ] {
            let drawn = f64::from(counts[from..to].iter().sum::<u32>()) / f64::from(DRAWS);
            let law = (from..to).map(weight).sum::<f64>() / all;
            let off = (drawn / law - 1.0).abs();
            assert!(off < tolerance, "{from}..{to}: {drawn} for {law}");
        }
    }

    #[test]
    fn the_most_popular_item_has_ycsbs_share_and_every_item_is_drawn() {
        let items = Scrambled::new(100);
        let mut random = Random::new(2);
        let mut counts = vec![0_u32; 100];
        for _ in 0..DRAWS {
            counts[usize::try_from(items.item(random.unit())).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        let first = usize::try_from(fnv(0) % 100).unwrap();
        let most = counts.iter().max().unwrap();
        assert_eq!(counts[first], *most, "rank 0 is the most popular");
        // One of its own of 26.47, and its part of what the many others scatter evenly.
        let share = f64::from(*most) / f64::from(DRAWS);
        assert!((0.037..0.050).contains(&share), "{share}");
    }

    #[test]
    fn every_number_stands_for_a_rank_that_there_is() {
        for count in [2, 3, 1015] {
            let zipf = Zipf::new(count);
            for unit in [0.0, 0.5, 0.999_999, 1.0 - f64::EPSILON] {
                assert!(zipf.rank(unit) < count, "{unit} of {count}");
            }
        }
    }
}
