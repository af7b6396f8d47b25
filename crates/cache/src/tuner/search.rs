//! The cheapest configuration that is expected to do what is asked.
//!
//! The answer is that of a scan over the whole space in the order of cost; the space is searched by pieces
//! in which predictions go one way. A block or part whose best corner is too slow is passed over
//! unseen; within a part the batches that do are found by bisection.
//!
//! Paper: \[redy22\], online search.

use super::grid::{B, Q};
use super::surface::{Between, Block, Part, Piece, Prediction, Surface};
use crate::{Configuration, Slo};

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The cheapest that is expected to do it.
    pub configuration: Configuration,
    /// What it is expected to do.
    pub prediction: Prediction,
}

/// Nothing does what was asked. What does come nearest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refusal {
    /// The highest throughput within the latency that was asked for; `None` if that is too short for any.
    pub within_latency: Option<Found>,
    /// The shortest latency at the throughput that was asked for; `None` if that is too high for any.
    pub at_throughput: Option<Found>,
}

impl Surface {
    /// The cheapest configuration that is expected to meet `slo`, whose record and latency are those that
    /// this surface was made for.
    ///
    /// # Errors
    /// There is none; what can be had is in the refusal. Asking again helps with a smaller wish only.
    pub fn search(&self, slo: &Slo) -> Result<Found, Box<Refusal>> {
        let wish = Prediction {
            throughput_per_second: slo.throughput_per_second,
            latency_us: slo.latency_us,
        };
        match self.cheapest(&wish) {
            Some(found) => Ok(found),
            None => Err(Box::new(self.refusal(&wish))),
        }
    }

    /// The cheapest configuration that does as well as `wish`.
    fn cheapest(&self, wish: &Prediction) -> Option<Found> {
        let blocks: Vec<(Piece, Piece, Vec<&Part>)> = self
            .blocks()
            .filter(|(_, _, block)| block.bound.meets(wish))
            .map(|(s, c, block)| (s, c, promising(block, wish)))
            .filter(|(_, _, parts)| !parts.is_empty())
            .collect();
        // Blocks of one piece of S are neighbours, in the order of C.
        for of_one_piece in blocks.chunk_by(|one, next| one.0.first == next.0.first) {
            let Some((piece, ..)) = of_one_piece.first() else {
                continue;
            };
            for s in piece.first..=piece.last {
                for (_, c_piece, parts) in of_one_piece {
                    let threads = c_piece.first.max(s)..=c_piece.last;
                    let found = threads
                        .into_iter()
                        .find_map(|c| self.in_parts(s, c, parts, wish));
                    if found.is_some() {
                        return found;
                    }
                }
            }
        }
        None
    }

    /// The cheapest with these threads. `parts` are in the order of b, then of q.
    fn in_parts(&self, s: u32, c: u32, parts: &[&Part], wish: &Prediction) -> Option<Found> {
        for of_one_batch in parts.chunk_by(|one, next| one.b.first == next.b.first) {
            let mut best: Option<(u32, u32)> = None;
            for part in of_one_batch {
                let Some(lines) = Lines::new(self, s, c, part) else {
                    continue;
                };
                if !lines.bound().meets(wish) {
                    continue;
                }
                for q in part.q.first..=part.q.last {
                    let line = lines.along(self.between(Q, q));
                    if let Some((b, _)) = line.batches(self, wish) {
                        best = Some(best.map_or((b, q), |best| best.min((b, q))));
                    }
                }
            }
            if let Some((b, q)) = best {
                return self.found(Configuration { c, s, b, q });
            }
        }
        None
    }

    fn found(&self, configuration: Configuration) -> Option<Found> {
        let prediction = self.predict(configuration)?;
        Some(Found {
            configuration,
            prediction,
        })
    }

    fn refusal(&self, wish: &Prediction) -> Refusal {
        let throughput = |found: &Found| found.prediction.throughput_per_second;
        let latency = |found: &Found| -found.prediction.latency_us;
        let any_throughput = Prediction {
            throughput_per_second: 0.0,
            ..*wish
        };
        let any_latency = Prediction {
            latency_us: f64::INFINITY,
            ..*wish
        };
        Refusal {
            within_latency: self.best(&any_throughput, throughput, |wish, found| Prediction {
                throughput_per_second: found.prediction.throughput_per_second.next_up(),
                ..*wish
            }),
            at_throughput: self.best(&any_latency, latency, |wish, found| Prediction {
                latency_us: found.prediction.latency_us.next_down(),
                ..*wish
            }),
        }
    }

    /// Of what does as well as `wish` the one of the highest `worth`. `beyond` is the wish for something better
    /// than what was found.
    fn best(
        &self,
        wish: &Prediction,
        worth: impl Fn(&Found) -> f64,
        beyond: impl Fn(&Prediction, &Found) -> Prediction,
    ) -> Option<Found> {
        let points = self.points().map(|(configuration, prediction)| Found {
            configuration,
            prediction,
        });
        // A measured point is a good start: whatever is no better than it is passed over.
        let mut best = points
            .filter(|found| found.prediction.meets(wish))
            .max_by(|one, other| {
                let by_cost = other.configuration.cmp(&one.configuration);
                worth(one).total_cmp(&worth(other)).then(by_cost)
            });
        let mut wish = match &best {
            Some(found) => beyond(wish, found),
            None => *wish,
        };
        for (s_piece, c_piece, block) in self.blocks() {
            for s in s_piece.first..=s_piece.last {
                for c in c_piece.first.max(s)..=c_piece.last {
                    if !block.bound.meets(&wish) {
                        break;
                    }
                    for part in &block.parts {
                        if !part.bound.meets(&wish) {
                            continue;
                        }
                        let better = self.best_in_part(s, c, part, &wish, &worth);
                        if let Some(found) = better {
                            wish = beyond(&wish, &found);
                            best = Some(found);
                        }
                    }
                }
            }
        }
        best
    }

