//! How likely whole racks that fail at once take data with them.
//!
//! Hosts are listed rack by rack. A placer that knows racks has one member of a stripe in each at
//! most, so r racks never take data; one that does not takes every host for itself.

use anyhow::{Result, ensure};
use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use cenote_measure::random::Random;
use cenote_plan::loss::Case;
use cenote_plan::stripes::{Cluster, Placer, Stripes, apart};
use cenote_pool::placement::Pick;
use serde::Serialize;

use super::simulation::{Effort, Estimate, index_below};

/// One number of failed racks under one placer. The JSON line has exactly these keys, in order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Racks of the cluster.
    pub racks: usize,
    /// Racks that fail at once.
    pub failed: usize,
    /// `ec_cache` or `coding_sets`.
    pub placer: &'static str,
    /// Whether the placer knows which hosts share a rack.
    pub knows_racks: bool,
    /// Simulated.
    pub loss: Estimate,
}

/// Up to this many more racks fail than a stripe has parities.
const BEYOND: usize = 3;

/// Losses by the number of racks that fail.
///
/// # Errors
/// Too few racks for a stripe, or none that stays.
pub fn run(case: &Case, racks: usize, effort: Effort) -> Result<Vec<Row>> {
    case.check()?;
    ensure!(
        (case.members()..=case.hosts).contains(&racks),
        "{racks} racks: at least {} for a stripe, and one for each host at most",
        case.members()
    );
    let rack_of: Vec<u32> = (0..case.hosts)
        .map(|host| u32::try_from(host * racks / case.hosts).expect("HOSTS_MAX"))
        .collect();
    let alone = apart(case.hosts);
    let mut rows = Vec::new();
    for (placer, name) in placers(case.l) {
        for knows_racks in [true, false] {
            let cluster = Cluster {
                domains: if knows_racks { &rack_of } else { &alone },
                members: case.members(),
                slabs_per_host: case.slabs_per_host,
            };
            let mut figures = vec![Vec::new(); case.r + BEYOND];
            for number in 0..effort.clusters {
                let mut random = Random::new(effort.seed.wrapping_add(u64::from(number)));
                let stripes = Stripes::place(placer, &cluster, &mut random);
                ensure!(
                    stripes.iter().len() > 0,
                    "no stripe fits into {racks} racks"
                );
                for (at, figures) in figures.iter_mut().enumerate() {
                    let failed = (at + 1).min(racks);
                    let lost = lost_share(
                        case,
                        &stripes,
                        &rack_of,
                        failed,
                        racks,
                        &effort,
                        &mut random,
                    );
                    figures.push(lost);
                }
            }
            let row = |(at, figures): (usize, &Vec<f64>)| Row {
                racks,
                failed: (at + 1).min(racks),
                placer: name,
                knows_racks,
                loss: Estimate::of(figures),
            };
            rows.extend(figures.iter().enumerate().map(row));
        }
    }
    Ok(rows)
}

fn placers(spare: usize) -> [(Placer, &'static str); 2] {
    let pick = Pick::TwoChoices;
    [
        (Placer::Random, "ec_cache"),
        (Placer::CodingSets { spare, pick }, "coding_sets"),
    ]
}

/// The share of draws of `failed` racks in which a stripe loses more than r members.
fn lost_share(
    case: &Case,
    stripes: &Stripes,
    rack_of: &[u32],
    failed: usize,
    racks: usize,
    effort: &Effort,
    random: &mut Random,
) -> f64 {
    // A draw looks at every stripe; the share is no small number.
    let draws = (effort.failures / 10).max(1);
    let mut lost = 0_u32;
    for _ in 0..draws {
        let mut is_down = vec![false; racks];
        let mut left = failed;
        while left > 0 {
            let rack = &mut is_down[index_below(racks, random)];
            left -= usize::from(!std::mem::replace(rack, true));
        }
        let is_lost = |stripe: &[u32]| {
            let down = stripe
                .iter()
                .filter(|&&host| is_down[rack_of[host as usize] as usize]);
            down.count() > case.r
        };
        lost += u32::from(stripes.iter().any(is_lost));
    }
    f64::from(lost) / f64::from(draws)
}

/// One row each.
#[must_use]
pub fn csv(rows: &[Row]) -> Csv {
    let mut csv = Csv::new("racks,failed,placer,knows_racks,loss,error");
    for row in rows {
        csv.row(&[
            &row.racks,
            &row.failed,
            &row.placer,
            &row.knows_racks,
            &row.loss.mean,
            &row.loss.error,
        ]);
    }
    csv
}

/// The loss by the racks that fail.
#[must_use]
pub fn plot(rows: &[Row]) -> Plot {
    let names = [
        ("ec_cache", false, "EC-Cache, racks unknown"),
        ("coding_sets", false, "CodingSets, racks unknown"),
        ("ec_cache", true, "EC-Cache"),
        ("coding_sets", true, "CodingSets"),
    ];
    let line = |&(placer, knows_racks, name): &(&str, bool, &str)| {
        let rows = rows.iter();
        let of_line = rows.filter(|row| row.placer == placer && row.knows_racks == knows_racks);
        let points: Vec<(f64, f64)> = of_line
            .map(|row| (row.failed as f64, row.loss.mean))
            .collect();
        Line {
            marks: points.clone(),
            ..Line::new(name, points)
        }
    };
    let most = rows.iter().map(|row| row.failed).max().unwrap_or(0);
    Plot {
        title: "Whole racks fail at once, simulated".to_owned(),
        x_label: "racks that fail",
        y_label: "probability of loss",
        x: 0.9..most as f64 + 0.1,
        x_scale: Scale::Linear,
        y: 0.0..1.05,
        lines: names.iter().map(line).collect(),
        legend: Legend::MiddleRight,
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::USUAL;
    use super::*;

    #[test]
    fn racks_that_are_known_take_nothing_until_more_fail_than_there_are_parities() {
        let rows = run(&Case::PAPER, 25, USUAL).unwrap();
        let of = |placer: &str, knows: bool, failed: usize| {
            let found = rows
                .iter()
                .find(|row| (row.placer, row.knows_racks, row.failed) == (placer, knows, failed));
            found.unwrap().loss
        };
        for placer in ["ec_cache", "coding_sets"] {
            for failed in 1..=2 {
                assert_eq!(of(placer, true, failed).mean, 0.0);
            }
            // Three groups are in one rack of 40 hosts where racks are not known.
            assert!(of(placer, false, 2).mean > 0.9, "{rows:?}");
        }
        assert_eq!(of("coding_sets", false, 1).mean, 1.0);
        // Two sets of 12 racks: 2 C(12,3) of C(25,3) choices of three racks lose data; on random
        // hosts, nearly all.
        let three = of("coding_sets", true, 3);
        let exact = 440.0 / 2300.0;
        assert!((three.mean - exact).abs() < 4.0 * three.error, "{three:?}");
        assert!(of("ec_cache", true, 3).mean > 0.99);
        assert!(plot(&rows).svg().is_ok());
        assert_eq!(csv(&rows).text().lines().count(), 1 + rows.len());
    }

    #[test]
    fn fewer_racks_than_a_stripe_has_members_are_refused() {
        assert!(run(&Case::PAPER, 9, USUAL).is_err());
        assert!(run(&Case::PAPER, 1001, USUAL).is_err());
    }
}
