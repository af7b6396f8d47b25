//! Which configuration to measure next.
//!
//! Throughput rises with each parameter until threads or connections contend, and falls from there
//! on. So along each parameter, with the others held, a survey stops once a step brought less
//! than [`RISE_MIN`]: what lies beyond costs more and does no better.
//!
//! What comes next follows from what is in the table alone. A survey that was broken off goes on
//! from the table that it left.
//!
//! Paper: \[redy22\], offline modelling. Deviation D2.

use super::grid::{AXES, Position, S};
use super::{Measurement, NotOnGrid, Table};
use crate::Configuration;

/// Least share by which a step has to raise throughput for the next step to be tried. Above the noise
/// of a measurement, so that a plateau ends a line as a fall does.
pub const RISE_MIN: f64 = 0.01;

/// A table on its way to being complete.
///
/// Call [`Survey::next`], measure what it says, hand the result to [`Survey::insert`], until there is
/// no next one.
#[derive(Clone, Debug)]
pub struct Survey {
    table: Table,
    /// Early stop at this rise; `None` measures the whole grid.
    rise_min: Option<f64>,
    order: Vec<Position>,
    /// Positions of `order` before this one are measured or skipped.
    done: usize,
}

impl Survey {
    /// Goes on from what `table` has. With `rise_min` it stops early, without it measures everything.
    #[must_use]
    pub fn new(table: Table, rise_min: Option<f64>) -> Self {
        let grid = table.grid();
        let order = grid
            .positions()
            .filter(|position| grid.at(*position).is_some());
        let mut survey = Self {
            order: order.collect(),
            table,
            rise_min,
            done: 0,
        };
        survey.skip();
        survey
    }

    /// What to measure now; `None` at the end.
    #[must_use]
    pub fn next(&self) -> Option<Configuration> {
        let position = self.order.get(self.done)?;
        self.table.grid().at(*position)
    }

    /// Takes a measurement.
    ///
    /// # Errors
    /// The configuration is not on the grid.
    pub fn insert(
        &mut self,
        configuration: Configuration,
        measurement: Measurement,
    ) -> Result<(), NotOnGrid> {
        self.table.insert(configuration, measurement)?;
        self.skip();
        Ok(())
    }

    /// What was measured so far.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The table, complete or not.
    #[must_use]
    pub fn into_table(self) -> Table {
        self.table
    }

    /// How many points of the grid are measured or were found to be not worth it.
    #[must_use]
    pub fn done_count(&self) -> usize {
        self.done
    }

    /// Points of the whole grid.
    #[must_use]
    pub fn grid_count(&self) -> usize {
        self.order.len()
    }

    /// Passes over what is measured and what need not be.
    fn skip(&mut self) {
        while let Some(position) = self.order.get(self.done) {
            if self.table.at(*position).is_none() && !self.is_stopped(*position) {
                break;
            }
            self.done += 1;
        }
    }

