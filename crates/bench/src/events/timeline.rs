//! Throughput of a load around the moment at which something happened.
//!
//! Periods are [`PERIOD`] long; the first one counted is [`BEFORE`] before the event.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use cenote_measure::statistics::median;

use super::trouble::Trouble;
use super::{AFTER, BEFORE, DURING, Kind, SETTLE};
use crate::apps::memcached_load::{PERIOD, Stretch};

/// Operations per second in each period around an event.
#[derive(Clone, Debug)]
pub(super) struct Timeline(Vec<f64>);

impl Timeline {
    pub(super) fn of(stretch: &Stretch) -> Self {
        let count = periods(BEFORE + DURING + AFTER);
        let rates = stretch.periods.iter().skip(periods(SETTLE)).take(count);
        Self(
            rates
                .map(|done| *done as f64 / PERIOD.as_secs_f64())
                .collect(),
        )
    }

    /// Operations per second before the event.
    pub(super) fn before(&self) -> f64 {
        mean(&self.0[..periods(BEFORE)])
    }

    /// Operations per second while it lasted.
    pub(super) fn during(&self) -> f64 {
        mean(&self.0[periods(BEFORE)..periods(BEFORE + DURING)])
    }

    /// Per cent of what was before.
    pub(super) fn kept_percent(&self) -> f64 {
        self.during() / self.before() * 100.0
    }

    /// The longest time from the event on in which every period had less than half of what was
    /// before.
    pub(super) fn longest_dip_s(&self) -> f64 {
        let half = self.before() / 2.0;
        let (mut longest, mut now) = (0_u32, 0);
        for rate in &self.0[periods(BEFORE)..] {
            now = if *rate < half { now + 1 } else { 0 };
            longest = longest.max(now);
        }
        (PERIOD * longest).as_secs_f64()
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{:.0} ops/s before, {:.0} during ({:.0}%), longest dip {:.1} s",
            self.before(),
            self.during(),
            self.kept_percent(),
            self.longest_dip_s()
        )
    }
}

/// Leaves a curve and a table of the medians over the rounds.
pub(super) fn draw(
    dir: &Path,
    trouble: Trouble,
    kinds: &[Kind],
    timelines: &[Vec<Timeline>],
) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let count = periods(BEFORE + DURING + AFTER);
    let seconds = |index: usize| index as f64 * PERIOD.as_secs_f64() - BEFORE.as_secs_f64();
    let curves: Vec<Vec<f64>> = timelines
        .iter()
        .map(|rounds| {
            let at = |index: usize| median(rounds.iter().map(|round| round.0[index]));
            (0..count).map(at).collect()
        })
        .collect();
    let mut csv = Csv::new("seconds,volume,operations_per_second");
    for (kind, curve) in kinds.iter().zip(&curves) {
        for (index, rate) in curve.iter().enumerate() {
            csv.row(&[&format!("{:.1}", seconds(index)), &kind.label(), rate]);
        }
    }
    let most = curves.iter().flatten().copied().fold(1.0, f64::max);
    let line = |(kind, curve): (&Kind, &Vec<f64>)| {
        let points = curve.iter().enumerate();
        Line::new(
            kind.label(),
            points
                .map(|(index, rate)| (seconds(index), *rate))
                .collect(),
        )
    };
    let plot = Plot {
        title: format!("memcached SYS over swap: {}", trouble.label()),
        x_label: "seconds from the event",
        y_label: "operations per second",
        x: seconds(0)..seconds(count),
        x_scale: Scale::Linear,
        y: 0.0..most * 1.25,
        lines: kinds.iter().zip(&curves).map(line).collect(),
        legend: Legend::UpperRight,
    };
    for (ending, text) in [("csv", csv.text().to_owned()), ("svg", plot.svg()?)] {
        let path = dir.join(format!("event-{}.{ending}", trouble.name()));
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn periods(time: Duration) -> usize {
    (time.as_nanos() / PERIOD.as_nanos()) as usize
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 before, nothing for 1.2 s from 0.5 s after the event on, then 80.
    fn dipped() -> Timeline {
        let mut rates = vec![100.0; periods(BEFORE)];
        rates.extend(vec![80.0; periods(DURING + AFTER)]);
        rates[periods(BEFORE) + 5..][..12].fill(0.0);
        Timeline(rates)
    }

    #[test]
    fn a_dip_is_as_long_as_less_than_half_was_left() {
        assert_eq!(dipped().longest_dip_s(), 1.2);
        assert_eq!(dipped().before(), 100.0);
        assert_eq!(dipped().during(), 80.0 * 68.0 / 80.0);
        let steady = Timeline(vec![70.0; periods(BEFORE + DURING + AFTER)]);
        assert_eq!(steady.longest_dip_s(), 0.0);
        assert_eq!(steady.kept_percent(), 100.0);
    }

    #[test]
    fn a_curve_and_its_table_have_every_volume() {
        let dir = tempfile::tempdir().unwrap();
        let timelines = [vec![dipped(), dipped()], vec![dipped()]];
        let kinds = [Kind::Coded, Kind::Copied];
        draw(dir.path(), Trouble::Death, &kinds, &timelines).unwrap();
        let csv = fs::read_to_string(dir.path().join("event-death.csv")).unwrap();
        assert_eq!(
            csv.lines().count(),
            1 + 2 * periods(BEFORE + DURING + AFTER)
        );
        assert!(csv.contains("\n-4.0,rs:8+2,100\n") && csv.contains("\n0.5,mirror:2,0\n"));
        let svg = fs::read_to_string(dir.path().join("event-death.svg")).unwrap();
        assert!(svg.contains("mirror:2") && svg.contains("one host dies"));
    }
}
