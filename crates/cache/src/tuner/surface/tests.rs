use proptest::prelude::*;

use super::*;
use crate::Space;
use crate::tuner::{Measurement, Spacing};

fn table(
    space: Space,
    spacing: Spacing,
    measured: impl Fn(Configuration) -> Option<(f64, f64)>,
) -> Table {
    let grid = Grid::new(space, spacing);
    let mut table = Table::new(grid.clone());
    let points = grid.positions().filter_map(|position| grid.at(position));
    for configuration in points {
        if let Some((throughput, latency)) = measured(configuration) {
            let measurement = Measurement::new(throughput, latency, latency, latency).unwrap();
            table.insert(configuration, measurement).unwrap();
        }
    }
    table
}

fn alone(table: &Table) -> Surface {
    Surface::new(table, table, LatencyOf::Mean, 0.0)
}

#[test]
fn a_line_over_the_parameter_is_met_and_one_over_its_logarithm_is_not_trusted() {
    let space = Space::new(8, 0, 1, 1).unwrap();
    // Each thread adds as much as the one before.
    let linear = alone(&table(space, Spacing::Powers, |one| {
        Some((f64::from(one.c), 5.0))
    }));
    for c in 1..=8 {
        let prediction = linear
            .predict(Configuration {
                c,
                s: 0,
                b: 1,
                q: 1,
            })
            .unwrap();
        assert!((prediction.throughput_per_second - f64::from(c)).abs() < 1e-9);
        assert_eq!(prediction.latency_us, 5.0);
    }
    // A fall is taken to come early: over logarithms more of the way is done at 6 of 4 to 8.
    let falling = alone(&table(space, Spacing::Powers, |one| {
        Some((100.0 - f64::from(one.c), f64::from(one.c)))
    }));
    let at_6 = falling
        .predict(Configuration {
            c: 6,
            s: 0,
            b: 1,
            q: 1,
        })
        .unwrap();
    let share = 1.5_f64.log2();
    assert!((at_6.throughput_per_second - (96.0 - 4.0 * share)).abs() < 1e-9);
    assert!((at_6.latency_us - (4.0 + 4.0 * share)).abs() < 1e-9);
}

#[test]
fn a_percentile_between_two_levels_is_that_of_the_higher_end() {
    let space = Space::new(8, 0, 1, 1).unwrap();
    let table = table(space, Spacing::Powers, |one| Some((1.0, f64::from(one.c))));
    let surface = Surface::new(&table, &table, LatencyOf::P99, 0.0);
    let latency = |c| {
        let configuration = Configuration {
            c,
            s: 0,
            b: 1,
            q: 1,
        };
        surface.predict(configuration).unwrap().latency_us
    };
    assert_eq!((latency(4), latency(5), latency(7)), (4.0, 8.0, 8.0));
}

#[test]
fn nothing_is_predicted_where_a_corner_with_a_say_is_missing() {
    let space = Space::new(8, 8, 1, 1).unwrap();
    let all = alone(&table(space, Spacing::Powers, |_| Some((1.0, 1.0))));
    let at = |c, s| all.predict(Configuration { c, s, b: 1, q: 1 }).is_some();
    assert!(at(8, 3) && at(3, 2) && at(3, 0) && at(5, 2) && at(5, 3));
    // The cell of (3, 3) has a corner with more server than client threads.
    assert!(!at(3, 3));
    let hole = alone(&table(space, Spacing::Powers, |one| {
        (one.c != 4 || one.s != 2).then_some((1.0, 1.0))
    }));
    let at = |c, s| hole.predict(Configuration { c, s, b: 1, q: 1 }).is_some();
    assert!(at(4, 1) && at(8, 2) && at(3, 1) && at(8, 3));
    assert!(!at(4, 2) && !at(5, 2) && !at(3, 2) && !at(5, 3));
}

#[test]
fn the_last_power_of_two_is_the_end_unless_ends_are_measured() {
    let space = Space::new(30, 0, 1, 1).unwrap();
    for (spacing, last) in [(Spacing::Powers, 16), (Spacing::PowersAndEnds, 30)] {
        let surface = alone(&table(space, spacing, |_| Some((1.0, 1.0))));
        let predicted = (1..=31).filter(|&c| {
            let configuration = Configuration {
                c,
                s: 0,
                b: 1,
                q: 1,
            };
            surface.predict(configuration).is_some()
        });
        assert_eq!(predicted.max(), Some(last));
    }
}

