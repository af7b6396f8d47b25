//! The configurations that are measured: few values of each parameter, in all combinations.

use crate::{Configuration, Space};

/// Which values of each parameter are measured.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Spacing {
    /// The powers of two within the space, as in the paper. Nothing above the last one is predicted, and
    /// so not chosen: of 30 threads, 17 to 30.
    #[default]
    Powers,
    /// These and the end of each range, so that all of the space can be chosen from.
    PowersAndEnds,
}

impl Spacing {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Powers, Self::PowersAndEnds];

    /// How it is written in a model's file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Powers => "powers",
            Self::PowersAndEnds => "powers+ends",
        }
    }
}

/// Axes of the grid, in the order in which an index counts them.
pub(super) const AXES: usize = 4;
pub(super) const S: usize = 0;
pub(super) const C: usize = 1;
pub(super) const Q: usize = 2;
pub(super) const B: usize = 3;

/// Where a configuration is: the index of its level on each axis.
pub(super) type Position = [usize; AXES];

/// Levels of each parameter; a point is a combination that is a configuration of the space.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Grid {
    space: Space,
    /// Ascending, by axis. The first of S is 0, of the others 1.
    levels: [Vec<u32>; AXES],
}

impl Grid {
    /// The grid of a space, for one size of records (see [`Space::for_record`]).
    #[must_use]
    pub fn new(space: Space, spacing: Spacing) -> Self {
        let levels = |most: u32| {
            let powers = std::iter::successors(Some(1_u32), |level| level.checked_mul(2));
            let mut levels: Vec<u32> = powers.take_while(|level| *level <= most).collect();
            if spacing == Spacing::PowersAndEnds && levels.last().is_some_and(|last| *last < most) {
                levels.push(most);
            }
            levels
        };
        let servers = std::iter::once(0).chain(levels(space.s_max())).collect();
        Self {
            space,
            levels: [
                servers,
                levels(space.c_max()),
                levels(space.q_max()),
                levels(space.b_max()),
            ],
        }
    }

    /// The part of it whose levels `other` has, too.
    pub(super) fn shared_with(&self, other: &Self) -> Self {
        let mut shared = self.clone();
        for (levels, others) in shared.levels.iter_mut().zip(&other.levels) {
            levels.retain(|level| others.binary_search(level).is_ok());
        }
        shared
    }

    /// The space that it covers.
    #[must_use]
    pub fn space(&self) -> Space {
        self.space
    }

    /// How many configurations it has: what measuring all of it means.
    #[must_use]
    pub fn point_count(&self) -> usize {
        self.positions()
            .filter(|position| self.at(*position).is_some())
            .count()
    }

    pub(super) fn levels(&self, axis: usize) -> &[u32] {
        &self.levels[axis]
    }

    /// Number of combinations, those that are no configuration among them.
    pub(super) fn len(&self) -> usize {
        self.levels.iter().map(Vec::len).product()
    }

    pub(super) fn index(&self, position: Position) -> usize {
        let axes = position.iter().zip(&self.levels);
        axes.fold(0, |index, (at, levels)| index * levels.len() + at)
    }

    /// What is measured at a position; `None` if its levels make no configuration.
    pub(super) fn at(&self, position: Position) -> Option<Configuration> {
        let level = |axis: usize| self.levels[axis][position[axis]];
        let configuration = Configuration {
            c: level(C),
            s: level(S),
            b: level(B),
            q: level(Q),
        };
        self.space.contains(configuration).then_some(configuration)
    }

    /// Where a configuration is; `None` if it is not on the grid.
    pub(super) fn find(&self, configuration: Configuration) -> Option<Position> {
        if !self.space.contains(configuration) {
            return None;
        }
        let Configuration { c, s, b, q } = configuration;
        let mut position = [0; AXES];
        for (axis, value) in [(S, s), (C, c), (Q, q), (B, b)] {
            position[axis] = self.levels[axis].binary_search(&value).ok()?;
        }
        Some(position)
    }

    /// All positions in the order of a survey: client threads are raised first, as on the paper's slide,
    /// then the batch, then what is under way, then server threads.
    pub(super) fn positions(&self) -> impl Iterator<Item = Position> + use<> {
        let count = |axis: usize| self.levels[axis].len();
        let (servers, clients, messages, batches) = (count(S), count(C), count(Q), count(B));
        (0..servers).flat_map(move |s| {
            (0..messages).flat_map(move |q| {
                (0..batches).flat_map(move |b| {
                    (0..clients).map(move |c| {
                        let mut position = [0; AXES];
                        position[S] = s;
                        position[C] = c;
                        position[Q] = q;
                        position[B] = b;
                        position
                    })
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_space_has_700_points_at_powers_of_two() {
        // (s, c) pairs with s >= 1: 5 + 4 + 3 + 2 + 1 of them, 9 batches, 5 depths; with s = 0: 5 by 5.
        let grid = Grid::new(Space::PAPER.for_record(8), Spacing::Powers);
        assert_eq!(grid.point_count(), 15 * 9 * 5 + 5 * 5);
        let ends = Grid::new(Space::PAPER.for_record(8), Spacing::PowersAndEnds);
        assert_eq!(ends.point_count(), 21 * 10 * 5 + 6 * 5);
        assert_eq!(ends.levels(B).last(), Some(&500));
        assert_eq!(ends.levels(Q), [1, 2, 4, 8, 16]);
    }

    #[test]
    fn positions_and_configurations_name_each_other() {
        let grid = Grid::new(Space::PAPER.for_record(64), Spacing::PowersAndEnds);
        let mut seen = std::collections::HashSet::new();
        for position in grid.positions() {
            assert!(seen.insert(grid.index(position)));
            if let Some(configuration) = grid.at(position) {
                assert_eq!(grid.find(configuration), Some(position));
            }
        }
        assert_eq!(seen.len(), grid.len());
        let between = Configuration {
            c: 3,
            s: 1,
            b: 1,
            q: 1,
        };
        assert_eq!(grid.find(between), None);
    }

    #[test]
    fn client_threads_are_raised_first() {
        let grid = Grid::new(Space::PAPER.for_record(8), Spacing::Powers);
        let order = grid.positions().filter_map(|position| grid.at(position));
        let of_one_server: Vec<Configuration> = order.filter(|one| one.s == 1).take(6).collect();
        let expected = [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (1, 2)];
        let expected = expected.map(|(c, b)| Configuration { c, s: 1, b, q: 1 });
        assert_eq!(of_one_server, expected);
    }
}
