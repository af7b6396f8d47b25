//! A figure of several runs: the one in the middle, and how far they lie apart. Latencies by their rank.

use serde::Serialize;

/// Median, least and greatest of at least one number. In JSON, too, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MedianRange {
    /// Of an even number of runs the mean of both in the middle.
    pub median: f64,
    /// The least.
    pub low: f64,
    /// The greatest.
    pub high: f64,
}

impl MedianRange {
    /// Of the figures of all runs.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn of(mut figures: Vec<f64>) -> Self {
        assert!(!figures.is_empty(), "no run");
        figures.sort_by(f64::total_cmp);
        Self {
            median: median_of_sorted(&figures),
            low: figures[0],
            high: figures[figures.len() - 1],
        }
    }
}

/// The one in the middle, of an even number the mean of both; NaN of none.
#[must_use]
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

fn median_of_sorted(figures: &[f64]) -> f64 {
    let half = figures.len() / 2;
    match figures.len() % 2 {
        _ if figures.is_empty() => f64::NAN,
        1 => figures[half],
        _ => f64::midpoint(figures[half - 1], figures[half]),
    }
}

/// The least time that `permille` of a thousand do not exceed. `sorted` is not empty.
#[must_use]
pub fn quantile(sorted: &[u64], permille: usize) -> u64 {
    let rank = (sorted.len() * permille).div_ceil(1000).max(1);
    sorted[rank - 1]
}

/// How uneven loads are; infinite where the least is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Imbalance {
    /// The greatest load by the median.
    pub max_to_median: f64,
    /// The greatest by the least.
    pub max_to_min: f64,
    /// The greatest by the mean.
    pub max_to_mean: f64,
}

impl Imbalance {
    /// Of the loads of all machines.
    ///
    /// # Panics
    /// If there is no machine.
    #[must_use]
    pub fn of(mut loads: Vec<f64>) -> Self {
        assert!(!loads.is_empty(), "no machine");
        loads.sort_by(f64::total_cmp);
        let greatest = loads[loads.len() - 1];
        Self {
            max_to_median: greatest / median_of_sorted(&loads),
            max_to_min: greatest / loads[0],
            max_to_mean: greatest * loads.len() as f64 / loads.iter().sum::<f64>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let odd = MedianRange::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.low, odd.high), (2.0, 1.0, 3.0));
        assert_eq!(MedianRange::of(vec![1.0, 9.0, 2.0, 4.0]).median, 3.0);
        assert_eq!(MedianRange::of(vec![7.0]).high, 7.0);
        assert_eq!(median([3.0, 1.0, 2.0, 9.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn a_quantile_is_the_nearest_rank() {
        let times: Vec<u64> = (1..=1000).collect();
        assert_eq!(quantile(&times, 500), 500);
        assert_eq!(quantile(&times, 999), 999);
        assert_eq!(quantile(&[7], 999), 7);
        assert_eq!(quantile(&[1, 2, 3], 500), 2);
    }

    #[test]
    fn imbalance_is_of_the_greatest_load() {
        let uneven = Imbalance::of(vec![1.0, 8.0, 4.0, 2.0, 5.0]);
        assert_eq!(uneven.max_to_median, 2.0);
        assert_eq!(uneven.max_to_min, 8.0);
        assert_eq!(uneven.max_to_mean, 2.0);
        assert_eq!(Imbalance::of(vec![3.0; 4]).max_to_mean, 1.0);
        assert_eq!(Imbalance::of(vec![0.0, 3.0]).max_to_min, f64::INFINITY);
    }
}
