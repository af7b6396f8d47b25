//! Which pages of an arena are used: a bit for each, in memory that somebody else provides.

use core::ops::Range;

/// A set of pages, and a search for room between them.
pub struct Bits<'a> {
    words: &'a mut [u64],
    count: usize,
    /// No page below it is free.
    low: usize,
}

impl<'a> Bits<'a> {
    /// Of `count` pages, with a bit for each in `words`, which is zeros.
    #[must_use]
    pub fn new(words: &'a mut [u64], count: usize) -> Self {
        assert!(words.len() * 64 >= count);
        Self {
            words,
            count,
            low: 0,
        }
    }

    /// Whether a page is used.
    #[must_use]
    pub fn has(&self, page: usize) -> bool {
        self.words[page / 64] >> (page % 64) & 1 == 1
    }

    /// The first `count` free pages in a row, at a multiple of `align` counted from `skew` pages
    /// before page 0.
    pub fn find(&mut self, count: usize, align: usize, skew: usize) -> Option<usize> {
        self.low = self.next(self.low, false).unwrap_or(self.count);
        let mut at = self.low;
        loop {
            at = self.next(at, false)?;
            at = (at + skew).next_multiple_of(align) - skew;
            let end = at.checked_add(count)?;
            if end > self.count {
                return None;
            }
            match self.next(at, true) {
                Some(used) if used < end => at = used + 1,
                _ => return Some(at),
            }
        }
    }

    /// Whether no page of a range is used; `false` beyond the end.
    #[must_use]
    pub fn is_free(&self, pages: Range<usize>) -> bool {
        pages.end <= self.count
            && self
                .next(pages.start, true)
                .is_none_or(|at| at >= pages.end)
    }

    /// Marks pages as used.
    pub fn insert(&mut self, pages: Range<usize>) {
        self.change(pages, |word, mask| word | mask);
    }

    /// Marks pages as free.
    pub fn remove(&mut self, pages: Range<usize>) {
        self.low = self.low.min(pages.start);
        self.change(pages, |word, mask| word & !mask);
    }

    /// The first run of used pages in a range.
    #[must_use]
    pub fn run(&self, pages: Range<usize>) -> Option<Range<usize>> {
        let start = self.next(pages.start, true).filter(|at| *at < pages.end)?;
        let end = self.next(start, false).unwrap_or(self.count);
        Some(start..end.min(pages.end))
    }

    fn change(&mut self, pages: Range<usize>, with: impl Fn(u64, u64) -> u64) {
        let mut at = pages.start;
        while at < pages.end {
            let bit = at % 64;
            let bits = (64 - bit).min(pages.end - at);
            let mask = (u64::MAX >> (64 - bits)) << bit;
            let word = &mut self.words[at / 64];
            *word = with(*word, mask);
            at += bits;
        }
    }

    /// The first page from `at` on that is used, or is not.
    fn next(&self, at: usize, used: bool) -> Option<usize> {
        let mut word_at = at / 64;
        let mut mask = u64::MAX << (at % 64);
        while word_at < self.count.div_ceil(64) {
            let word = self.words[word_at];
            let found = mask & if used { word } else { !word };
            if found != 0 {
                let page = word_at * 64 + found.trailing_zeros() as usize;
                return (page < self.count).then_some(page);
            }
            (word_at, mask) = (word_at + 1, u64::MAX);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_a_list_of_flags() {
        const COUNT: usize = 300;
        let mut words = [0; 5];
        let mut bits = Bits::new(&mut words, COUNT);
        let mut flags = [false; COUNT];
        let mut state = 1_u64;
        let mut below = |limit: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % limit
        };
        for _ in 0..20_000 {
            let (count, align, skew) = (1 + below(90), 1 << below(6), below(7));
            let fits = |at: usize, flags: &[bool]| {
                (at + skew).is_multiple_of(align)
                    && at + count <= COUNT
                    && flags[at..at + count].iter().all(|flag| !flag)
            };
            let wanted = (0..COUNT).find(|at| fits(*at, &flags));
            assert_eq!(bits.find(count, align, skew), wanted);
            if let Some(at) = wanted {
                bits.insert(at..at + count);
                flags[at..at + count].fill(true);
            }
            let start = below(COUNT);
            let end = (start + below(60)).min(COUNT);
            let first = (start..end).find(|at| flags[*at]);
            assert_eq!(bits.run(start..end).map(|run| run.start), first);
            assert_eq!(bits.is_free(start..end), first.is_none());
            bits.remove(start..end);
            flags[start..end].fill(false);
            let page = below(COUNT);
            assert_eq!(bits.has(page), flags[page]);
        }
    }
}
