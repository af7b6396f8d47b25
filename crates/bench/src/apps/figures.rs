//! From measurements to rows: medians over rounds, ours beside each peer of the same round.

use super::Row;
use super::slot::Slot;

/// Where a figure comes from: one of the slots at a limit, or memory alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct FigureSource {
    pub(super) slot: Option<Slot>,
    /// Per cent of the peak.
    pub(super) limit: u8,
}

/// One figure of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    pub(super) place: FigureSource,
    pub(super) round: usize,
    pub(super) metric: &'static str,
    pub(super) unit: &'static str,
    pub(super) value: f64,
    /// `None` of what is neither good nor bad.
    pub(super) more_is_better: Option<bool>,
}

/// Every figure of one program.
#[derive(Default)]
pub(super) struct Figures(Vec<Figure>);

impl Figures {
    pub(super) fn push(&mut self, figure: Figure) {
        self.0.push(figure);
    }

    /// One figure, if it was measured.
    pub(super) fn of(&self, place: FigureSource, round: usize, metric: &str) -> Option<f64> {
        let found = self.0.iter().find(|figure| {
            figure.place == place && figure.round == round && figure.metric == metric
        });
        found.map(|figure| figure.value)
    }

    /// Rows of our slots beside all others, and beside memory alone, at each limit.
    pub(super) fn rows(&self, program: &str, name: &dyn Fn(Slot) -> String) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut limits: Vec<u8> = self.0.iter().map(|figure| figure.place.limit).collect();
        limits.sort_unstable();
        limits.dedup();
        for limit in limits.into_iter().rev().filter(|limit| *limit < 100) {
            for ours in Slot::ALL.into_iter().filter(|slot| slot.is_ours()) {
                for (metric, unit, more_is_better) in self.metrics() {
                    let mine = FigureSource {
                        slot: Some(ours),
                        limit,
                    };
                    let peers = Slot::ALL.into_iter().filter(|slot| !slot.is_ours());
                    let peers = peers
                        .map(|slot| {
                            (
                                name(slot),
                                FigureSource {
                                    slot: Some(slot),
                                    limit,
                                },
                            )
                        })
                        .chain([(IN_MEMORY.to_owned(), MEMORY)]);
                    for (peer, theirs) in peers {
                        let pairs = self.pairs(metric, mine, theirs);
                        if pairs.is_empty() {
                            continue;
                        }
                        let case = format!("{program} {limit}% {}", ours.label());
                        let metric = (metric, unit);
                        let case = ("apps", case);
                        rows.push(Row::of_rounds(case, metric, more_is_better, peer, &pairs));
                    }
                }
            }
        }
        rows
    }

    /// Each metric once, in the order of their first figure.
    fn metrics(&self) -> Vec<(&'static str, &'static str, Option<bool>)> {
        let mut metrics = Vec::new();
        for figure in &self.0 {
            let metric = (figure.metric, figure.unit, figure.more_is_better);
            if !metrics.contains(&metric) {
                metrics.push(metric);
            }
        }
        metrics
    }

    /// Both figures of each round that has both.
    fn pairs(&self, metric: &str, mine: FigureSource, theirs: FigureSource) -> Vec<(f64, f64)> {
        let rounds = self.0.iter().map(|figure| figure.round).max();
        (0..rounds.map_or(0, |last| last + 1))
            .filter_map(|round| {
                let ours = self.of(mine, round, metric)?;
                Some((ours, self.of(theirs, round, metric)?))
            })
            .collect()
    }
}

const IN_MEMORY: &str = "in memory";
/// All of the program's memory, and no swap.
pub(super) const MEMORY: FigureSource = FigureSource {
    slot: None,
    limit: 100,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;

    fn figure(slot: Option<Slot>, round: usize, value: f64) -> Figure {
        let limit = if slot.is_some() { 50 } else { 100 };
        Figure {
            place: FigureSource { slot, limit },
            round,
            metric: "throughput",
            unit: "ops/s",
            value,
            more_is_better: Some(true),
        }
    }

    #[test]
    fn rows_pair_figures_of_the_same_round() {
        let mut figures = Figures::default();
        for (round, (ours, theirs)) in [(20.0, 10.0), (60.0, 40.0), (36.0, 30.0)]
            .iter()
            .enumerate()
        {
            figures.push(figure(Some(Slot::Coded), round, *ours));
            figures.push(figure(Some(Slot::Nbdkit), round, *theirs));
            figures.push(figure(None, round, 36.0));
        }
        let rows = figures.rows("x", &|slot| slot.label().to_owned());
        assert_eq!(
            rows.len(),
            2,
            "one beside nbdkit, one beside memory: {rows:?}"
        );
        assert_eq!(rows[0].case, "x 50% rs:8+2");
        assert_eq!((rows[0].ours, rows[0].theirs), (36.0, 30.0));
        // Of the same round: 2.0, 1.5 and 1.2, although 20 is below 40.
        let spread = rows[0].spread.as_ref().unwrap();
        assert!((spread.ratio_min - 1.2).abs() < 1e-9 && spread.ratio_max == 2.0);
        assert_eq!(spread.verdict, Verdict::Better);
        // 20/36, 60/36 and 1: no difference beyond the spread.
        assert_eq!(rows[1].peer, "in memory");
        assert_eq!(rows[1].spread.as_ref().unwrap().verdict, Verdict::None);
    }
}
