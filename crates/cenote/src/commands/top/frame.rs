//! A view as lines of text, as many and as long as there is room for. No terminal is needed.
//!
//! Lines are laid out here because two tables need little, and the library that is usual for it
//! brings a licence that `deny.toml` does not know.

use std::ops::Range;

use super::rows::free_bytes;
use super::sample::Found;
use super::table::{Look, Order, Row, widths};
use super::view::{Focus, View};
use crate::size::Size;

/// A line, in pieces that look alike.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Line(Vec<(String, Look)>);

impl Line {
    fn of(text: impl Into<String>, look: Look) -> Self {
        let mut line = Self::default();
        line.push(text, look);
        line
    }

    /// Hosts and files say what is shown: nothing of it may steer the terminal.
    fn push(&mut self, text: impl Into<String>, look: Look) {
        let mut text = text.into();
        if text.contains(char::is_control) {
            text = text.replace(char::is_control, "?");
        }
        self.0.push((text, look));
    }

    /// Its pieces.
    pub fn pieces(&self) -> &[(String, Look)] {
        &self.0
    }

    /// What it says.
    pub fn text(&self) -> String {
        self.0.iter().map(|(text, _)| text.as_str()).collect()
    }

    /// Its first `columns` characters.
    fn cut(self, columns: usize) -> Self {
        let mut left = columns;
        let mut pieces = Vec::new();
        for (text, look) in self.0 {
            let text: String = text.chars().take(left).collect();
            left -= text.chars().count();
            pieces.push((text, look));
        }
        Self(pieces)
    }
}

/// Lines beside those of rows: title, two headers, a blank one, details, help.
const LINES_BESIDE: usize = 6;
const HELP: &str =
    "q end   tab hosts, volumes   up, down choose   left, right sort by   r turn round";

/// Everything, with what went wrong at the end; nothing is chosen.
pub fn whole(view: &View) -> Vec<Line> {
    let mut lines = vec![title(view)];
    let mut notes = Vec::new();
    for (index, table) in [Focus::Hosts, Focus::Volumes].into_iter().enumerate() {
        let rows = view.rows(table);
        if index > 0 {
            lines.push(Line::default());
        }
        let all = 0..rows.len();
        lines.extend(table_lines(view, table, &rows, all, None));
        let is_bad = |row: &&Row| row.cells.iter().any(|cell| cell.look == Look::Bad);
        notes.extend(rows.iter().filter(is_bad).map(|row| row.details.clone()));
    }
    if !notes.is_empty() {
        lines.push(Line::default());
    }
    lines.extend(notes.into_iter().map(|note| Line::of(note, Look::Plain)));
    lines
}

/// What fits on a terminal of as many columns and lines.
pub fn fitted(view: &View, (columns, height): (u16, u16)) -> Vec<Line> {
    let (columns, height) = (usize::from(columns), usize::from(height));
    let (hosts, volumes) = (view.rows(Focus::Hosts), view.rows(Focus::Volumes));
    let room = height.saturating_sub(LINES_BESIDE);
    // Volumes get what hosts leave, and a third at least.
    let volume_lines = volumes
        .len()
        .min(room.saturating_sub(hosts.len()).max(room / 3));
    let host_lines = hosts.len().min(room - volume_lines);
    let mut lines = vec![title(view)];
    let mut details = String::new();
    for (table, rows, shown) in [
        (Focus::Hosts, &hosts, host_lines),
        (Focus::Volumes, &volumes, volume_lines),
    ] {
        let is_focus = table == view.focus();
        let chosen = view.chosen_in(table, rows);
        if is_focus && let Some(at) = chosen {
            details.clone_from(&rows[at].details);
        }
        let window = window(rows.len(), shown, chosen.unwrap_or(0));
        let chosen = chosen.filter(|_| is_focus);
        if table == Focus::Volumes {
            lines.push(Line::default());
        }
        lines.extend(table_lines(view, table, rows, window, chosen));
    }
    // Details and help are the last lines, wherever tables end.
    lines.truncate(height.saturating_sub(2));
    lines.resize(height.saturating_sub(2), Line::default());
    lines.push(Line::of(details, Look::Plain));
    lines.push(Line::of(HELP, Look::Faint));
    lines.truncate(height);
    lines.into_iter().map(|line| line.cut(columns)).collect()
}

