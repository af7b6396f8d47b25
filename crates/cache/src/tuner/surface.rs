//! What is predicted between measured points.
//!
//! Along each parameter, values are joined by straight lines over log2 of the parameter and by straight
//! lines over the parameter itself, and the worse of the two counts: the lower throughput, the
//! higher latency. Where throughput gains less with each step (it is concave along each parameter) and latency
//! more (convex), no prediction is better than the truth; at measured points it is what was measured. A
//! percentile jumps: one client thread more on one server thread may double a p99. Of percentiles the higher
//! end counts, wherever it is between two. All of this less [`MARGIN`] for noise, and once more for each parameter
//! that is between two levels: threads that contend are not quite concave.
//!
//! s = 0, one-sided verbs, is a plane of its own. A configuration is predicted when all corners of its
//! cell were measured that have a say in it; behind an early stop, and across the edge s = c, none is.

use super::Table;
use super::grid::{AXES, B, C, Grid, Position, Q, S};
use crate::{Configuration, LatencyOf};

/// Share by which throughput is predicted lower and latency higher than measured, and again for each
/// parameter that is interpolated. Runs of the simulated network differ by less.
pub const MARGIN: f64 = 0.02;

/// What a configuration is expected to do at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Requests per second.
    pub throughput_per_second: f64,
    /// Microseconds of a request, of the kind that the surface was made for.
    pub latency_us: f64,
}

impl Prediction {
    /// Whether it is as good as asked in both.
    pub(super) fn meets(&self, wish: &Self) -> bool {
        self.throughput_per_second >= wish.throughput_per_second
            && self.latency_us <= wish.latency_us
    }

    fn worse(self, other: Self) -> Self {
        Self {
            throughput_per_second: self.throughput_per_second.min(other.throughput_per_second),
            latency_us: self.latency_us.max(other.latency_us),
        }
    }

    fn better(self, other: Self) -> Self {
        Self {
            throughput_per_second: self.throughput_per_second.max(other.throughput_per_second),
            latency_us: self.latency_us.min(other.latency_us),
        }
    }
}

/// Where a value lies between two levels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Between {
    /// Index of the level at or below it.
    low: usize,
    /// Its share of the way to the next level, and the same over logarithms; both 0 on the level.
    linear: f64,
    logarithmic: f64,
    /// Of latencies the higher end counts.
    is_percentile: bool,
    /// Share that is lost between levels.
    margin: f64,
}

impl Between {
    /// A level.
    fn on(low: usize) -> Self {
        Self {
            low,
            linear: 0.0,
            logarithmic: 0.0,
            is_percentile: false,
            margin: 0.0,
        }
    }

    /// What is predicted here; `low` alone counts on a level.
    pub(super) fn blend(self, low: Prediction, high: Prediction) -> Prediction {
        if self.linear == 0.0 {
            return low;
        }
        let along = |low: f64, high: f64, share: f64| {
            // Rounding must not leave the two ends.
            (low + (high - low) * share).clamp(low.min(high), low.max(high))
        };
        let both = |low: f64, high: f64| {
            (
                along(low, high, self.linear),
                along(low, high, self.logarithmic),
            )
        };
        let throughput = both(low.throughput_per_second, high.throughput_per_second);
        let latency = match self.is_percentile {
            true => (low.latency_us, high.latency_us),
            false => both(low.latency_us, high.latency_us),
        };
        Prediction {
            throughput_per_second: throughput.0.min(throughput.1) / (1.0 + self.margin),
            latency_us: latency.0.max(latency.1) * (1.0 + self.margin),
        }
    }
}

/// A level, or the whole numbers between two: what a search takes in one piece. On each axis predictions
/// go one way within it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Index of its lower level, and of the upper one: the same, or the next.
    pub low: usize,
    pub high: usize,
    /// Its values, both included.
    pub first: u32,
    pub last: u32,
}

/// Measured points of one size of records, and all predictions that follow from them.
#[derive(Clone, Debug)]
pub struct Surface {
    grid: Grid,
    /// By [`Grid::index`]; the margin is in it.
    points: Vec<Option<Prediction>>,
    pieces: [Vec<Piece>; AXES],
    /// For each value from 0 to the highest level, by axis.
    between: [Vec<Between>; AXES],
    /// By piece of S, then of C: what the best corner has in each, and the same of every piece of B and
    /// Q in the order of their values.
    blocks: Vec<Block>,
}

/// All configurations with s and c in one piece each.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub bound: Prediction,
    pub parts: Vec<Part>,
}

/// Those of a block with b and q in one piece each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub b: Piece,
    pub q: Piece,
    /// No configuration in it is better than this in either.
    pub bound: Prediction,
}

const WORST: Prediction = Prediction {
    throughput_per_second: 0.0,
    latency_us: f64::INFINITY,
};

impl Surface {
    /// What two tables say that were measured with the next larger and the next smaller records; one
    /// table twice where it fits. The worse of both counts. `margin` is a share, 0 or more.
    #[must_use]
    pub fn new(larger: &Table, smaller: &Table, latency_of: LatencyOf, margin: f64) -> Self {
        let grid = larger.grid().shared_with(smaller.grid());
        let mut points = vec![None; grid.len()];
        for position in grid.positions() {
            let of = |table: &Table| {
                let measured = table.get(grid.at(position)?)?;
                Some(Prediction {
                    throughput_per_second: measured.throughput_per_second() / (1.0 + margin),
                    latency_us: measured.latency_us(latency_of) * (1.0 + margin),
                })
            };
            let both = of(larger).zip(of(smaller));
            points[grid.index(position)] = both.map(|(larger, smaller)| larger.worse(smaller));
        }
        let is_percentile = latency_of != LatencyOf::Mean;
        let axis = |axis: usize| {
            let levels = grid.levels(axis);
            (pieces(levels), between(levels, is_percentile, margin))
        };
        let axes: [_; AXES] = std::array::from_fn(axis);
        let mut surface = Self {
            pieces: axes.clone().map(|(pieces, _)| pieces),
            between: axes.map(|(_, between)| between),
            grid,
            points,
            blocks: Vec::new(),
        };
        let pieces_of = |axis: usize| surface.pieces[axis].iter();
        let pairs = pieces_of(S).flat_map(|s| pieces_of(C).map(move |c| (*s, *c)));
        surface.blocks = pairs.map(|(s, c)| surface.block(s, c)).collect();
        surface
    }

