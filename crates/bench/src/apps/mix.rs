//! The mixes of a memcached: what is stored, how often it is written and how popular it is.
//!
//! Sizes and shares of two are the paper's, which took them from measurements of a large user of
//! memcached (ETC: 5 SETs to 95 GETs, SYS: 25 to 75). What the paper leaves open is chosen here:
//! the tenth of ETC's values beyond 512 bytes has 513 to 4096, a key's value keeps its size, and
//! popularity is Zipf's law with the exponent 1.2, by which the less popular half of some 10^5
//! keys gets 1 to 2% of the requests; that half of ETC's keys gets 1% is in those measurements.
//! Paper: \[infiniswap17\] section 7.2.2.

use cenote_measure::random::{Random, STEP, mix};

/// A kind of load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mix {
    /// Mostly reads of small values.
    Etc,
    /// A quarter writes, larger values.
    Sys,
    /// The demonstration's: a tenth writes, values of 1 to 3 KiB, all as popular. So an operation is about
    /// one page's paging.
    Pages,
}

impl Mix {
    /// Of 100 operations.
    pub(crate) fn set_percent(self) -> u64 {
        match self {
            Self::Etc => 5,
            Self::Sys => 25,
            Self::Pages => 10,
        }
    }

    /// Of Zipf's law; see the module.
    fn exponent(self) -> f64 {
        match self {
            Self::Etc | Self::Sys => EXPONENT,
            Self::Pages => 0.0,
        }
    }

    fn key_len(self, random: &mut Random) -> usize {
        let len = match self {
            Self::Etc | Self::Pages => 16,
            Self::Sys if random.below(100) < 40 => 16 + random.below(5),
            Self::Sys => 20 + random.below(26),
        };
        len as usize
    }

    fn value_len(self, random: &mut Random) -> usize {
        let share = random.below(100);
        let len = match self {
            Self::Etc if share < 90 => 16 + random.below(497),
            Self::Etc => 513 + random.below(3584),
            Self::Sys if share < 80 => 320 + random.below(181),
            Self::Sys if share < 88 => 16 + random.below(304),
            Self::Sys => 501 + random.below(9500),
            Self::Pages => 1024 + random.below(2049),
        };
        len as usize
    }
}

/// Keys and values that follow from a seed: nothing that was stored is kept to check it.
pub(crate) struct Items {
    seed: u64,
    key_lens: Vec<u8>,
    value_lens: Vec<u16>,
    total_bytes: u64,
}

impl Items {
    /// As many items of `mix` as hold `total_bytes` of keys and values together.
    pub(crate) fn new(kind: Mix, seed: u64, total_bytes: u64) -> Self {
        let mut random = Random::new(seed);
        let mut items = Self {
            seed,
            key_lens: Vec::new(),
            value_lens: Vec::new(),
            total_bytes: 0,
        };
        while items.total_bytes < total_bytes {
            let (key, value) = (kind.key_len(&mut random), kind.value_len(&mut random));
            items
                .key_lens
                .push(u8::try_from(key).expect("at most 45 bytes"));
            items
                .value_lens
                .push(u16::try_from(value).expect("at most 10000 bytes"));
            items.total_bytes += (key + value) as u64;
        }
        items
    }

    pub(crate) fn count(&self) -> usize {
        self.key_lens.len()
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Appends the key of an item: its number in hexadecimal digits, after as many `k` as its
    /// length asks for.
    pub(crate) fn push_key(&self, item: usize, out: &mut Vec<u8>) {
        let digits = format!("{item:08x}");
        let len = usize::from(self.key_lens[item]);
        out.resize(out.len() + len - digits.len(), b'k');
        out.extend_from_slice(digits.as_bytes());
    }

    pub(crate) fn value_len(&self, item: usize) -> usize {
        usize::from(self.value_lens[item])
    }

    /// Appends the value that an item has after `writes` writes.
    pub(crate) fn push_value(&self, item: usize, writes: u32, out: &mut Vec<u8>) {
        let end = out.len() + self.value_len(item);
        let mut state = mix(self.seed ^ mix(item as u64) ^ (u64::from(writes) << 40));
        while out.len() < end {
            state = state.wrapping_add(STEP);
            out.extend_from_slice(&mix(state).to_le_bytes());
        }
        out.truncate(end);
    }
}

/// Draws items by Zipf's law, the popular ones scattered over all.
pub(crate) struct Popularity {
    /// Share of the requests that go to this rank or a more popular one.
    cumulative: Vec<f64>,
    item_of_rank: Vec<u32>,
}

impl Popularity {
    /// Over `count` items, at least one.
    pub(crate) fn new(kind: Mix, count: usize, seed: u64) -> Self {
        let exponent = kind.exponent();
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=count)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        for share in &mut cumulative {
            *share /= sum;
        }
        let mut random = Random::new(seed);
        let mut item_of_rank: Vec<u32> = (0..count as u32).collect();
        for end in (1..count).rev() {
            item_of_rank.swap(end, random.below(end as u64 + 1) as usize);
        }
        Self {
            cumulative,
            item_of_rank,
        }
    }

