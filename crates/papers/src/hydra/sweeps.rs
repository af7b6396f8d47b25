//! The sweeps of figure 15: the probability of loss by each parameter, formula and simulation.

use anyhow::Result;
use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use cenote_plan::loss::Case;
use cenote_plan::odds::Failing;
use cenote_plan::stripes::Placer;
use cenote_pool::placement::Pick;
use serde::Serialize;

use super::simulation::{self, Effort, Estimate};

/// A parameter and the values that it goes through; all others stay.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Its letter in the paper.
    pub parameter: &'static str,
    /// In the picture.
    pub label: &'static str,
    /// From left to right.
    pub values: &'static [f64],
    scale: Scale,
    set: fn(&mut Case, f64),
}

/// One value of one parameter. The JSON line has exactly these keys, in order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// As in [`Sweep::parameter`].
    pub parameter: &'static str,
    /// Its value.
    pub value: f64,
    /// Random hosts, by the formula.
    pub ec_cache: f64,
    /// Groups, by the formula.
    pub coding_sets: f64,
    /// Random hosts, simulated.
    pub ec_cache_simulated: Estimate,
    /// Groups, simulated.
    pub coding_sets_simulated: Estimate,
}

/// All of them. The numbers are small whole ones, but for f.
pub const SWEEPS: [Sweep; 5] = [
    Sweep {
        parameter: "r",
        label: "r, parities",
        values: &[1.0, 2.0, 3.0, 4.0],
        scale: Scale::Linear,
        set: |case, value| case.r = value as usize,
    },
    Sweep {
        parameter: "l",
        label: "l, hosts of a group beyond k+r",
        values: &[0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0],
        scale: Scale::Linear,
        set: |case, value| case.l = value as usize,
    },
    Sweep {
        parameter: "S",
        label: "S, slabs on a host",
        values: &[2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0, 256.0],
        scale: Scale::Logarithmic,
        set: |case, value| case.slabs_per_host = value as u32,
    },
    Sweep {
        parameter: "f",
        label: "f, share of the hosts that fails",
        values: &[0.005, 0.01, 0.015, 0.02, 0.03],
        scale: Scale::Linear,
        set: |case, value| case.failed = value,
    },
    Sweep {
        parameter: "k",
        label: "k, data splits",
        values: &[2.0, 4.0, 8.0, 16.0],
        scale: Scale::Linear,
        set: |case, value| case.k = value as usize,
    },
];

/// Formula and simulation of one case. `step` is called after each simulated cluster, of which
/// there are twice as many as [`Effort::clusters`] says.
///
/// # Errors
/// A case that makes no sense.
pub fn row(
    (parameter, value): (&'static str, f64),
    case: &Case,
    failing: Failing,
    effort: Effort,
    mut step: impl FnMut(),
) -> Result<Row> {
    case.check()?;
    let sets = Placer::CodingSets {
        spare: case.l,
        pick: Pick::TwoChoices,
    };
    Ok(Row {
        parameter,
        value,
        ec_cache: failing.random_groups(case),
        coding_sets: failing.coding_sets(case),
        ec_cache_simulated: simulation::loss(case, failing, Placer::Random, effort, &mut step),
        coding_sets_simulated: simulation::loss(case, failing, sets, effort, &mut step),
    })
}

impl Sweep {
    /// Goes through the values; `step` is called after each. As in the paper, a share of the hosts
    /// fails, also where those are few.
    ///
    /// # Errors
    /// A value that makes no sense with the other parameters.
    pub fn run(&self, base: &Case, effort: Effort, mut step: impl FnMut()) -> Result<Vec<Row>> {
        let mut rows = Vec::with_capacity(self.values.len());
        for &value in self.values {
            let mut case = *base;
            (self.set)(&mut case, value);
            let named = (self.parameter, value);
            rows.push(row(named, &case, Failing::Share, effort, || {})?);
            step();
        }
        Ok(rows)
    }

    /// Lines are the formula, circles are simulated. Odds of 0 are not drawn.
    #[must_use]
    pub fn plot(&self, rows: &[Row]) -> Plot {
        let line = |name: &str, formula: fn(&Row) -> f64, simulated: fn(&Row) -> f64| {
            let points = |figure: fn(&Row) -> f64| -> Vec<(f64, f64)> {
                let drawn = rows.iter().filter(|row| figure(row) > 0.0);
                drawn.map(|row| (row.value, figure(row).log10())).collect()
            };
            Line {
                marks: points(simulated),
                ..Line::new(name, points(formula))
            }
        };
        let lines = vec![
            line(
                "EC-Cache",
                |row| row.ec_cache,
                |row| row.ec_cache_simulated.mean,
            ),
            line(
                "CodingSets",
                |row| row.coding_sets,
                |row| row.coding_sets_simulated.mean,
            ),
        ];
        let heights = lines.iter().flat_map(|line| &line.points);
        let least = heights.map(|point| point.1).fold(-1.0, f64::min);
        let ends = [self.values[0], self.values[self.values.len() - 1]];
        Plot {
            title: format!(
                "Probability of loss by {}; circles simulated",
                self.parameter
            ),
            x_label: self.label,
            y_label: "probability, log10",
            x: ends[0]..ends[1],
            x_scale: self.scale,
            y: least.floor()..1.0,
            lines,
            legend: Legend::UpperLeft,
        }
    }
}

/// One row each.
#[must_use]
pub fn csv(rows: &[Row]) -> Csv {
    let mut csv = Csv::new(
        "parameter,value,ec_cache,coding_sets,ec_cache_simulated,ec_cache_error,\
         coding_sets_simulated,coding_sets_error",
    );
    for row in rows {
        csv.row(&[
            &row.parameter,
            &row.value,
            &row.ec_cache,
            &row.coding_sets,
            &row.ec_cache_simulated.mean,
            &row.ec_cache_simulated.error,
            &row.coding_sets_simulated.mean,
            &row.coding_sets_simulated.error,
        ]);
    }
    csv
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small, so that a wrong figure shows and the test is short.
    const FEW: Effort = Effort {
        clusters: 4,
        failures: 400,
        seed: 1,
    };

    /// The formula takes sets of hosts as independent, and every set inside a group as that of a
    /// stripe. So it is a quarter too high at most, where stripes are few; and a little too low
    /// where pairs are fatal, which meet as birthdays do.
    #[test]
    fn simulation_and_formula_agree_in_every_sweep() {
        for sweep in SWEEPS {
            let mut steps = 0;
            let rows = sweep.run(&Case::PAPER, FEW, || steps += 1).unwrap();
            assert_eq!(
                (steps, rows.len()),
                (sweep.values.len(), sweep.values.len())
            );
            for row in &rows {
                for (formula, found) in [
                    (row.ec_cache, row.ec_cache_simulated),
                    (row.coding_sets, row.coding_sets_simulated),
                ] {
                    let unsure = 5.0 * found.error + 0.005 * formula;
                    assert!(found.mean < 1.03 * formula + unsure, "{row:?}");
                    assert!(found.mean > 0.75 * formula - unsure, "{row:?}");
                }
            }
            assert!(sweep.plot(&rows).svg().is_ok());
            assert_eq!(csv(&rows).text().lines().count(), 1 + rows.len());
        }
    }

    #[test]
    fn the_seed_decides() {
        let of = |seed| {
            let effort = Effort { seed, ..FEW };
            row(("k", 8.0), &Case::PAPER, Failing::Share, effort, || {}).unwrap()
        };
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
    }
}
