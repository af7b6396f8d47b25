//! The experiment's figures as a table and a picture, beside the paper's.

use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use cenote_measure::statistics::MedianRange;

use super::{Outcome, Swapped};

/// What the paper found, figure 15 and section 7.4.1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paper {
    /// Share of memory in use, swapping to disk.
    pub utilisation_without: f64,
    /// And to other machines.
    pub utilisation_with: f64,
    /// The second by the first.
    pub utilisation_ratio: f64,
    /// Fullest machine by the median one, swapping to disk.
    pub max_to_median_without: f64,
    /// And to other machines.
    pub max_to_median_with: f64,
    /// Fullest machine by the emptiest, swapping to disk.
    pub max_to_min_without: f64,
    /// And to other machines.
    pub max_to_min_with: f64,
    /// Pages over the network, per machine.
    pub network_mbps: f64,
    /// That, of 56 Gbps: less than this.
    pub network_share: f64,
}

/// As printed there.
pub const PAPER: Paper = Paper {
    utilisation_without: 0.408,
    utilisation_with: 0.60,
    utilisation_ratio: 1.47,
    max_to_median_without: 2.36,
    max_to_median_with: 1.6,
    max_to_min_without: 22.5,
    max_to_min_with: 2.7,
    network_mbps: 380.0,
    network_share: 0.01,
};

/// One row for each figure and variant; the paper's value is empty where it gives none.
#[must_use]
pub fn csv(outcomes: &[Outcome]) -> Csv {
    let mut csv = Csv::new("swapped,figure,median,low,high,paper");
    for outcome in outcomes {
        let swapped = name(outcome.swapped);
        for (figure, spread, paper) in outcome.figures() {
            let paper = paper.map_or_else(String::new, |paper| paper.to_string());
            csv.row(&[
                &swapped,
                &figure,
                &spread.median,
                &spread.low,
                &spread.high,
                &paper,
            ]);
        }
    }
    csv
}

/// As in JSON.
fn name(swapped: Swapped) -> &'static str {
    match swapped {
        Swapped::Overflow => "overflow",
        Swapped::Whole => "whole",
    }
}

impl Outcome {
    /// Every figure with its name and what the paper has for it.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, MedianRange, Option<f64>)> {
        vec![
            (
                "utilisation_without",
                self.utilisation_without,
                Some(PAPER.utilisation_without),
            ),
            (
                "utilisation_with",
                self.utilisation_with,
                Some(PAPER.utilisation_with),
            ),
            (
                "utilisation_ratio",
                self.utilisation_ratio,
                Some(PAPER.utilisation_ratio),
            ),
            (
                "max_to_median_without",
                self.max_to_median_without,
                Some(PAPER.max_to_median_without),
            ),
            (
                "max_to_median_with",
                self.max_to_median_with,
                Some(PAPER.max_to_median_with),
            ),
            (
                "max_to_min_without",
                self.max_to_min_without,
                Some(PAPER.max_to_min_without),
            ),
            (
                "max_to_min_with",
                self.max_to_min_with,
                Some(PAPER.max_to_min_with),
            ),
            ("network_mbps", self.network_mbps, Some(PAPER.network_mbps)),
            (
                "network_share",
                self.network_share,
                Some(PAPER.network_share),
            ),
            ("evictions", self.evictions, None),
            ("remote_share", self.remote_share, None),
        ]
    }
}

/// Machines of the first run by how full they are, as in figure 15b.
#[must_use]
pub fn plot(outcomes: &[Outcome]) -> Plot {
    let by_share = |name: &str, shares: &[f64]| {
        let mut shares = shares.to_vec();
        shares.sort_by(f64::total_cmp);
        let points = shares.iter().enumerate();
        Line::new(
            name,
            points
                .map(|(rank, &share)| (rank as f64 + 1.0, share))
                .collect(),
        )
    };
    let mut lines = Vec::new();
    if let Some(first) = outcomes.first() {
        lines.push(by_share("to disk", &first.machines_without));
    }
    for outcome in outcomes {
        let what = match outcome.swapped {
            Swapped::Overflow => "to slabs: what does not fit",
            Swapped::Whole => "to slabs: every page",
        };
        lines.push(by_share(what, &outcome.machines_with));
    }
    let machines = lines.first().map_or(2, |line| line.points.len().max(2));
    Plot {
        title: "Memory in use on each machine, simulated".to_owned(),
        x_label: "machines, the emptiest first",
        y_label: "share of the machine's memory",
        x: 1.0..machines as f64,
        x_scale: Scale::Linear,
        y: 0.0..1.0,
        lines,
        legend: Legend::UpperLeft,
    }
}