#[test]
fn between_two_sizes_of_records_the_worse_of_both_counts() {
    let table = |record_bytes, throughput, latency| {
        let space = Space::PAPER.for_record(record_bytes);
        table(space, Spacing::PowersAndEnds, |_| {
            Some((throughput, latency))
        })
    };
    let (small, large) = (table(24, 90.0, 6.0), table(100, 70.0, 5.0));
    let surface = Surface::new(&large, &small, LatencyOf::Mean, 0.0);
    let configuration = |b| Configuration {
        c: 2,
        s: 1,
        b,
        q: 1,
    };
    let prediction = surface.predict(configuration(32)).unwrap();
    assert_eq!(
        (prediction.throughput_per_second, prediction.latency_us),
        (70.0, 6.0)
    );
    // Of the ends, 171 and 41, the other table has neither.
    assert!(surface.predict(configuration(33)).is_none());
}

/// Positive values of a parameter from 1 on, each step less than the one before: concave.
fn concave(steps: &[f64], first: f64) -> Vec<f64> {
    let mut steps = steps.to_vec();
    steps.sort_by(|one, other| other.total_cmp(one));
    let mut values = vec![first];
    for step in steps {
        let last = values.last().copied().unwrap();
        values.push(last + step);
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    values
        .iter()
        .map(|value| value - least.min(0.0) + 0.1)
        .collect()
}

fn steps(count: usize) -> impl Strategy<Value = Vec<f64>> {
    (
        0.0_f64..3.0,
        proptest::collection::vec(-2.0_f64..3.0, count),
    )
        .prop_map(|(first, steps)| concave(&steps, first))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// A surface of diminishing returns: concave along each parameter, which may rise and then fall.
    #[test]
    fn where_returns_diminish_no_prediction_is_better_than_the_truth(
        c in steps(7), s in steps(7), b in steps(15), q in steps(8),
        ends: bool,
    ) {
        let space = Space::new(8, 8, 16, 9).unwrap();
        let spacing = if ends { Spacing::PowersAndEnds } else { Spacing::Powers };
        let truth = |one: Configuration| {
            let at = |values: &[f64], value: u32| values[value as usize - 1];
            let servers = if one.s == 0 { 0.7 } else { at(&s, one.s) };
            let throughput = servers * at(&c, one.c) * at(&b, one.b) * at(&q, one.q);
            // 1/concave is convex.
            (throughput, 1.0 / throughput)
        };
        let surface = alone(&table(space, spacing, |one| Some(truth(one))));
        for configuration in space.iter() {
            let Some(prediction) = surface.predict(configuration) else {
                continue;
            };
            let (throughput, latency) = truth(configuration);
            let nearly = 1.0 + 1e-9;
            prop_assert!(
                prediction.throughput_per_second <= throughput * nearly,
                "{configuration}: {prediction:?} above {throughput}"
            );
            prop_assert!(
                prediction.latency_us * nearly >= latency,
                "{configuration}: {prediction:?} below {latency}"
            );
            if surface.grid().find(configuration).is_some() {
                prop_assert_eq!(prediction.throughput_per_second, throughput);
                prop_assert_eq!(prediction.latency_us, latency);
            }
        }
    }

    /// Whatever the surface is, predictions stay within the corners of their cell.
    #[test]
    fn every_prediction_lies_within_the_bound_of_its_part(
        values in proptest::collection::vec(1.0_f64..100.0, 500),
    ) {
        let space = Space::new(6, 5, 6, 3).unwrap();
        let next = std::cell::Cell::new(0);
        let surface = alone(&table(space, Spacing::Powers, |_| {
            let at = next.replace(next.get() + 2);
            Some((values[at % 500], values[(at + 1) % 500]))
        }));
        let mut seen = 0;
        for (s_piece, c_piece, block) in surface.blocks() {
            for part in &block.parts {
                for s in s_piece.first..=s_piece.last {
                    for c in c_piece.first..=c_piece.last {
                        for b in part.b.first..=part.b.last {
                            for q in part.q.first..=part.q.last {
                                let prediction = surface.predict(Configuration { c, s, b, q }).unwrap();
                                prop_assert!(part.bound.meets(&prediction));
                                prop_assert!(block.bound.meets(&part.bound));
                                seen += 1;
                            }
                        }
                    }
                }
            }
        }
        let predicted = space.iter().filter(|one| surface.predict(*one).is_some()).count();
        prop_assert_eq!(seen, predicted);
    }
}