fn title(view: &View) -> Line {
    let mut line = Line::of("cenote top  ", Look::Strong);
    line.push(view.cluster(), Look::Plain);
    let Some(hosts) = view.hosts() else {
        line.push(": asking", Look::Plain);
        return line;
    };
    let answering = hosts.iter().filter_map(|host| match &host.found {
        Found::Up(status) => Some(status),
        _ => None,
    });
    let (mut up, mut lent, mut memory, mut free) = (0, 0_u64, 0_u64, 0_u64);
    for status in answering {
        up += 1;
        lent = lent.saturating_add(status.lent_bytes);
        memory = memory.saturating_add(status.memory_bytes);
        free = free.saturating_add(free_bytes(status));
    }
    let look = if up < hosts.len() {
        Look::Bad
    } else {
        Look::Plain
    };
    line.push(format!(": {up} of {} hosts up", hosts.len()), look);
    let text = format!(
        ", {} lent of {}, {} free",
        Size(lent).rounded(),
        Size(memory).rounded(),
        Size(free).rounded()
    );
    line.push(text, Look::Plain);
    line
}

/// Of `count` rows the `shown` ones that have `chosen` among them, in the middle where there is
/// something on both sides.
fn window(count: usize, shown: usize, chosen: usize) -> Range<usize> {
    let start = chosen
        .saturating_sub(shown / 2)
        .min(count.saturating_sub(shown));
    start..(start + shown).min(count)
}

fn table_lines(
    view: &View,
    table: Focus,
    rows: &[Row],
    window: Range<usize>,
    chosen: Option<usize>,
) -> Vec<Line> {
    let header = view.header(table);
    let widths = widths(header, rows);
    let mut first = header_line(header, &widths, view.order(table), chosen.is_some());
    let is_known = match table {
        Focus::Hosts => view.hosts().is_some(),
        Focus::Volumes => view.knows_volumes(),
    };
    if !is_known {
        first.push("  asking", Look::Faint);
    } else if rows.is_empty() {
        first.push("  none", Look::Faint);
    } else if window.len() < rows.len() {
        let text = format!("  {}-{} of {}", window.start + 1, window.end, rows.len());
        first.push(text, Look::Faint);
    }
    let mut lines = vec![first];
    for (at, row) in rows.iter().enumerate().take(window.end).skip(window.start) {
        let mut line = Line::default();
        for (index, (cell, width)) in row.cells.iter().zip(&widths).enumerate() {
            let gap = if index == 0 { "" } else { "  " };
            let look = if chosen == Some(at) {
                Look::Chosen
            } else {
                cell.look
            };
            line.push(format!("{gap}{:<width$}", cell.text), look);
        }
        lines.push(line);
    }
    lines
}

/// The column that is sorted by is marked, with `^` where the least is first.
fn header_line(header: &[&str], widths: &[usize], order: Order, is_focus: bool) -> Line {
    let mut line = Line::default();
    for (index, (name, width)) in header.iter().zip(widths).enumerate() {
        let gap = if index == 0 { "" } else { "  " };
        let is_sorted = index == order.column;
        let mark = match (is_sorted, order.is_reversed) {
            (false, _) => "",
            (true, false) => "^",
            (true, true) => "v",
        };
        let look = if is_sorted && is_focus {
            Look::Strong
        } else {
            Look::Faint
        };
        line.push(format!("{gap}{:<width$}", format!("{name}{mark}")), look);
    }
    line
}

#[cfg(test)]
mod tests;
