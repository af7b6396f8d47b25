//! How often a batch of evicted slabs spares every busy one.
//!
//! The formula of figure 8 beside the evictor of `cenote_pool`, which hosts call: it draws E + E'
//! of the slabs of a host, is told their activities, and gives up the E least active. Each slab is
//! busy with probability p on its own; a batch succeeds when no victim is busy.
//!
//! Paper: \[infiniswap17\] 5.2, figure 8.

use anyhow::{Result, ensure};
use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use cenote_measure::random::Random;
use cenote_pool::eviction::{draw, least_active};
use serde::Serialize;

/// A batch, and how often it is tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Slabs that go: E.
    pub evict: u32,
    /// Slabs that are asked for beside them: E'.
    pub extra: u32,
    /// Share of slabs that are busy, 0 to 1.
    pub busy: f64,
    /// Batches.
    pub runs: u32,
    /// Random seed.
    pub seed: u64,
}

/// How often no victim was busy. The JSON has exactly these keys, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// By the formula.
    pub analytic: f64,
    /// By the evictor.
    pub simulated: f64,
}

/// A cell of figure 8. Its JSON line has exactly these keys, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// E.
    pub evict: u32,
    /// E'.
    pub extra: u32,
    /// Share of slabs that are busy.
    pub busy: f64,
    /// By the formula.
    pub analytic: f64,
    /// By the evictor.
    pub simulated: f64,
}

/// Most slabs of a batch. Arbitrary.
pub const EVICT_MAX: u32 = 1000;
/// Slabs of the host for each that is asked for: the draw is a choice, too.
const SLABS_FOR_EACH: u32 = 4;
/// Page I/Os per second, in thousandths, from which on a slab is busy here: the paper's HotSlab.
/// Idle ones have any activity below it.
const BUSY_MILLI: u64 = 20_000;
/// The busiest have this.
const BUSIEST_MILLI: u64 = 10_000_000;

/// Both figures of one batch size.
///
/// # Errors
/// Options that make no sense.
pub fn run(options: &Options) -> Result<Figure> {
    let &Options {
        evict,
        extra,
        busy,
        runs,
        seed,
    } = options;
    ensure!(runs > 0, "no runs: nothing to simulate");
    ensure!(
        (1..=EVICT_MAX).contains(&evict),
        "a batch has 1 to {EVICT_MAX} slabs"
    );
    ensure!(extra <= EVICT_MAX, "at most {EVICT_MAX} more are asked");
    let mut random = Random::new(seed);
    let slabs: Vec<u32> = (0..(evict + extra) * SLABS_FOR_EACH).collect();
    let spared = (0..runs)
        .filter(|_| spares_the_busy(&slabs, options, &mut random))
        .count();
    Ok(Figure {
        analytic: analytic(evict, extra, busy),
        simulated: spared as f64 / f64::from(runs),
    })
}

/// One batch: whether none of its victims was busy.
fn spares_the_busy(slabs: &[u32], options: &Options, random: &mut Random) -> bool {
    let (evict, extra) = (options.evict as usize, options.extra as usize);
    // A host asks for E' up to E; the formula knows no such bound.
    let (count, more) = if extra <= evict {
        (evict, extra)
    } else {
        (evict + extra, 0)
    };
    let asked: Vec<(u64, Option<u32>)> = draw(slabs, count, more, random.next())
        .into_iter()
        .map(|_| {
            let milli = if random.unit() < options.busy {
                random.between(BUSY_MILLI, BUSIEST_MILLI)
            } else {
                random.below(BUSY_MILLI)
            };
            let activity = u32::try_from(milli).expect("BUSIEST_MILLI fits 32 bits");
            (milli, Some(activity))
        })
        .collect();
    let victims = least_active(&asked, evict);
    victims.len() == evict && victims.iter().all(|&milli| milli < BUSY_MILLI)
}

/// Every E' up to `extra_max`, for every share in `busy`.
///
/// # Errors
/// As [`run`].
pub fn sweep(evict: u32, extra_max: u32, busy: &[f64], runs: u32, seed: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &busy in busy {
        for extra in 0..=extra_max {
            let options = Options {
                evict,
                extra,
                busy,
                runs,
                seed: seed.wrapping_add(rows.len() as u64),
            };
            let Figure {
                analytic,
                simulated,
            } = run(&options)?;
            rows.push(Row {
                evict,
                extra,
                busy,
                analytic,
                simulated,
            });
        }
    }
    Ok(rows)
}

/// Shares of figure 8: 0.05 to 0.6.
#[must_use]
pub fn figure_8_shares() -> Vec<f64> {
    (1..=12_u32).map(|step| f64::from(step) / 20.0).collect()
}

