//! A program that touches pages: what is measured over a region and over swap alike.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cenote_measure::random::Random;
use hdrhistogram::Histogram;

use crate::beside;

/// In which order pages are touched.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pattern {
    /// Any page, all equally often.
    Random,
    /// One after the other, round and round.
    Sequential,
    /// Every seventh.
    Strided,
    /// Sequential, with every fourth touch at random.
    Mixed,
}

impl Pattern {
    pub(crate) const ALL: [Self; 4] = [Self::Random, Self::Sequential, Self::Strided, Self::Mixed];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
            Self::Strided => "strided",
            Self::Mixed => "mixed",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.label() == text)
    }
}

/// What a measurement came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Touched {
    /// Pages touched per second, by all threads.
    pub(crate) pages_per_s: f64,
    /// Touches that took longer than [`FAULT`], of all.
    pub(crate) fault_share: f64,
    /// Half of these took longer.
    pub(crate) fault_us_p50: f64,
    /// One of a hundred of these did.
    pub(crate) fault_us_p99: f64,
    /// As the three before, of touches that took longer than [`WAIT`].
    pub(crate) wait_share: f64,
    pub(crate) wait_us_p50: f64,
    pub(crate) wait_us_p99: f64,
}

/// A touch that takes longer was no access of memory. A tenth of the fastest fault here.
const FAULT: Duration = Duration::from_nanos(800);

/// A touch that takes longer waited for a device: a page that the kernel has read ahead takes a
/// third of it, and no page comes back from a device so soon.
const WAIT: Duration = Duration::from_micros(5);

/// Longer ones count as this: a minute.
const FAULT_NS_MAX: u64 = 60_000_000_000;

/// Writes each page's own number into it.
pub(crate) fn fill(bytes: &mut [u8]) {
    for (index, page) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
        page.fill(index as u8 | 1);
        page[..8].copy_from_slice(&(index as u64).to_le_bytes());
    }
}

/// Touches pages for a while, with so many threads.
///
/// # Errors
/// When a page is not as it was written.
pub(crate) fn touch(
    bytes: &[u8],
    pattern: Pattern,
    threads: usize,
    seconds: f64,
) -> anyhow::Result<Touched> {
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(seconds);
    let run = |thread| part(bytes, pattern, thread, threads, until);
    let parts = beside::all(0..threads, run);
    let elapsed = began.elapsed().as_secs_f64();
    let mut all = Part::new();
    for one in parts {
        let one = one?;
        all.touches += one.touches;
        all.faults.add(&one.faults).context("add up faults")?;
        all.waits.add(&one.waits).context("add up waits")?;
    }
    let share = |of: &Histogram<u64>| of.len() as f64 / all.touches.max(1) as f64;
    let us = |of: &Histogram<u64>, quantile| of.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Touched {
        pages_per_s: all.touches as f64 / elapsed,
        fault_share: share(&all.faults),
        fault_us_p50: us(&all.faults, 0.5),
        fault_us_p99: us(&all.faults, 0.99),
        wait_share: share(&all.waits),
        wait_us_p50: us(&all.waits, 0.5),
        wait_us_p99: us(&all.waits, 0.99),
    })
}

struct Part {
    touches: u64,
    /// In ns.
    faults: Histogram<u64>,
    /// Those of the faults that waited, in ns.
    waits: Histogram<u64>,
}

impl Part {
    fn new() -> Self {
        let times = || Histogram::new_with_bounds(1, FAULT_NS_MAX, 3).expect("bounds in order");
        Self {
            touches: 0,
            faults: times(),
            waits: times(),
        }
    }
}

fn part(
    bytes: &[u8],
    pattern: Pattern,
    thread: usize,
    threads: usize,
    until: Instant,
) -> anyhow::Result<Part> {
    let pages = bytes.len() / PAGE_BYTES;
    let mut random = Random::new(thread as u64 + 1);
    let mut at = pages * thread / threads;
    let mut part = Part::new();
    let mut before = Instant::now();
    // One at least, also by a thread that got no processor in the time.
    while before < until || part.touches == 0 {
        let mut any = || (random.next() % pages as u64) as usize;
        let index = match pattern {
            Pattern::Random => any(),
            Pattern::Mixed if part.touches % 4 == 3 => any(),
            Pattern::Sequential | Pattern::Strided | Pattern::Mixed => at,
        };
        let word = &bytes[index * PAGE_BYTES..][..8];
        let seen = u64::from_le_bytes(word.try_into().expect("8 bytes"));
        let after = Instant::now();
        ensure!(seen == index as u64, "page {index} has the number {seen}");
        let took = after - before;
        for (least, times) in [(FAULT, &mut part.faults), (WAIT, &mut part.waits)] {
            if took > least {
                times.saturating_record(took.as_nanos() as u64);
            }
        }
        part.touches += 1;
        match pattern {
            Pattern::Random => {}
            Pattern::Strided => at = (at + STRIDE) % pages,
            Pattern::Mixed if index != at => {}
            Pattern::Sequential | Pattern::Mixed => at = (at + 1) % pages,
        }
        before = after;
    }
    Ok(part)
}

const PAGE_BYTES: usize = 4096;
/// Odd, so that a walk comes to all pages of a power of two.
const STRIDE: usize = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_is_found_in_every_order() {
        let mut bytes = vec![0; 64 * PAGE_BYTES];
        fill(&mut bytes);
        for pattern in Pattern::ALL {
            assert_eq!(Pattern::parse(pattern.label()), Some(pattern));
            let touched = touch(&bytes, pattern, 2, 0.01).unwrap();
            assert!(touched.pages_per_s > 0.0);
        }
        assert_eq!(Pattern::parse("other"), None);
    }

    #[test]
    fn a_page_that_is_another_is_an_error() {
        let mut bytes = vec![0; 8 * PAGE_BYTES];
        fill(&mut bytes);
        bytes[5 * PAGE_BYTES] ^= 1;
        let error = touch(&bytes, Pattern::Sequential, 1, 1.0).unwrap_err();
        assert_eq!(error.to_string(), "page 5 has the number 4");
    }
}