    /// What `configuration` is expected to do; `None` where not enough was measured.
    #[must_use]
    pub fn predict(&self, configuration: Configuration) -> Option<Prediction> {
        let Configuration { c, s, b, q } = configuration;
        if !self.grid.space().contains(configuration) {
            return None;
        }
        let mut between = [Between::on(0); AXES];
        for (axis, value) in [(S, s), (C, c), (Q, q), (B, b)] {
            between[axis] = *self.between[axis].get(value as usize)?;
        }
        self.reduce(&between, [0; AXES], AXES)
    }

    /// Blends axes from the last to the first of `axes`, which is the one that is blended first of all: the
    /// order S, C, Q, B from the inside out.
    fn reduce(
        &self,
        between: &[Between; AXES],
        mut position: Position,
        axes: usize,
    ) -> Option<Prediction> {
        let Some(axis) = axes.checked_sub(1) else {
            return self.points[self.grid.index(position)];
        };
        let here = between[axis];
        position[axis] = here.low;
        let low = self.reduce(between, position, axis)?;
        if here.linear == 0.0 {
            return Some(low);
        }
        position[axis] += 1;
        let high = self.reduce(between, position, axis)?;
        Some(here.blend(low, high))
    }

    /// What is predicted for s and c with b and q on levels: corners of parts.
    pub(super) fn corner(&self, s: u32, c: u32, q: usize, b: usize) -> Option<Prediction> {
        let mut between = [Between::on(0); AXES];
        between[S] = *self.between[S].get(s as usize)?;
        between[C] = *self.between[C].get(c as usize)?;
        between[Q] = Between::on(q);
        between[B] = Between::on(b);
        self.reduce(&between, [0; AXES], AXES)
    }

    pub(super) fn between(&self, axis: usize, value: u32) -> Between {
        self.between[axis][value as usize]
    }

    /// Which configurations it was made for; those above the highest levels have no prediction.
    #[must_use]
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Measured points with their predictions, in the order of a survey.
    pub fn points(&self) -> impl Iterator<Item = (Configuration, Prediction)> + use<'_> {
        self.grid.positions().filter_map(|position| {
            let point = self.points[self.grid.index(position)]?;
            Some((self.grid.at(position)?, point))
        })
    }

    /// Blocks by their piece of S and C.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (Piece, Piece, &Block)> {
        let pieces = |axis: usize| self.pieces[axis].iter();
        let pairs = pieces(S).flat_map(move |s| pieces(C).map(move |c| (*s, *c)));
        pairs.zip(&self.blocks).map(|((s, c), block)| (s, c, block))
    }

    fn block(&self, s: Piece, c: Piece) -> Block {
        let pieces = |axis: usize| self.pieces[axis].iter();
        let pairs = pieces(B).flat_map(|b| pieces(Q).map(move |q| (*b, *q)));
        let parts: Vec<Part> = pairs
            .filter_map(|(b, q)| {
                let mut piece = [s; AXES];
                (piece[C], piece[Q], piece[B]) = (c, q, b);
                let bound = self.bound(&piece)?;
                Some(Part { b, q, bound })
            })
            .collect();
        let bounds = parts.iter().map(|part| part.bound);
        Block {
            bound: bounds.fold(WORST, Prediction::better),
            parts,
        }
    }

    /// The best of all corners in each; `None` if one was not measured.
    fn bound(&self, pieces: &[Piece; AXES]) -> Option<Prediction> {
        let mut best = WORST;
        for corner in 0..1_usize << AXES {
            let mut position = [0; AXES];
            for (axis, piece) in pieces.iter().enumerate() {
                let is_high = corner >> axis & 1 == 1;
                position[axis] = if is_high { piece.high } else { piece.low };
            }
            best = best.better(self.points[self.grid.index(position)]?);
        }
        Some(best)
    }
}

/// Levels, and what lies between them where something does, in the order of their values.
fn pieces(levels: &[u32]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (index, &level) in levels.iter().enumerate() {
        pieces.push(Piece {
            low: index,
            high: index,
            first: level,
            last: level,
        });
        if let Some(&next) = levels.get(index + 1)
            && next - level > 1
        {
            pieces.push(Piece {
                low: index,
                high: index + 1,
                first: level + 1,
                last: next - 1,
            });
        }
    }
    pieces
}

/// Where each value lies, from 0 to the highest level.
fn between(levels: &[u32], is_percentile: bool, margin: f64) -> Vec<Between> {
    let highest = levels.last().copied().unwrap_or(0);
    let place = |value: u32| {
        let low = levels.partition_point(|level| *level <= value).max(1) - 1;
        let level = levels[low];
        if value <= level {
            return Between::on(low);
        }
        let (from, to, at) = (
            f64::from(level),
            f64::from(levels[low + 1]),
            f64::from(value),
        );
        Between {
            low,
            linear: (at - from) / (to - from),
            logarithmic: (at / from).log2() / (to / from).log2(),
            is_percentile,
            margin,
        }
    };
    (0..=highest).map(place).collect()
}

#[cfg(test)]
mod tests;
