//! What was measured for one size of records at one distance.

use super::Measurement;
use super::grid::{Grid, Position};
use crate::Configuration;

/// Measurements on a grid; some points, all, or none.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    grid: Grid,
    /// By [`Grid::index`].
    points: Vec<Option<Measurement>>,
}

impl Table {
    /// A table with nothing in it.
    #[must_use]
    pub fn new(grid: Grid) -> Self {
        Self {
            points: vec![None; grid.len()],
            grid,
        }
    }

    /// Which configurations it may hold.
    #[must_use]
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Takes a measurement; the one it replaces, if there was one.
    ///
    /// # Errors
    /// The configuration is not on the grid.
    pub fn insert(
        &mut self,
        configuration: Configuration,
        measurement: Measurement,
    ) -> Result<Option<Measurement>, NotOnGrid> {
        let position = self.grid.find(configuration).ok_or(NotOnGrid)?;
        let index = self.grid.index(position);
        Ok(self.points[index].replace(measurement))
    }

    /// What was measured of a configuration.
    #[must_use]
    pub fn get(&self, configuration: Configuration) -> Option<Measurement> {
        self.at(self.grid.find(configuration)?)
    }

    pub(super) fn at(&self, position: Position) -> Option<Measurement> {
        self.points[self.grid.index(position)]
    }

    /// All measurements, in the order of a survey.
    pub fn iter(&self) -> impl Iterator<Item = (Configuration, Measurement)> + use<'_> {
        self.grid
            .positions()
            .filter_map(|position| Some((self.grid.at(position)?, self.at(position)?)))
    }

    /// How many configurations were measured.
    #[must_use]
    pub fn measured_count(&self) -> usize {
        self.points.iter().flatten().count()
    }
}

/// A configuration that is not among those of a grid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a configuration that this model measures")]
pub struct NotOnGrid;