/// The paper's formula: at least E of E + E' slabs are idle, each busy with probability `busy`.
///
/// Sums in logarithms, so that large batches neither overflow nor vanish.
#[must_use]
pub fn analytic(evict: u32, extra: u32, busy: f64) -> f64 {
    let asked = evict + extra;
    let (idle_ln, busy_ln) = ((1.0 - busy).ln(), busy.ln());
    let mut choose_ln = 0.0_f64;
    let mut sum = 0.0_f64;
    // From all idle (i = asked) down to E of them; C(n, n) = 1, C(n, i-1) = C(n, i) i / (n-i+1).
    for idle in (evict..=asked).rev() {
        let busy_count = asked - idle;
        let of_busy = if busy_count == 0 {
            0.0
        } else {
            f64::from(busy_count) * busy_ln
        };
        let of_idle = if idle == 0 {
            0.0
        } else {
            f64::from(idle) * idle_ln
        };
        sum += (choose_ln + of_idle + of_busy).exp();
        if idle > 0 {
            choose_ln += (f64::from(idle) / f64::from(busy_count + 1)).ln();
        }
    }
    sum.min(1.0)
}

/// One row for each cell.
#[must_use]
pub fn csv(rows: &[Row]) -> Csv {
    let mut csv = Csv::new("evict,extra,busy,analytic,simulated");
    for row in rows {
        csv.row(&[
            &row.evict,
            &row.extra,
            &row.busy,
            &row.analytic,
            &row.simulated,
        ]);
    }
    csv
}

/// A line for each of some E' over the shares of busy slabs, as in figure 8; over E' where there
/// is one share. The evictor's figures are circles.
#[must_use]
pub fn plot(rows: &[Row]) -> Plot {
    let (first, last) = (rows.first(), rows.last());
    let evict = first.map_or(0, |row| row.evict);
    let (x, lines) = match (first, last) {
        (Some(first), Some(last)) if first.busy < last.busy => {
            let shown = DRAWN.into_iter().filter(|extra| *extra <= last.extra);
            let line = |extra: u32| {
                let of_extra = rows.iter().filter(|row| row.extra == extra);
                let cells = of_extra.map(|row| (row.busy, row.analytic, row.simulated));
                line(&format!("E' = {extra}"), cells.collect())
            };
            (0.0..last.busy + 0.05, shown.map(line).collect())
        }
        _ => {
            let cells = rows.iter();
            let cells = cells.map(|row| (f64::from(row.extra), row.analytic, row.simulated));
            let name = format!("p = {}", first.map_or(0.0, |row| row.busy));
            let most = last.map_or(1.0, |row| f64::from(row.extra.max(1)));
            (0.0..most, vec![line(&name, cells.collect())])
        }
    };
    Plot {
        title: format!("No busy slab among {evict} evicted: formula, and evictor (circles)"),
        x_label: if lines.len() > 1 {
            "share of slabs that are busy"
        } else {
            "E', slabs asked for beside those that go"
        },
        y_label: "probability",
        x,
        x_scale: Scale::Linear,
        y: 0.0..1.02,
        lines,
        legend: Legend::UpperRight,
    }
}

/// E' that are drawn; all would be too many lines.
const DRAWN: [u32; 7] = [0, 1, 2, 3, 5, 7, 10];