    /// Whether throughput stopped to rise before `position` on one of the four lines that end there.
    /// All of these lines come earlier in the order.
    fn is_stopped(&self, position: Position) -> bool {
        let Some(rise_min) = self.rise_min else {
            return false;
        };
        (0..AXES).any(|axis| {
            // One-sided verbs are another mechanism: s = 0 says nothing about s = 1.
            let first = usize::from(axis == S);
            let mut before: Option<f64> = None;
            for level in first..position[axis] {
                let mut at = position;
                at[axis] = level;
                let Some(here) = self.table.at(at) else {
                    continue;
                };
                let here = here.throughput_per_second();
                if before.is_some_and(|before| here < before * (1.0 + rise_min)) {
                    return true;
                }
                before = Some(here);
            }
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Space;
    use crate::tuner::{Grid, Spacing};

    /// Runs a survey over a surface; the configurations in the order in which they were asked for.
    fn run(
        survey: &mut Survey,
        steps: usize,
        throughput: impl Fn(Configuration) -> f64,
    ) -> Vec<Configuration> {
        let mut asked = Vec::new();
        while asked.len() < steps
            && let Some(next) = survey.next()
        {
            let measured = Measurement::new(throughput(next), 1.0, 1.0, 1.0).unwrap();
            survey.insert(next, measured).unwrap();
            asked.push(next);
        }
        asked
    }

    fn grid(record_bytes: u32) -> Grid {
        Grid::new(Space::PAPER.for_record(record_bytes), Spacing::Powers)
    }

    #[test]
    fn a_line_ends_after_its_first_fall() {
        // One parameter matters: 4 client threads are best.
        let best_of_4 = |configuration: Configuration| match configuration.c {
            1 => 10.0,
            2 => 20.0,
            4 => 40.0,
            8 => 30.0,
            _ => 1000.0,
        };
        let grid = Grid::new(Space::new(16, 0, 1, 1).unwrap(), Spacing::Powers);
        let mut survey = Survey::new(Table::new(grid), Some(RISE_MIN));
        let asked = run(&mut survey, usize::MAX, best_of_4);
        let threads: Vec<u32> = asked.iter().map(|one| one.c).collect();
        assert_eq!(threads, [1, 2, 4, 8]);
        assert_eq!((survey.done_count(), survey.grid_count()), (5, 5));
    }

    #[test]
    fn a_rise_that_noise_could_be_ends_a_line_and_one_above_it_does_not() {
        let grid = Grid::new(Space::new(16, 0, 1, 1).unwrap(), Spacing::Powers);
        for (step, expected) in [(1.005, 2), (1.02, 5)] {
            let mut survey = Survey::new(Table::new(grid.clone()), Some(RISE_MIN));
            let rise = |one: Configuration| f64::powi(step, one.c.ilog2().cast_signed());
            assert_eq!(run(&mut survey, usize::MAX, rise).len(), expected);
        }
    }

    #[test]
    fn one_sided_verbs_that_do_better_than_a_server_thread_stop_nothing() {
        let grid = Grid::new(Space::new(4, 4, 1, 1).unwrap(), Spacing::Powers);
        let mut survey = Survey::new(Table::new(grid), Some(RISE_MIN));
        let asked = run(&mut survey, usize::MAX, |one| match one.s {
            0 => f64::from(one.c) * 100.0,
            s => f64::from(one.c) + f64::from(s) * 10.0,
        });
        assert_eq!(asked.len(), 3 + 3 + 2 + 1, "{asked:?}");
    }

    #[test]
    fn without_early_stop_the_whole_grid_is_measured() {
        let mut survey = Survey::new(Table::new(grid(16)), None);
        let asked = run(&mut survey, usize::MAX, |one| 1.0 / f64::from(one.c));
        assert_eq!(asked.len(), grid(16).point_count());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A surface that rises up to a best level of each parameter and falls behind it.
        #[test]
        fn early_stop_finds_the_peak_of_a_unimodal_surface_and_goes_on_where_it_was_broken_off(
            best in [0_u32..5, 0_u32..5, 0_u32..9, 0_u32..5],
            steep in [1.05_f64..2.0, 1.05_f64..2.0, 1.05_f64..2.0, 1.05_f64..2.0],
            broken_off in 0_usize..300,
        ) {
            let surface = |one: Configuration| {
                let levels = [one.s.max(1), one.c, one.b, one.q];
                levels.iter().zip(best).zip(steep).fold(1e6, |value, ((level, best), steep)| {
                    value / f64::powi(steep, level.ilog2().abs_diff(best).cast_signed())
                })
            };
            let whole_grid = grid(16);
            let mut whole = Survey::new(Table::new(whole_grid.clone()), Some(RISE_MIN));
            let asked = run(&mut whole, usize::MAX, surface);
            let most = |table: &Table| {
                table.iter().filter(|(one, _)| one.s > 0)
                    .map(|(_, measured)| measured.throughput_per_second())
                    .fold(0.0, f64::max)
            };
            let mut full = Survey::new(Table::new(whole_grid), None);
            run(&mut full, usize::MAX, surface);
            // Corners of the triangle s <= c may hide the peak itself from every line.
            if best[0] <= best[1] {
                prop_assert_eq!(most(whole.table()), most(full.table()));
            }

            let mut first = Survey::new(Table::new(grid(16)), Some(RISE_MIN));
            let mut both = run(&mut first, broken_off, surface);
            let mut second = Survey::new(first.into_table(), Some(RISE_MIN));
            both.extend(run(&mut second, usize::MAX, surface));
            prop_assert_eq!(both, asked);
        }
    }
}