    fn best_in_part(
        &self,
        s: u32,
        c: u32,
        part: &Part,
        wish: &Prediction,
        worth: impl Fn(&Found) -> f64,
    ) -> Option<Found> {
        let lines = Lines::new(self, s, c, part)?;
        if !lines.bound().meets(wish) {
            return None;
        }
        let mut best: Option<Found> = None;
        for q in part.q.first..=part.q.last {
            let line = lines.along(self.between(Q, q));
            let Some((first, last)) = line.batches(self, wish) else {
                continue;
            };
            // Both go one way from the first to the last.
            for b in [first, last] {
                let found = self.found(Configuration { c, s, b, q })?;
                if best.is_none_or(|best| worth(&found) > worth(&best)) {
                    best = Some(found);
                }
            }
        }
        best
    }
}

fn promising<'a>(block: &'a Block, wish: &Prediction) -> Vec<&'a Part> {
    let parts = block.parts.iter();
    parts.filter(|part| part.bound.meets(wish)).collect()
}

/// A part with its threads decided: predictions at its corners.
struct Lines {
    b: Piece,
    /// At the lower and the upper level of b, for the lower level of q; and the same for the upper.
    low_q: [Prediction; 2],
    high_q: [Prediction; 2],
}

impl Lines {
    fn new(surface: &Surface, s: u32, c: u32, part: &Part) -> Option<Self> {
        let at = |q: usize| {
            let low = surface.corner(s, c, q, part.b.low)?;
            let is_level = part.b.low == part.b.high;
            let high = match is_level {
                true => low,
                false => surface.corner(s, c, q, part.b.high)?,
            };
            Some([low, high])
        };
        let low_q = at(part.q.low)?;
        let is_level = part.q.low == part.q.high;
        Some(Self {
            b: part.b,
            low_q,
            high_q: if is_level { low_q } else { at(part.q.high)? },
        })
    }

    /// Nothing between the corners is better than this.
    fn bound(&self) -> Prediction {
        let corners = self.low_q.into_iter().chain(self.high_q);
        let better = corners.reduce(|one, other| Prediction {
            throughput_per_second: one.throughput_per_second.max(other.throughput_per_second),
            latency_us: one.latency_us.min(other.latency_us),
        });
        better.expect("four corners")
    }

    /// With q decided, too.
    fn along(&self, q: Between) -> Line {
        Line {
            b: self.b,
            low: q.blend(self.low_q[0], self.high_q[0]),
            high: q.blend(self.low_q[1], self.high_q[1]),
        }
    }
}

/// Predictions by b alone: both figures go one way along it.
struct Line {
    b: Piece,
    low: Prediction,
    high: Prediction,
}

impl Line {
    fn at(&self, surface: &Surface, b: u32) -> Prediction {
        match self.b.low == self.b.high {
            true => self.low,
            false => surface.between(B, b).blend(self.low, self.high),
        }
    }

    /// The first and the last batch that do as well as `wish`; all between them do, too.
    fn batches(&self, surface: &Surface, wish: &Prediction) -> Option<(u32, u32)> {
        let fast = |b: u32| self.at(surface, b).throughput_per_second >= wish.throughput_per_second;
        let short = |b: u32| self.at(surface, b).latency_us <= wish.latency_us;
        let (first, last) = (self.b.first, self.b.last);
        let rises = self.high.throughput_per_second >= self.low.throughput_per_second;
        let of_throughput = run(first, last, rises, fast)?;
        let rises = self.high.latency_us <= self.low.latency_us;
        let of_latency = run(first, last, rises, short)?;
        let (first, last) = (
            of_throughput.0.max(of_latency.0),
            of_throughput.1.min(of_latency.1),
        );
        (first <= last).then_some((first, last))
    }
}

/// The run of values that do, which holds `last` if `at_end`, else `first`.
fn run(first: u32, last: u32, at_end: bool, does: impl Fn(u32) -> bool) -> Option<(u32, u32)> {
    if !does(if at_end { last } else { first }) {
        return None;
    }
    // Invariant: `inside` does; the border is between `outside` and `inside`.
    let (mut inside, mut outside) = if at_end { (last, first) } else { (first, last) };
    if does(outside) {
        return Some((first, last));
    }
    while inside.abs_diff(outside) > 1 {
        let middle = inside.midpoint(outside);
        if does(middle) {
            inside = middle;
        } else {
            outside = middle;
        }
    }
    Some(if at_end {
        (inside, last)
    } else {
        (first, inside)
    })
}

#[cfg(test)]
mod tests;
