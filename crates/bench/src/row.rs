//! What every benchmark hands back: rows, and the two ways to print them.

use std::io::{self, Write};

use cenote_measure::statistics::median;
use serde::Serialize;

/// One figure of ours beside the same figure of a peer.
///
/// The JSON line of a row has exactly these keys, in this order; those of [`RatioRange`] only where a
/// benchmark says how its rounds differed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The benchmark, as on the command line: `codec`, `fabric`, `apps`, ...
    pub bench: &'static str,
    /// What was done: operation, size, depth, scheme, transport.
    pub case: String,
    /// What was measured: `latency_p50`, `throughput`, ...
    pub metric: &'static str,
    /// The unit of `ours` and `theirs`: `ns`, `us`, `iops`, `MB/s`, ...
    pub unit: &'static str,
    /// Our figure.
    pub ours: f64,
    /// Who the peer is, with its version where it has one.
    pub peer: String,
    /// The peer's figure.
    pub theirs: f64,
    /// `ours / theirs`; whether more is better is the metric's affair.
    pub ratio: f64,
    /// How much the ratio differed from round to round.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub spread: Option<RatioRange>,
}

/// The ratio of each round of ours to the same round of the peer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RatioRange {
    /// The least.
    pub ratio_min: f64,
    /// The largest.
    pub ratio_max: f64,
    /// What that comes to.
    pub verdict: Verdict,
}

/// A difference that not every round shows counts as none.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Ours was better in every round.
    Better,
    /// Ours was worse in every round.
    Worse,
    /// Neither.
    None,
}

impl Verdict {
    /// As in the last column of a table.
    fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::None => "no different",
        }
    }
}

impl RatioRange {
    /// Of the rounds' ratios; `None` of fewer than two, which show nothing but themselves.
    #[must_use]
    pub fn of(ratios: &[f64], more_is_better: bool) -> Option<Self> {
        if ratios.len() < 2 {
            return None;
        }
        let ratio_min = ratios.iter().copied().reduce(f64::min)?;
        let ratio_max = ratios.iter().copied().reduce(f64::max)?;
        let verdict = match (ratio_min > 1.0, ratio_max < 1.0) {
            (true, _) if more_is_better => Verdict::Better,
            (true, _) => Verdict::Worse,
            (_, true) if more_is_better => Verdict::Worse,
            (_, true) => Verdict::Better,
            _ => Verdict::None,
        };
        Some(Self {
            ratio_min,
            ratio_max,
            verdict,
        })
    }
}