    pub(crate) fn draw(&self, random: &mut Random) -> usize {
        let rank = self.rank(random);
        self.item_of_rank[rank] as usize
    }

    fn rank(&self, random: &mut Random) -> usize {
        let at = random.unit();
        let rank = self.cumulative.partition_point(|share| *share <= at);
        rank.min(self.cumulative.len() - 1)
    }
}

/// See the module.
const EXPONENT: f64 = 1.2;

#[cfg(test)]
mod tests {
    use super::*;

    fn share(items: &Items, of: impl Fn(&Items, usize) -> bool) -> f64 {
        let count = (0..items.count()).filter(|item| of(items, *item)).count();
        count as f64 / items.count() as f64
    }

    fn near(found: f64, stated: f64) {
        assert!((found - stated).abs() < 0.005, "{found}, stated {stated}");
    }

    #[test]
    fn etc_has_the_stated_keys_and_values() {
        let items = Items::new(Mix::Etc, 1, 64 << 20);
        assert!(items.key_lens.iter().all(|len| *len == 16));
        near(share(&items, |one, at| one.value_len(at) <= 512), 0.90);
        // Evenly distributed: half of the 90% in the lower half of the range.
        near(share(&items, |one, at| one.value_len(at) <= 264), 0.4508);
        assert!(items.value_lens.iter().all(|len| (16..=4096).contains(len)));
        assert_eq!(Mix::Etc.set_percent(), 5);
    }

    #[test]
    fn sys_has_the_stated_keys_and_values() {
        let items = Items::new(Mix::Sys, 1, 128 << 20);
        // 40% in 16..=20 and 60% in 20..=45, of which a 26th has 20.
        near(
            share(&items, |one, at| one.key_lens[at] <= 20),
            0.40 + 0.60 / 26.0,
        );
        assert!(items.key_lens.iter().all(|len| (16..=45).contains(len)));
        let within = |low: usize, high: usize| {
            share(&items, |one, at| (low..=high).contains(&one.value_len(at)))
        };
        near(within(320, 500), 0.80);
        near(within(1, 319), 0.08);
        near(within(501, 10_000), 0.12);
        assert_eq!(Mix::Sys.set_percent(), 25);
    }

    #[test]
    fn pages_are_as_popular_as_each_other_and_about_as_long() {
        let items = Items::new(Mix::Pages, 1, 16 << 20);
        assert!(
            items
                .value_lens
                .iter()
                .all(|len| (1024..=3072).contains(len))
        );
        let popularity = Popularity::new(Mix::Pages, 100, 1);
        let mut random = Random::new(2);
        let mut counts = [0_u32; 100];
        for _ in 0..100_000 {
            counts[popularity.draw(&mut random)] += 1;
        }
        assert!(
            counts.iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_seed_gives_the_same_items_again() {
        let exact = |kind| {
            let items = Items::new(kind, 7, 1 << 20);
            (items.count(), items.total_bytes())
        };
        assert_eq!(exact(Mix::Etc), (2122, 1_049_586));
        assert_eq!(exact(Mix::Sys), (1060, 1_049_691));
    }

    #[test]
    fn keys_are_told_apart_and_values_by_their_writes() {
        let items = Items::new(Mix::Sys, 3, 1 << 20);
        let mut keys = std::collections::HashSet::new();
        for item in 0..items.count() {
            let mut key = Vec::new();
            items.push_key(item, &mut key);
            assert!((16..=45).contains(&key.len()));
            assert!(keys.insert(key));
        }
        let value = |item, writes| {
            let mut value = Vec::new();
            items.push_value(item, writes, &mut value);
            value
        };
        assert_eq!(value(5, 2), value(5, 2));
        assert_ne!(value(5, 2), value(5, 3));
        assert_eq!(value(5, 2).len(), items.value_len(5));
    }

    #[test]
    fn the_less_popular_half_gets_a_hundredth_of_the_requests() {
        let popularity = Popularity::new(Mix::Etc, 100_000, 1);
        let mut random = Random::new(2);
        let draws = 400_000;
        let rare = (0..draws)
            .filter(|_| popularity.rank(&mut random) >= 50_000)
            .count();
        let share = rare as f64 / f64::from(draws);
        // By hand: (50000^-0.2 - 100000^-0.2) / (0.2 * zeta(1.2)-ish 5.09) = 0.0146.
        assert!((share - 0.0146).abs() < 0.001, "{share}");
        let mut seen = popularity.item_of_rank.clone();
        seen.sort_unstable();
        assert!(
            seen.iter()
                .enumerate()
                .all(|(at, item)| at == *item as usize)
        );
    }
}
