//! What an experiment leaves in files: a table as CSV, lines as SVG.
//!
//! Numbers in CSV are written as Rust writes them: the shortest text that reads back as the same
//! number. No cell holds a comma or a quote, so none is quoted.

mod bars;

use std::fmt::Display;
use std::ops::Range;

use anyhow::{Result, anyhow, ensure};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

pub use bars::Bars;

/// Rows of numbers and names under a header.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Csv(String);

impl Csv {
    /// A table with its header, a name for each column with commas between them, and no row.
    #[must_use]
    pub fn new(header: &str) -> Self {
        Self(format!("{header}\n"))
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If a cell has a comma, a quote or a line's end in it.
    pub fn row(&mut self, cells: &[&dyn Display]) {
        let cells: Vec<String> = cells.iter().map(ToString::to_string).collect();
        assert!(
            !cells.iter().any(|cell| cell.contains([',', '"', '\n'])),
            "{cells:?}"
        );
        self.0 += &cells.join(",");
        self.0.push('\n');
    }

    /// The file's content.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// How the horizontal axis is divided.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By powers of ten; its range begins above 0.
    Logarithmic,
}

/// Where the names of the lines are, so that they cover none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Legend {
    /// At the left, above.
    UpperLeft,
    /// At the right, above.
    UpperRight,
    /// At the right, half way down.
    MiddleRight,
    /// At the left, below.
    LowerLeft,
}

impl Legend {
    fn position(self) -> SeriesLabelPosition {
        match self {
            Self::UpperLeft => SeriesLabelPosition::UpperLeft,
            Self::UpperRight => SeriesLabelPosition::UpperRight,
            Self::MiddleRight => SeriesLabelPosition::MiddleRight,
            Self::LowerLeft => SeriesLabelPosition::LowerLeft,
        }
    }
}

/// Lines over one pair of axes.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Above the axes.
    pub title: String,
    /// Under the horizontal one.
    pub x_label: &'static str,
    /// Beside the vertical one.
    pub y_label: &'static str,
    /// What the horizontal axis shows.
    pub x: Range<f64>,
    /// How it is divided.
    pub x_scale: Scale,
    /// What the vertical axis shows.
    pub y: Range<f64>,
    /// One colour each.
    pub lines: Vec<Line>,
    /// Where their names are.
    pub legend: Legend,
}

/// A named line.
#[derive(Clone, Debug)]
pub struct Line {
    /// In the legend.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
    /// Circles of the same colour.
    pub marks: Vec<(f64, f64)>,
}

impl Line {
    /// Without circles.
    #[must_use]
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.to_owned(),
            points,
            marks: Vec::new(),
        }
    }
}

/// Of lines, in order; then from the first on. All are told apart on white.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x17, 0xbe, 0xcf),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x7f, 0x7f, 0x7f),
    RGBColor(0xbc, 0xbd, 0x22),
];

/// Pixels of a picture, wide and high.
const SIZE: (u32, u32) = (760, 460);

impl Plot {
    /// The picture.
    ///
    /// # Errors
    /// An axis that shows nothing.
    pub fn svg(&self) -> Result<String> {
        ensure!(
            self.x.start < self.x.end && self.y.start < self.y.end,
            "{}: nothing to draw",
            self.title
        );
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            area.fill(&WHITE).map_err(drawing)?;
            match self.x_scale {
                Scale::Linear => self.draw(&area, self.x.clone())?,
                Scale::Logarithmic => self.draw(&area, self.x.clone().log_scale())?,
            }
            area.present().map_err(drawing)?;
        }
        Ok(text)
    }

    fn draw<X>(
        &self,
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        x: X,
    ) -> Result<()>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .margin_right(36)
            .x_label_area_size(42)
            .y_label_area_size(56)
            .build_cartesian_2d(x, self.y.clone())
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .x_desc(self.x_label)
            .y_desc(self.y_label)
            .x_label_formatter(&|x| shortest(*x))
            .y_label_formatter(&|y| shortest(*y))
            .light_line_style(WHITE)
            .draw()
            .map_err(drawing)?;
        for (index, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()].stroke_width(2);
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), colour))
                .map_err(drawing)?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
            let marks = line.marks.iter();
            chart
                .draw_series(marks.map(|&at| Circle::new(at, 3, colour)))
                .map_err(drawing)?;
        }
        chart
            .configure_series_labels()
            .position(self.legend.position())
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(drawing)
    }
}

/// A number at an axis, without the noise of its last digits.
fn shortest(number: f64) -> String {
    format!("{}", (number * 1e6).round() / 1e6)
}

/// The library's errors borrow what they are of.
fn drawing(error: impl Display) -> anyhow::Error {
    anyhow!("draw: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_their_header() {
        let mut csv = Csv::new("policy,machines,load");
        csv.row(&[&"single", &32, &1.5]);
        csv.row(&[&"two", &100, &0.1]);
        assert_eq!(
            csv.text(),
            "policy,machines,load\nsingle,32,1.5\ntwo,100,0.1\n"
        );
    }

    #[test]
    fn a_picture_has_its_labels_and_a_path_for_each_line() {
        let plot = Plot {
            title: "Loads".to_owned(),
            x_label: "machines",
            y_label: "load",
            x: 10.0..1000.0,
            x_scale: Scale::Logarithmic,
            y: 0.0..2.0,
            lines: ["one", "two"]
                .map(|name| Line {
                    marks: vec![(10.0, 0.6)],
                    ..Line::new(name, vec![(10.0, 0.5), (100.0, 1.5), (1000.0, 1.0)])
                })
                .to_vec(),
            legend: Legend::UpperLeft,
        };
        let svg = plot.svg().unwrap();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        for text in ["Loads", "machines", "load", "one", "two", "100", "1.8"] {
            assert!(
                svg.lines().any(|line| line.trim() == text),
                "{text} in {svg}"
            );
        }
        let colours = ["stroke=\"#1F77B4\"", "stroke=\"#D62728\""];
        for colour in colours {
            // The line, its mark and its sign in the legend.
            assert_eq!(svg.matches(colour).count(), 3, "{colour} in {svg}");
        }
        assert_eq!(plot.svg().unwrap(), svg, "the same picture each time");

        let empty = Plot {
            y: 1.0..1.0,
            ..plot
        };
        assert!(empty.svg().is_err());
    }
}
