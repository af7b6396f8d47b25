//! How a cache is accessed: threads, batches and messages under way, and which of these there are.
//!
//! Paper: \[redy22\], the configuration (c, s, b, q) and its search space.

use std::cmp::Ordering;
use std::fmt;

/// Most bytes of records in one message; `b` ends where a batch reaches them.
pub const BATCH_BYTES_MAX: u32 = 4096;

/// How a client and its servers work for one cache. Displays as `c=4 s=2 b=16 q=8`.
///
/// Ordered by cost, the cheapest first: server threads are paid for, so they count most; then
/// client threads, then the batch, then what is under way.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Configuration {
    /// Client threads, at least 1. Each has one connection.
    pub c: u32,
    /// Server threads, at most `c`. 0: every request is a one-sided verb, and no server has a thread.
    pub s: u32,
    /// Requests in a message, at least 1; 1 if `s` is 0.
    pub b: u32,
    /// Messages under way on each connection, at least 1.
    pub q: u32,
}

impl Configuration {
    fn cost(self) -> (u32, u32, u32, u32) {
        (self.s, self.c, self.b, self.q)
    }
}

impl Ord for Configuration {
    fn cmp(&self, other: &Self) -> Ordering {
        self.cost().cmp(&other.cost())
    }
}

impl PartialOrd for Configuration {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c={} s={} b={} q={}", self.c, self.s, self.b, self.q)
    }
}

/// The configurations that may be chosen: `s` from 0, the others from 1, up to a limit each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Space {
    c_max: u32,
    s_max: u32,
    b_max: u32,
    q_max: u32,
}

impl Space {
    /// The paper's: 30 threads on either side, 500 requests in a message, 16 messages.
    pub const PAPER: Self = Self {
        c_max: 30,
        s_max: 30,
        b_max: 500,
        q_max: 16,
    };

    /// Limits for client threads, server threads, requests in a message and messages under way.
    ///
    /// # Errors
    /// A limit is out of its range; the error names it.
    pub fn new(c_max: u32, s_max: u32, b_max: u32, q_max: u32) -> Result<Self, SpaceError> {
        let within =
            |name, value, range: std::ops::RangeInclusive<u32>| match range.contains(&value) {
                true => Ok(value),
                false => Err(SpaceError {
                    name,
                    value,
                    least: *range.start(),
                    most: *range.end(),
                }),
            };
        Ok(Self {
            c_max: within("c", c_max, 1..=THREADS_MAX)?,
            // More than there are client threads are never of use.
            s_max: within("s", s_max, 0..=THREADS_MAX)?.min(c_max),
            b_max: within("b", b_max, 1..=BATCH_BYTES_MAX)?,
            q_max: within("q", q_max, 1..=MESSAGES_MAX)?,
        })
    }

    /// The part of the space for records of `record_bytes`: batches end at 4 KiB of records, rounded up to a
    /// whole one.
    #[must_use]
    pub fn for_record(self, record_bytes: u32) -> Self {
        let fitting = BATCH_BYTES_MAX.div_ceil(record_bytes.max(1));
        Self {
            b_max: self.b_max.min(fitting),
            ..self
        }
    }

    /// Most client threads.
    #[must_use]
    pub fn c_max(self) -> u32 {
        self.c_max
    }

    /// Most server threads; never more than there are client threads.
    #[must_use]
    pub fn s_max(self) -> u32 {
        self.s_max
    }

    /// Most requests in a message.
    #[must_use]
    pub fn b_max(self) -> u32 {
        self.b_max
    }

    /// Most messages under way on a connection.
    #[must_use]
    pub fn q_max(self) -> u32 {
        self.q_max
    }

    /// Whether `configuration` may be chosen.
    #[must_use]
    pub fn contains(self, configuration: Configuration) -> bool {
        let Configuration { c, s, b, q } = configuration;
        (1..=self.c_max).contains(&c)
            && s <= self.s_max.min(c)
            && (1..=self.b_max).contains(&b)
            && (s > 0 || b == 1)
            && (1..=self.q_max).contains(&q)
    }

    /// Every configuration, the cheapest first.
    pub fn iter(self) -> impl Iterator<Item = Configuration> {
        (0..=self.s_max()).flat_map(move |s| {
            let b_max = if s == 0 { 1 } else { self.b_max };
            (s.max(1)..=self.c_max).flat_map(move |c| {
                (1..=b_max)
                    .flat_map(move |b| (1..=self.q_max).map(move |q| Configuration { c, s, b, q }))
            })
        })
    }

    /// How many configurations there are.
    #[must_use]
    pub fn count(self) -> u64 {
        let (c, s) = (u64::from(self.c_max), u64::from(self.s_max()));
        let (b, q) = (u64::from(self.b_max), u64::from(self.q_max));
        // With s server threads there are c - s + 1 numbers of client threads.
        let pairs = s * (c + 1) - s * (s + 1) / 2;
        (c + pairs * b) * q
    }
}

/// Most threads on a side.
const THREADS_MAX: u32 = 1024;
/// Most messages under way on a connection.
const MESSAGES_MAX: u32 = 1024;

/// A limit of a [`Space`] is out of its range.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{name} up to {value}: at least {least} and at most {most}")]
pub struct SpaceError {
    name: &'static str,
    value: u32,
    least: u32,
    most: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_papers_space_has_as_many_configurations_as_its_bounds_give() {
        // Pairs with s <= c: 30 with s = 0, where b is 1, and 465 others.
        assert_eq!(Space::PAPER.count(), 30 * 16 + 465 * 500 * 16);
        assert_eq!(Space::PAPER.for_record(16).b_max(), 256);
        assert_eq!(Space::PAPER.for_record(8).b_max(), 500);
        assert_eq!(Space::PAPER.for_record(4095).b_max(), 2);
        assert_eq!(Space::PAPER.for_record(1 << 20).b_max(), 1);
    }

    #[test]
    fn limits_out_of_range_are_refused_by_name() {
        let said = |space: Result<Space, SpaceError>| space.unwrap_err().to_string();
        assert_eq!(
            said(Space::new(0, 0, 1, 1)),
            "c up to 0: at least 1 and at most 1024"
        );
        assert_eq!(
            said(Space::new(1, 0, 4097, 1)),
            "b up to 4097: at least 1 and at most 4096"
        );
        assert!(Space::new(1, 0, 1, 1).is_ok());
        assert_eq!(Space::new(4, 5, 1, 1), Space::new(4, 4, 1, 1));
    }

    proptest! {
        #[test]
        fn a_space_is_listed_in_order_of_cost_without_gaps(
            c in 1_u32..5, s in 0_u32..6, b in 1_u32..5, q in 1_u32..4,
        ) {
            let space = Space::new(c, s, b, q).unwrap();
            let listed: Vec<Configuration> = space.iter().collect();
            prop_assert!(listed.windows(2).all(|two| two[0] < two[1]));
            prop_assert_eq!(listed.len() as u64, space.count());
            let box_of = |most: u32| 0..=most + 1;
            let mut inside = 0;
            for c in box_of(c) {
                for s in box_of(s) {
                    for b in box_of(b) {
                        for q in box_of(q) {
                            inside += u64::from(space.contains(Configuration { c, s, b, q }));
                        }
                    }
                }
            }
            prop_assert_eq!(inside, space.count());
        }
    }
}