impl Row {
    /// A row of medians over rounds, with the spread of the ratio where more or less is better. Of each
    /// round there are our figure and the peer's.
    #[must_use]
    pub fn of_rounds(
        (bench, case): (&'static str, impl Into<String>),
        metric: (&'static str, &'static str),
        more_is_better: Option<bool>,
        peer: impl Into<String>,
        rounds: &[(f64, f64)],
    ) -> Self {
        let ours = median(rounds.iter().map(|round| round.0));
        let theirs = median(rounds.iter().map(|round| round.1));
        let ratios: Vec<f64> = rounds
            .iter()
            .filter(|round| round.1 != 0.0)
            .map(|round| round.0 / round.1)
            .collect();
        let mut row = Self::new((bench, case), metric, ours, (peer, theirs));
        row.spread = more_is_better.and_then(|more| RatioRange::of(&ratios, more));
        row
    }

    /// A row with its ratio worked out.
    ///
    /// A peer that measured nothing (zero, or not a number) has the ratio NaN,
    /// which JSON shows as `null`.
    #[must_use]
    pub fn new(
        (bench, case): (&'static str, impl Into<String>),
        (metric, unit): (&'static str, &'static str),
        ours: f64,
        (peer, theirs): (impl Into<String>, f64),
    ) -> Self {
        let ratio = if theirs == 0.0 {
            f64::NAN
        } else {
            ours / theirs
        };
        Self {
            bench,
            case: case.into(),
            metric,
            unit,
            ours,
            peer: peer.into(),
            theirs,
            ratio,
            spread: None,
        }
    }
}

/// Writes one JSON object per row and line.
///
/// # Errors
/// Those of the writer.
pub fn write_json(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    for row in rows {
        serde_json::to_writer(&mut *out, row)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Writes the rows as a table for people, columns aligned.
///
/// # Errors
/// Those of the writer.
pub fn write_table(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    let has_spread = rows.iter().any(|row| row.spread.is_some());
    let mut header = vec!["case", "metric", "unit", "ours", "peer", "theirs", "ratio"];
    if has_spread {
        header.extend(["of rounds", "ours is"]);
    }
    let mut cells = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    cells.extend(rows.iter().map(|row| {
        let mut line = vec![
            row.case.clone(),
            row.metric.to_owned(),
            row.unit.to_owned(),
            figure(row.ours),
            row.peer.clone(),
            figure(row.theirs),
            figure(row.ratio),
        ];
        if let Some(spread) = &row.spread {
            let (min, max) = (figure(spread.ratio_min), figure(spread.ratio_max));
            line.extend([format!("{min}..{max}"), spread.verdict.word().to_owned()]);
        }
        line
    }));
    write_cells(out, &cells, |column| matches!(column, 3 | 5 | 6))
}

/// Writes lines of cells as columns, those that hold numbers to the right. The first is the header.
pub(crate) fn write_cells(
    out: &mut impl Write,
    cells: &[Vec<String>],
    is_numeric: impl Fn(usize) -> bool,
) -> io::Result<()> {
    let mut widths = vec![0; cells.first().map_or(0, Vec::len)];
    for line in cells {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.len().max(*width);
        }
    }
    for line in cells {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            if is_numeric(column) {
                text.push_str(&format!("{cell:>width$}  "));
            } else {
                text.push_str(&format!("{cell:<width$}  "));
            }
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    out.flush()
}

/// Three significant digits, without an exponent; `-` where there is no figure.
pub(crate) fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let magnitude = value.abs();
    let decimals = match magnitude {
        m if m >= 100.0 || m == 0.0 => 0,
        m if m >= 10.0 => 1,
        m if m >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_rounds_has_medians_and_compares_within_rounds() {
        let rounds = [(20.0, 10.0), (60.0, 40.0), (36.0, 30.0)];
        let row = Row::of_rounds(
            ("x", "y"),
            ("throughput", "ops/s"),
            Some(true),
            "p",
            &rounds,
        );
        assert_eq!((row.ours, row.theirs), (36.0, 30.0));
        let spread = row.spread.unwrap();
        // 2.0, 1.5 and 1.2, although 20 is below 40.
        assert!((spread.ratio_min - 1.2).abs() < 1e-9 && spread.ratio_max == 2.0);
        assert_eq!(spread.verdict, Verdict::Better);
        let rounds = [(1.0, 2.0), (1.0, 3.0)];
        let row = Row::of_rounds(("x", "y"), ("completion", "s"), Some(false), "p", &rounds);
        assert_eq!(row.theirs, 2.5);
        assert_eq!(row.spread.unwrap().verdict, Verdict::Better, "less time");
        let row = Row::of_rounds(("x", "y"), ("loss", "%"), None, "p", &rounds);
        assert_eq!(row.spread, None);
    }

    fn rows() -> Vec<Row> {
        vec![
            Row::new(
                ("codec", "encode 8+2"),
                ("time", "ns"),
                30.0,
                ("isa-l 2.32", 60.0),
            ),
            Row::new(("codec", "x"), ("time", "ns"), 1.0, ("none", 0.0)),
        ]
    }

    #[test]
    fn a_json_line_has_exactly_the_agreed_keys() {
        let mut out = Vec::new();
        write_json(&mut out, &rows()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let mut lines = text.lines();
        assert_eq!(
            lines.next().unwrap(),
            r#"{"bench":"codec","case":"encode 8+2","metric":"time","unit":"ns","ours":30.0,"peer":"isa-l 2.32","theirs":60.0,"ratio":0.5}"#
        );
        assert!(lines.next().unwrap().ends_with(r#""ratio":null}"#));
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn a_difference_that_not_every_round_shows_is_none() {
        let verdict = |ratios: &[f64], more| RatioRange::of(ratios, more).map(|one| one.verdict);
        assert_eq!(verdict(&[1.1, 1.3], true), Some(Verdict::Better));
        assert_eq!(verdict(&[1.1, 1.3], false), Some(Verdict::Worse));
        assert_eq!(verdict(&[0.8, 0.9], false), Some(Verdict::Better));
        assert_eq!(verdict(&[0.8, 1.9], true), Some(Verdict::None));
        assert_eq!(verdict(&[2.0], true), None);
    }

    #[test]
    fn a_spread_is_three_more_keys_and_two_more_columns() {
        let mut rows = rows();
        rows[0].spread = RatioRange::of(&[0.4, 0.6], false);
        let mut out = Vec::new();
        write_json(&mut out, &rows[..1]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let end = r#""ratio":0.5,"ratio_min":0.4,"ratio_max":0.6,"verdict":"better"}"#;
        assert!(text.trim_end().ends_with(end), "{text}");
        let mut out = Vec::new();
        write_table(&mut out, &rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("ours is"));
        assert!(lines[1].ends_with("0.400..0.600  better"), "{}", lines[1]);
        assert!(lines[2].ends_with('-'), "{}", lines[2]);
    }

    #[test]
    fn a_table_aligns_its_columns_and_shows_a_missing_ratio_as_a_dash() {
        let mut out = Vec::new();
        write_table(&mut out, &rows()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let column = lines[0].find("metric").unwrap();
        assert_eq!(lines[1].find("time"), Some(column));
        assert!(lines[1].ends_with("0.500"));
        assert!(lines[2].ends_with('-'));
    }
}
