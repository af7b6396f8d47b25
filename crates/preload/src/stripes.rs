//! How the pages of a range are divided between fault handlers: in stripes that go round.
//!
//! Each of N handlers has a **shard**: every N-th stripe. Inside it pages are counted without gaps,
//! in the order of their addresses, so pages in a row are, for each shard, pages in a row. Stripes
//! are few, since the kernel keeps a mapping for each.

use core::ops::Range;

/// Most shards: each has a thread, and a worker of the volume.
pub const SHARDS_MAX: usize = 8;

/// Most stripes of a range. Arbitrary: enough that a large array of a larger range is in many; few
/// beside the 65,530 mappings that a process may have, and quickly copied by a fork.
const STRIPES_MAX: usize = 512;

/// Least pages of a stripe, where there are so many: 1 MiB, four runs of the longest prefetch.
const STRIPE_MIN: usize = 256;

/// A range of pages, and its shards.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stripes {
    page_count: usize,
    shard_count: usize,
    /// Pages of each stripe but the last, which may have fewer.
    stripe: usize,
}

impl Stripes {
    /// `page_count` pages for `shard_count` shards, some of which may have none.
    ///
    /// # Panics
    /// If there is no shard.
    #[must_use]
    pub fn new(page_count: usize, shard_count: usize) -> Self {
        let least = STRIPE_MIN.min(page_count.div_ceil(shard_count));
        let stripe = match shard_count {
            1 => page_count,
            _ => page_count.div_ceil(STRIPES_MAX).max(least),
        };
        Self::of(page_count, shard_count, stripe)
    }

    /// With stripes of so many pages.
    ///
    /// # Panics
    /// If there is no shard.
    #[must_use]
    pub fn of(page_count: usize, shard_count: usize, stripe: usize) -> Self {
        assert!(shard_count > 0);
        Self {
            page_count,
            shard_count,
            stripe: stripe.max(1),
        }
    }

    /// Shards that there are.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.shard_count
    }

    /// Pages of the range.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.page_count
    }

    /// Pages of a shard.
    #[must_use]
    pub fn len(&self, shard: usize) -> usize {
        self.below(shard, self.page_count)
    }

    /// Which shard has a page, and which of its pages that is.
    #[must_use]
    pub fn find(&self, page: usize) -> (usize, usize) {
        let shard = page / self.stripe % self.shard_count;
        (shard, self.below(shard, page))
    }

    /// Where a shard's page is in the range.
    #[must_use]
    pub fn page(&self, shard: usize, local: usize) -> usize {
        let round = local / self.stripe;
        (round * self.shard_count + shard) * self.stripe + local % self.stripe
    }

    /// The part of some pages that is a shard's, in its own numbers.
    #[must_use]
    pub fn part(&self, shard: usize, pages: Range<usize>) -> Range<usize> {
        self.below(shard, pages.start)..self.below(shard, pages.end)
    }

    /// A shard's stripes, as ranges of pages.
    pub fn stripes(self, shard: usize) -> impl Iterator<Item = Range<usize>> {
        let step = self.stripe * self.shard_count;
        let starts = (shard * self.stripe..self.page_count).step_by(step);
        starts.map(move |start| start..(start + self.stripe).min(self.page_count))
    }

    /// Pages of a shard before a page of the range.
    fn below(&self, shard: usize, page: usize) -> usize {
        let page = page.min(self.page_count);
        let (whole, rest) = (page / self.stripe, page % self.stripe);
        let before = (whole + self.shard_count - 1 - shard) / self.shard_count * self.stripe;
        match whole % self.shard_count == shard {
            true => before + rest,
            false => before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Page by page: which shard it goes to, counted by hand.
    fn by_hand(page_count: usize, shard_count: usize, stripe: usize) -> Vec<(usize, usize)> {
        let mut lens = vec![0; shard_count];
        let (mut shard, mut left) = (0, stripe);
        (0..page_count)
            .map(|_| {
                if left == 0 {
                    (shard, left) = ((shard + 1) % shard_count, stripe);
                }
                left -= 1;
                lens[shard] += 1;
                (shard, lens[shard] - 1)
            })
            .collect()
    }

    #[test]
    fn every_page_is_in_one_shard_in_the_order_of_addresses() {
        for (pages, shards, stripe) in [(1, 1, 1), (40, 3, 4), (41, 2, 8), (7, 8, 1), (30, 4, 100)]
        {
            let stripes = Stripes::of(pages, shards, stripe);
            let wanted = by_hand(pages, shards, stripe);
            for (page, place) in wanted.iter().enumerate() {
                assert_eq!(stripes.find(page), *place, "{page} of {stripes:?}");
                assert_eq!(stripes.page(place.0, place.1), page, "{stripes:?}");
            }
            for shard in 0..shards {
                let of_shard = |range: Range<usize>| {
                    let pages = wanted[range].iter();
                    pages.filter(|place| place.0 == shard).count()
                };
                assert_eq!(stripes.len(shard), of_shard(0..pages), "{stripes:?}");
                let in_stripes: Vec<usize> = stripes.stripes(shard).flatten().collect();
                let own = (0..pages).filter(|page| wanted[*page].0 == shard);
                assert_eq!(in_stripes, own.collect::<Vec<_>>(), "{stripes:?}");
                for start in 0..=pages {
                    for end in start..=pages {
                        let part = stripes.part(shard, start..end);
                        assert_eq!(part.start, of_shard(0..start), "{stripes:?}");
                        assert_eq!(part.len(), of_shard(start..end), "{stripes:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn shards_are_alike_and_stripes_are_few() {
        for pages in [64, 2_000, 65_536, 100_000_007] {
            for shards in 1..=SHARDS_MAX {
                let stripes = Stripes::new(pages, shards);
                let lens = (0..shards).map(|shard| stripes.len(shard));
                assert_eq!(lens.clone().sum::<usize>(), pages);
                let count: usize = (0..shards)
                    .map(|shard| stripes.stripes(shard).count())
                    .sum();
                assert!(count <= STRIPES_MAX, "{stripes:?}");
                if pages >= 65_536 {
                    let (least, most) = (lens.clone().min(), lens.max());
                    let (least, most) = (least.unwrap_or(0), most.unwrap_or(0));
                    assert!(most - least <= least / 14, "{stripes:?}: {least}, {most}");
                }
            }
        }
        assert_eq!(Stripes::new(0, 4).len(3), 0);
    }
}
