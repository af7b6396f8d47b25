//! How durations are histogram: a histogram that many threads add to and one reads.
//!
//! Buckets are an eighth of an octave wide, so a quantile is right within 12%. Adding is one
//! relaxed increment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// Buckets per octave.
const STEPS: usize = 8;
/// Octaves of nanoseconds: up to 18 minutes. What is longer counts as that.
const OCTAVES: usize = 40;
const BUCKETS: usize = STEPS * OCTAVES;

/// Durations since it was made.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// How many were in each bucket at one moment, or between two.
#[derive(Clone, Debug)]
pub struct Counts([u64; BUCKETS]);

/// Of all so far.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HistogramValues {
    /// So many.
    pub count: u64,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 took no longer, in microseconds.
    pub p99_us: f64,
    /// Longest, in microseconds.
    pub max_us: f64,
}

/// Of all so far, with what a histogram is made of.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Its quantiles.
    #[serde(flatten)]
    pub values: HistogramValues,
    /// All durations together, in nanoseconds.
    pub sum_ns: u64,
    /// Longest duration that a bucket takes, in nanoseconds, and how many are in it; in order, without
    /// empty ones. An octave has eight buckets.
    pub buckets: Vec<(u64, u64)>,
}

impl Latency {
    /// Of several histograms together: one of each thread, say.
    pub fn of<'a>(histograms: impl IntoIterator<Item = &'a Histogram>) -> Self {
        let mut all = Counts::default();
        let mut sum_ns = 0_u64;
        for histogram in histograms {
            for (sum, bucket) in all.0.iter_mut().zip(&histogram.buckets) {
                *sum += bucket.load(Ordering::Relaxed);
            }
            sum_ns = sum_ns.wrapping_add(histogram.sum_ns.load(Ordering::Relaxed));
        }
        let buckets = all.0.iter().enumerate();
        let buckets = buckets.filter(|(_, count)| **count > 0);
        Self {
            values: all.values(),
            sum_ns,
            buckets: buckets
                .map(|(at, &count)| (upper_ns(at) as u64, count))
                .collect(),
        }
    }

    /// How many took no longer than `limit_ns`: exact where that is a power of two less one.
    #[must_use]
    pub fn within(&self, limit_ns: u64) -> u64 {
        let within = self
            .buckets
            .iter()
            .take_while(|(upper, _)| *upper <= limit_ns);
        within.map(|(_, count)| count).sum()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Histogram {
    /// Adds one.
    pub fn note(&self, took: Duration) {
        self.note_alike(took, 1);
    }

    /// Adds `count` that all took as long: requests that came together, say.
    pub fn note_alike(&self, took: Duration, count: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)].fetch_add(count, Ordering::Relaxed);
        // Wraps around in both cases.
        self.sum_ns
            .fetch_add(nanos.wrapping_mul(count), Ordering::Relaxed);
    }

    /// How many are in each bucket now.
    pub fn counts(&self) -> Counts {
        Counts(std::array::from_fn(|at| {
            self.buckets[at].load(Ordering::Relaxed)
        }))
    }

    /// Its quantiles.
    pub fn values(&self) -> HistogramValues {
        self.counts().values()
    }

    /// All of it.
    pub fn latency(&self) -> Latency {
        Latency::of([self])
    }
}

impl Counts {
    fn values(&self) -> HistogramValues {
        let counts = self;
        let micros = |quantile| counts.quantile(quantile).map_or(0.0, |nanos| nanos / 1e3);
        HistogramValues {
            count: counts.total(),
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            max_us: micros(1.0),
        }
    }

    /// Those that came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|at| {
            self.0[at].wrapping_sub(earlier.0[at])
        }))
    }

    /// How many in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The duration in nanoseconds that this share of all does not pass; `None` of none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let total = self.total();
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (at, &count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Some(upper_ns(at));
            }
        }
        None
    }
}

/// Below `STEPS` each number has its bucket; from there on each octave has `STEPS`.
fn bucket(nanos: u64) -> usize {
    let steps = STEPS as u64;
    if nanos < steps {
        return nanos as usize;
    }
    let octave = nanos.ilog2() as usize;
    let within = (nanos >> (octave - 3)) as usize & (STEPS - 1);
    ((octave - 2) * STEPS + within).min(BUCKETS - 1)
}

/// The largest duration of a bucket.
fn upper_ns(bucket: usize) -> f64 {
    if bucket < STEPS {
        return bucket as f64;
    }
    let (octave, within) = (bucket / STEPS + 2, bucket % STEPS);
    (((STEPS + within + 1) as u64) << (octave - 3)) as f64 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_are_of_what_came_since() {
        let histogram = Histogram::default();
        histogram.note(Duration::from_secs(1));
        let earlier = histogram.counts();
        for micros in 1..=100 {
            histogram.note(Duration::from_micros(micros));
        }
        let since = histogram.counts().since(&earlier);
        assert_eq!(since.total(), 100);
        let within = |quantile, micros: f64| {
            let ratio = since.quantile(quantile).unwrap() / (micros * 1e3);
            assert!((1.0..1.13).contains(&ratio), "{quantile}: {ratio}");
        };
        within(0.5, 50.0);
        within(0.99, 99.0);
        within(1.0, 100.0);
        assert_eq!(Counts::default().quantile(0.5), None);
        assert_eq!(histogram.values().count, 101);
        assert!(histogram.values().max_us > 1e6);
    }

    #[test]
    fn a_histogram_has_all_that_was_noted() {
        let histogram = Histogram::default();
        for micros in [1, 2, 2, 900, 5000] {
            histogram.note(Duration::from_micros(micros));
        }
        let latency = histogram.latency();
        assert_eq!(latency.sum_ns, 5_905_000);
        assert_eq!(latency.values.count, 5);
        // The largest numbers of 10, 11, 20 and 23 bits: 1 us, 2 us, 1 ms and 8.4 ms, about.
        let within = [10, 11, 20, 23].map(|bits| latency.within((1 << bits) - 1));
        assert_eq!(within, [1, 3, 4, 5]);
        assert!(latency.buckets.iter().all(|(_, count)| *count > 0));
    }

    #[test]
    fn threads_together_have_what_each_noted() {
        let (one, other) = (Histogram::default(), Histogram::default());
        one.note_alike(Duration::from_micros(3), 4);
        other.note(Duration::from_micros(3));
        other.note(Duration::from_micros(50));
        let all = Latency::of([&one, &other]);
        assert_eq!((all.values.count, all.sum_ns), (6, 65_000));
        // 4.1 us and 65 us.
        assert_eq!([12, 16].map(|bits| all.within((1 << bits) - 1)), [5, 6]);
        assert_eq!(Latency::of([]).values.count, 0);
    }

    proptest! {
        #[test]
        fn a_bucket_holds_what_falls_into_it(nanos in 0_u64..1 << 38) {
            let at = bucket(nanos);
            prop_assert!(upper_ns(at) >= nanos as f64);
            prop_assert!(upper_ns(at) <= nanos as f64 * 1.125);
            prop_assert!(at == 0 || upper_ns(at - 1) < nanos as f64);
        }
    }
}
