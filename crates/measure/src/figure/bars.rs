//! Groups of bars over names: what systems take, side by side.

use std::ops::Range;

use anyhow::{Result, ensure};
use plotters::prelude::*;

use super::{COLOURS, SIZE, drawing, shortest};

/// Bars over one logarithmic axis, grouped by name.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Above the axes.
    pub title: String,
    /// Beside the vertical one.
    pub y_label: &'static str,
    /// What it shows; begins above 0.
    pub y: Range<f64>,
    /// What each bar of a group is, one colour each.
    pub series: Vec<&'static str>,
    /// A name, and a height for each of the series.
    pub groups: Vec<(String, Vec<f64>)>,
}

/// Of a group's place, how much its bars take.
const FILLED: f64 = 0.76;

impl Bars {
    /// The picture.
    ///
    /// # Errors
    /// Nothing to draw, or a group without a bar for each of the series.
    pub fn svg(&self) -> Result<String> {
        let is_whole = |group: &(String, Vec<f64>)| group.1.len() == self.series.len();
        let is_axis = 0.0 < self.y.start && self.y.start < self.y.end;
        let has_bars = !self.groups.is_empty() && !self.series.is_empty();
        ensure!(
            is_axis && has_bars && self.groups.iter().all(is_whole),
            "{}: nothing to draw",
            self.title
        );
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            area.fill(&WHITE).map_err(drawing)?;
            self.draw(&area)?;
            area.present().map_err(drawing)?;
        }
        Ok(text)
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<()> {
        let count = self.groups.len() as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..count, self.y.clone().log_scale())
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_desc(self.y_label)
            .y_label_formatter(&|y| shortest(*y))
            .light_line_style(WHITE)
            .draw()
            .map_err(drawing)?;
        let width = FILLED / self.series.len() as f64;
        for (at, name) in self.series.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()].filled();
            let bars = self.groups.iter().enumerate().map(|(group, (_, heights))| {
                let left = group as f64 + (1.0 - FILLED) / 2.0 + at as f64 * width;
                let top = heights[at].clamp(self.y.start, self.y.end);
                Rectangle::new([(left, self.y.start), (left + width, top)], colour)
            });
            chart
                .draw_series(bars)
                .map_err(drawing)?
                .label(*name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 14, y + 4)], colour));
        }
        // Under each group its name, on lines in turn so that long ones do not meet.
        let (across, down) = chart.plotting_area().get_pixel_range();
        let place = f64::from(across.end - across.start) / count;
        for (at, (name, _)) in self.groups.iter().enumerate() {
            let x = f64::from(across.start) + place * (at as f64 + 0.5);
            let y = down.end + 6 + 14 * i32::try_from(at % 2)?;
            let width = 6.0 * name.len() as f64;
            let left = (x - width / 2.0).max(2.0);
            #[expect(clippy::cast_possible_truncation, reason = "inside the picture")]
            let left = left as i32;
            let style = ("sans-serif", 12).into_font();
            area.draw(&Text::new(name.clone(), (left, y), style))
                .map_err(drawing)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(drawing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_bar_for_each_height_and_a_name_for_each_group() {
        let bars = Bars {
            title: "Pages".to_owned(),
            y_label: "us",
            y: 1.0..100.0,
            series: vec!["p50", "p99"],
            groups: vec![
                ("one".to_owned(), vec![2.0, 20.0]),
                ("two".to_owned(), vec![3.0, 1000.0]),
            ],
        };
        let svg = bars.svg().unwrap();
        for text in ["Pages", "us", "p50", "p99", "one", "two"] {
            assert!(svg.lines().any(|line| line.trim() == text), "{text}: {svg}");
        }
        for colour in ["fill=\"#1F77B4\"", "fill=\"#D62728\""] {
            // One for each group, and the sign in the legend.
            assert_eq!(svg.matches(colour).count(), 3, "{colour} in {svg}");
        }
        assert_eq!(bars.svg().unwrap(), svg, "the same picture each time");
        let short = Bars {
            groups: vec![("one".to_owned(), vec![2.0])],
            ..bars
        };
        assert!(short.svg().is_err());
    }
}
