//! How long things took: the latest of what the control thread does, and the spread of what
//! workers do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use cenote_latency::{Counts, Histogram, HistogramValues, Latency};
use serde::Serialize;

/// What is timed.
#[derive(Debug, Default)]
pub struct Timings {
    /// From the first request for a slab until the extent's slabs are in use.
    pub map: Timing,
    /// From EVICT until DONE, of slabs that are dropped.
    pub evict: Timing,
    /// From the request for a slab to rebuild or to copy into until it is granted.
    pub place: Timing,
    /// From there until it is read like any other.
    pub fill: Timing,
    /// From there until nobody uses the slab that it replaces.
    pub leave: Timing,
    /// Reads of a page, one of a few.
    pub read: Histogram,
    /// Writes of a page, one of a few.
    pub write: Histogram,
    /// How long writes waited for a chunk that was being rebuilt.
    pub fence: Histogram,
}

/// The latest durations of one thing. One thread notes.
#[derive(Debug)]
pub struct Timing {
    nanos: [AtomicU64; LATEST],
    count: AtomicU64,
}

/// Durations kept.
const LATEST: usize = 256;

/// Of the latest 256.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TimingValues {
    /// So far.
    pub count: u64,
    /// Median, in microseconds.
    pub median_us: f64,
    /// Longest, in microseconds.
    pub max_us: f64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            nanos: [const { AtomicU64::new(0) }; LATEST],
            count: AtomicU64::new(0),
        }
    }
}

impl Timing {
    pub fn note(&self, took: Duration) {
        let count = self.count.load(Ordering::Relaxed);
        let slot = &self.nanos[count as usize % LATEST];
        slot.store(
            u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
        self.count.store(count + 1, Ordering::Release);
    }

    pub fn values(&self) -> TimingValues {
        let count = self.count.load(Ordering::Acquire);
        let kept = (count as usize).min(LATEST);
        let mut nanos: Vec<u64> = self.nanos[..kept]
            .iter()
            .map(|nanos| nanos.load(Ordering::Relaxed))
            .collect();
        nanos.sort_unstable();
        let micros = |at: usize| nanos.get(at).map_or(0.0, |&nanos| nanos as f64 / 1e3);
        TimingValues {
            count,
            median_us: micros(kept / 2),
            max_us: micros(kept.saturating_sub(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_the_latest() {
        let timing = Timing::default();
        assert_eq!(timing.values().median_us, 0.0);
        for micros in 0..300 {
            timing.note(Duration::from_micros(micros));
        }
        let values = timing.values();
        assert_eq!((values.count, values.max_us), (300, 299.0));
        assert_eq!(values.median_us, 172.0, "of 44 to 299");
    }
}
