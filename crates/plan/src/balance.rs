//! How evenly slabs lie on hosts, by placer and size of the cluster: figure 16.
//!
//! The paper names no metric. Here it is the most slabs on a host by the mean of all hosts that get
//! any: one that is left over from groups lends to nobody, and is told beside.

use anyhow::{Result, ensure};
use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use cenote_measure::random::Random;
use cenote_pool::placement::Pick;
use serde::Serialize;

use crate::loss::Case;
use crate::stripes::{Cluster, Placer, Stripes, apart, groups};

/// One size of cluster under one placer. The JSON line has exactly these keys, in order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Hosts of the cluster.
    pub hosts: usize,
    /// As in [`PLACERS`].
    pub placer: &'static str,
    /// The most slabs on a host, by the mean; the mean of all runs.
    pub max_to_mean: f64,
    /// The least and the greatest of the runs.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Hosts that are of no group.
    pub left_over: usize,
}

/// Placers and their names. The paper's groups, and ours: a stripe gets the less loaded of two.
pub const PLACERS: [(Placer, &str); 8] = [
    (Placer::Random, "ec-cache"),
    (of_one_drawn(0), "coding-sets:0"),
    (of_one_drawn(1), "coding-sets:1"),
    (of_one_drawn(2), "coding-sets:2"),
    (of_one_drawn(3), "coding-sets:3"),
    (of_one_drawn(4), "coding-sets:4"),
    (
        Placer::CodingSets {
            spare: 2,
            pick: Pick::TwoChoices,
        },
        "coding-sets:2 of two",
    ),
    (Placer::TwoChoices, "two-choices"),
];

const fn of_one_drawn(spare: usize) -> Placer {
    Placer::CodingSets {
        spare,
        pick: Pick::Random,
    }
}

/// Hosts of a cluster at most. Arbitrary; all placers at a million take a minute.
pub const HOSTS_MAX: usize = 1_000_000;

/// Runs of one size together place on no more hosts than this, ...
const HOSTS_OF_RUNS: usize = 20_000;
/// ... and are no more than this.
const RUNS_MAX: usize = 20;

/// Places the stripes of clusters of these sizes; `step` is called after each placer of each.
///
/// # Errors
/// A size that makes no sense.
pub fn run(case: &Case, sizes: &[usize], seed: u64, mut step: impl FnMut()) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &hosts in sizes {
        ensure!(hosts <= HOSTS_MAX, "{hosts} hosts: at most {HOSTS_MAX}");
        Case { hosts, ..*case }.check()?;
        for (placer, name) in PLACERS {
            let runs = (HOSTS_OF_RUNS / hosts).clamp(1, RUNS_MAX);
            rows.push(one(case, hosts, runs, (placer, name), seed)?);
            step();
        }
    }
    Ok(rows)
}

/// One size of cluster under one placer, so many times; at least once.
///
/// # Errors
/// No stripe fits.
pub fn one(
    case: &Case,
    hosts: usize,
    runs: usize,
    (placer, name): (Placer, &'static str),
    seed: u64,
) -> Result<Row> {
    let domains = apart(hosts);
    let cluster = Cluster {
        domains: &domains,
        members: case.members(),
        slabs_per_host: case.slabs_per_host,
    };
    let left_over = match placer {
        Placer::CodingSets { spare, .. } => {
            let sets = groups(&cluster, spare);
            hosts - sets.groups().iter().map(Vec::len).sum::<usize>()
        }
        Placer::Random | Placer::TwoChoices => 0,
    };
    ensure!(
        left_over < hosts,
        "{hosts} hosts are too few for a group of {}",
        case.members()
    );
    let mut figures = Vec::with_capacity(runs);
    for number in 0..runs {
        let mut random = Random::new(seed.wrapping_add(number as u64));
        let stripes = Stripes::place(placer, &cluster, &mut random);
        let loads = stripes.loads(hosts);
        let most = loads.iter().copied().max().unwrap_or(0);
        let slabs: u64 = loads.iter().map(|&load| u64::from(load)).sum();
        let mean = slabs as f64 / (hosts - left_over) as f64;
        figures.push(f64::from(most) / mean);
    }
    Ok(Row {
        hosts,
        placer: name,
        max_to_mean: figures.iter().sum::<f64>() / runs as f64,
        low: figures.iter().copied().fold(f64::INFINITY, f64::min),
        high: figures.iter().copied().fold(0.0, f64::max),
        left_over,
    })
}

/// One row each.
#[must_use]
pub fn csv(rows: &[Row]) -> Csv {
    let mut csv = Csv::new("hosts,placer,max_to_mean,low,high,left_over");
    for row in rows {
        csv.row(&[
            &row.hosts,
            &row.placer,
            &row.max_to_mean,
            &row.low,
            &row.high,
            &row.left_over,
        ]);
    }
    csv
}

/// The load balance by the hosts of the cluster.
#[must_use]
pub fn plot(rows: &[Row]) -> Plot {
    let line = |&(_, name): &(Placer, &str)| {
        let rows = rows.iter().filter(|row| row.placer == name);
        Line::new(
            name,
            rows.map(|row| (row.hosts as f64, row.max_to_mean))
                .collect(),
        )
    };
    let sizes = || rows.iter().map(|row| row.hosts as f64);
    let least = sizes().fold(f64::INFINITY, f64::min);
    let most = rows.iter().map(|row| row.max_to_mean).fold(1.0, f64::max);
    Plot {
        title: "The fullest host by the mean, simulated".to_owned(),
        x_label: "hosts",
        y_label: "slabs, max / mean",
        x: least..sizes().fold(least * 10.0, f64::max),
        x_scale: Scale::Logarithmic,
        y: 0.9..most * 1.3,
        lines: PLACERS.iter().map(line).collect(),
        legend: Legend::UpperLeft,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_choices_are_more_even() {
        let rows = run(&Case::PAPER, &[12_000], 1, || {}).unwrap();
        let of = |name: &str| {
            let row = rows.iter().find(|row| row.placer == name).unwrap();
            row.max_to_mean
        };
        let order = [
            "ec-cache",
            "coding-sets:0",
            "coding-sets:2",
            "coding-sets:4",
            "two-choices",
        ];
        for pair in order.windows(2) {
            assert!(of(pair[0]) > of(pair[1]), "{pair:?}: {rows:?}");
        }
        // Groups that are drawn leave them as uneven as balls in bins: the fullest of 1200 with 16
        // in the mean, by theory some 16 + sqrt(2 x 16 x ln 1200) = 31.
        assert!((1.7..2.1).contains(&of("coding-sets:0")), "{rows:?}");
        assert!(of("coding-sets:2 of two") < 1.3, "{rows:?}");
    }

    #[test]
    fn hosts_that_are_left_over_are_told_and_rows_make_a_picture() {
        let rows = run(&Case::PAPER, &[100, 105], 1, || {}).unwrap();
        let left_over = |hosts: usize, name: &str| {
            let is = |row: &&Row| row.hosts == hosts && row.placer == name;
            rows.iter().find(is).unwrap().left_over
        };
        assert_eq!(left_over(100, "coding-sets:2"), 4);
        assert_eq!(left_over(100, "coding-sets:0"), 0);
        assert_eq!(left_over(105, "ec-cache"), 0);
        assert!(plot(&rows).svg().is_ok());
        assert_eq!(csv(&rows).text().lines().count(), 1 + 2 * PLACERS.len());
        assert!(run(&Case::PAPER, &[11], 1, || {}).is_err());
    }
}
