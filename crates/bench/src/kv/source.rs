//! Which request is next: every item once, or YCSB's mixes over popular and unpopular items.

use cenote_measure::random::Random;
use cenote_measure::zipf::Scrambled;

use super::tally::Kind;

/// Shares of reads and writes, in per cent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mix {
    /// GETs of 100 requests; the others are SETs.
    pub get_percent: u8,
}

impl Mix {
    /// Reads and writes alike: YCSB's workload A.
    pub const HALF: Self = Self { get_percent: 50 };
    /// Mostly reads: B.
    pub const MOSTLY_READS: Self = Self { get_percent: 95 };
    /// Only reads: C.
    pub const READS: Self = Self { get_percent: 100 };

    /// As in a row.
    #[must_use]
    pub fn label(self) -> String {
        format!("{}:{}", self.get_percent, 100 - self.get_percent)
    }
}

/// Requests of one thread.
pub(crate) enum Source<'a> {
    /// Every `step`-th item once: a SET of version 0, or a GET.
    Each {
        kind: Kind,
        next: u32,
        step: u32,
        end: u32,
    },
    /// For ever.
    Mixed {
        mix: Mix,
        popularity: &'a Scrambled,
        random: Box<Random>,
    },
    /// No more.
    Spent,
}

impl Source<'_> {
    pub(crate) fn next(&mut self) -> Option<(Kind, u32)> {
        match self {
            Self::Each {
                kind,
                next,
                step,
                end,
            } => {
                let (kind, item) = (*kind, *next);
                if item >= *end {
                    return None;
                }
                *next = item.saturating_add(*step);
                Some((kind, item))
            }
            Self::Mixed {
                mix,
                popularity,
                random,
            } => {
                let item = popularity.item(random.unit());
                let kind = if random.below(100) < u64::from(mix.get_percent) {
                    Kind::Get
                } else {
                    Kind::Set
                };
                Some((kind, u32::try_from(item).expect("a u32 counts the items")))
            }
            Self::Spent => None,
        }
    }

    pub(crate) fn is_spent(&self) -> bool {
        match self {
            Self::Each { next, end, .. } => next >= end,
            Self::Mixed { .. } => false,
            Self::Spent => true,
        }
    }

    /// Whether what it writes is version 0, outside the book.
    pub(crate) fn is_filling(&self) -> bool {
        matches!(self, Self::Each { .. })
    }

    pub(crate) fn end(&mut self) {
        *self = Self::Spent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_all_items_out() {
        let mut seen: Vec<u32> = (0..3)
            .flat_map(|next| {
                let mut source = Source::Each {
                    kind: Kind::Set,
                    next,
                    step: 3,
                    end: 10,
                };
                std::iter::from_fn(move || source.next()).map(|(_, item)| item)
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn a_mix_has_its_share_of_reads() {
        let popularity = Scrambled::new(1000);
        for (mix, least, most) in [
            (Mix::HALF, 4800, 5200),
            (Mix::MOSTLY_READS, 9400, 9600),
            (Mix::READS, 10_000, 10_000),
        ] {
            let mut source = Source::Mixed {
                mix,
                popularity: &popularity,
                random: Box::new(Random::new(3)),
            };
            let drawn = std::iter::from_fn(|| source.next()).take(10_000);
            let gets = drawn.filter(|(kind, _)| *kind == Kind::Get).count();
            assert!((least..=most).contains(&gets), "{}: {gets}", mix.label());
        }
    }
}