fn line(name: &str, cells: Vec<(f64, f64, f64)>) -> Line {
    Line {
        marks: cells.iter().map(|&(x, _, marked)| (x, marked)).collect(),
        ..Line::new(name, cells.iter().map(|&(x, y, _)| (x, y)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Figure 8 for E = 10: p, then E' = 0, 1, 2, 3, 5 and 10; digits as they were read off.
    const FIGURE_8: [(f64, [&str; 6]); 7] = [
        (0.05, ["0.599", "0.898", "0.980", "0.997", "1.000", "1.000"]),
        (0.10, ["0.349", "0.697", "0.889", "0.966", "0.998", "1.000"]),
        (0.20, ["0.107", "0.322", "0.558", "0.747", "0.939", "0.999"]),
        (0.30, ["0.028", "0.113", "0.253", "0.421", "0.722", "0.983"]),
        (0.40, ["0.006", "0.030", "0.083", "0.169", "0.403", "0.872"]),
        (0.50, ["0.001", "0.006", "0.019", "0.046", "0.151", "0.588"]),
        (
            0.60,
            ["0.0001", "0.0007", "0.0028", "0.0078", "0.034", "0.245"],
        ),
    ];

    #[test]
    fn the_formula_gives_figure_8_to_its_digits() {
        for (busy, row) in FIGURE_8 {
            for (extra, text) in [0, 1, 2, 3, 5, 10].into_iter().zip(row) {
                let digits = text.len() - 2;
                let found = analytic(10, extra, busy);
                assert_eq!(format!("{found:.digits$}"), text, "p {busy}, E' {extra}");
            }
        }
    }

    #[test]
    fn the_edges_are_certain() {
        for extra in [0, 1, 10] {
            assert!((analytic(10, extra, 0.0) - 1.0).abs() < 1e-12);
            assert!(analytic(10, extra, 1.0) < 1e-300);
            assert!((analytic(0, extra, 0.3) - 1.0).abs() < 1e-12);
        }
    }

    /// Four standard deviations, of a share that is neither 0 nor 1 for sure.
    fn agrees(row: &Row, runs: u32) -> bool {
        let variance = row.analytic * (1.0 - row.analytic) / f64::from(runs);
        (row.simulated - row.analytic).abs() <= 4.0 * variance.sqrt() + 0.5 / f64::from(runs)
    }

    #[test]
    fn the_evictor_is_as_good_as_the_formula_says() {
        const RUNS: u32 = 2000;
        let rows = sweep(10, 10, &figure_8_shares(), RUNS, 1).unwrap();
        assert_eq!(rows.len(), 12 * 11);
        for row in &rows {
            assert!(agrees(row, RUNS), "{row:?}");
        }
        // A thousandth of the cells may lie outside; of 132 none does. The bound does tell:
        let wrong = Row {
            extra: 3,
            ..rows[7 * 11 + 2]
        };
        let wrong = Row {
            analytic: analytic(wrong.evict, wrong.extra, wrong.busy),
            ..wrong
        };
        assert!(!agrees(&wrong, RUNS), "E' of 3 is told from 2: {wrong:?}");
    }

    #[test]
    fn more_than_twice_as_many_may_be_asked() {
        const RUNS: u32 = 2000;
        for row in sweep(2, 9, &[0.4, 0.7], RUNS, 1).unwrap() {
            assert!(agrees(&row, RUNS), "{row:?}");
        }
    }

    #[test]
    fn the_seed_decides() {
        let with = |seed| {
            let options = Options {
                evict: 10,
                extra: 2,
                busy: 0.3,
                runs: 500,
                seed,
            };
            run(&options).unwrap()
        };
        assert_eq!(with(1), with(1));
        assert_ne!(with(1).simulated, with(2).simulated);
        assert_eq!(with(1).analytic, with(2).analytic);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let fine = Options {
            evict: 10,
            extra: 10,
            busy: 0.3,
            runs: 10,
            seed: 1,
        };
        assert!(run(&fine).is_ok());
        for wrong in [
            Options { runs: 0, ..fine },
            Options {
                evict: 0,
                extra: 0,
                ..fine
            },
            Options {
                extra: EVICT_MAX + 1,
                ..fine
            },
            Options {
                evict: EVICT_MAX + 1,
                ..fine
            },
        ] {
            assert!(run(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn rows_make_a_table_and_a_picture() {
        let rows = sweep(10, 10, &[0.1, 0.2], 10, 1).unwrap();
        assert_eq!(csv(&rows).text().lines().count(), 1 + 2 * 11);
        let svg = plot(&rows).svg().unwrap();
        assert_eq!(svg.matches(" = ").count(), DRAWN.len(), "{svg}");
        let one = sweep(10, 2, &[0.3], 10, 1).unwrap();
        assert!(plot(&one).svg().unwrap().contains("p = 0.3"));
        let single = sweep(10, 0, &[0.3], 10, 1).unwrap();
        assert!(plot(&single).svg().is_ok());
    }

    proptest! {
        /// Small enough to try every pattern of busy slabs.
        #[test]
        fn the_formula_is_the_sum_over_all_patterns(
            evict in 0_u32..6,
            extra in 0_u32..6,
            busy in 0.0_f64..1.0,
        ) {
            let asked = evict + extra;
            let patterns = 0_u32..1 << asked;
            let likely = patterns
                .filter(|pattern| asked - pattern.count_ones() >= evict)
                .map(|pattern| {
                    let busy_count = pattern.count_ones();
                    busy.powi(busy_count.cast_signed())
                        * (1.0 - busy).powi((asked - busy_count).cast_signed())
                })
                .sum::<f64>();
            prop_assert!((analytic(evict, extra, busy) - likely).abs() < 1e-9);
        }

        #[test]
        fn asking_more_or_being_less_busy_never_hurts(
            evict in 1_u32..40,
            extra in 0_u32..40,
            busy in 0.01_f64..0.99,
        ) {
            let here = analytic(evict, extra, busy);
            prop_assert!(analytic(evict, extra + 1, busy) >= here - 1e-9);
            prop_assert!(analytic(evict, extra, busy * 0.9) >= here - 1e-9);
            prop_assert!((0.0..=1.0).contains(&here));
        }
    }
}
