//! A view as lines of text, as many and as long as there is room for. No terminal is needed.
//!
//! Lines are laid out here because two tables need little, and the library that is usual for it
//! brings a licence that `deny.toml` does not know.

use std::ops::Range;

use cenote_cli::size::Size;

use super::rows::free_bytes;
use super::table::{Look, Order, Row, widths};
use super::view::{Focus, View};
use crate::sample::Found;

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

    /// As lines of at most so many characters, broken at blanks where there are any. All but the first are
    /// indented.
    fn wrapped(self, columns: usize) -> Vec<Self> {
        let pieces = self.0.iter();
        let mut rest: Vec<(char, Look)> = pieces
            .flat_map(|(text, look)| text.chars().map(|one| (one, *look)))
            .collect();
        let visible = rest.iter().rposition(|(one, _)| *one != ' ');
        rest.truncate(visible.map_or(0, |at| at + 1).max(columns.min(rest.len())));
        let mut lines = Vec::new();
        let mut indent = 0;
        loop {
            let room = columns.saturating_sub(indent);
            let end = match rest.len() > room {
                false => rest.len(),
                true => {
                    let blank = rest[..room].iter().rposition(|(one, _)| *one == ' ');
                    blank.filter(|at| *at > 0).unwrap_or(room)
                }
            };
            let mut line = Self::default();
            if indent > 0 {
                line.push(" ".repeat(indent), Look::Plain);
            }
            for (one, look) in rest.drain(..end) {
                match line.0.last_mut() {
                    Some((text, last)) if *last == look => text.push(one),
                    _ => line.push(one.to_string(), look),
                }
            }
            lines.push(line);
            let blanks = rest.iter().take_while(|(one, _)| *one == ' ').count();
            rest.drain(..blanks);
            if rest.is_empty() || room == 0 {
                return lines;
            }
            indent = if columns > 2 * INDENT { INDENT } else { 0 };
        }
    }
}

/// Most characters behind a header: which rows are shown, of how many.
const NOTE: usize = 20;
/// Of lines that go on from the one above.
const INDENT: usize = 2;
const HELP: &str = "q quit   tab next table   up, down select   left, right sort   r reverse";

/// Everything, with what went wrong at the end; nothing is chosen.
pub fn whole(view: &View) -> Vec<Line> {
    let mut lines = vec![title(view)];
    let mut notes = Vec::new();
    for (index, table) in view.tables().iter().copied().enumerate() {
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

/// What fits on a terminal of as many columns and lines. What is wider goes on in the next line.
pub fn fitted(view: &View, (columns, height): (u16, u16)) -> Vec<Line> {
    let (columns, height) = (usize::from(columns), usize::from(height));
    let tables: Vec<(Focus, Vec<Row>)> = view
        .tables()
        .iter()
        .map(|table| (*table, view.rows(*table)))
        .collect();
    let chosen = tables.iter().find(|(table, _)| *table == view.focus());
    let details = chosen.and_then(|(table, rows)| {
        let at = view.chosen_in(*table, rows)?;
        Some(rows[at].details.clone())
    });
    let mut tail = Line::of(details.unwrap_or_default(), Look::Plain).wrapped(columns);
    tail.extend(Line::of(HELP, Look::Faint).wrapped(columns));
    let mut lines = title(view).wrapped(columns);
    // A line or more for each header, and one between tables.
    let line_counts = tables.iter().map(|(table, rows)| {
        let widths = widths(view.header(*table), rows);
        let width = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
        let trouble = view
            .trouble(*table)
            .map_or(0, |text| text.chars().count() + 2);
        let header = width + NOTE + trouble;
        (lines_of(width, columns), lines_of(header, columns))
    });
    let (line_counts, header_counts): (Vec<usize>, Vec<usize>) = line_counts.unzip();
    let headers = header_counts.iter().sum::<usize>() + tables.len().saturating_sub(1);
    let mut room = height.saturating_sub(lines.len() + tail.len() + headers);
    let mut windows = Vec::new();
    // The last ones get what the first leaves, and a third at least.
    for (index, (_, rows)) in tables.iter().enumerate() {
        let behind = tables.iter().zip(&line_counts).skip(index + 1);
        let wanted = behind
            .map(|((_, rows), count)| rows.len() * count)
            .sum::<usize>();
        let own = rows.len() * line_counts[index];
        let kept = wanted.min(room.saturating_sub(own).max(room / 3));
        let shown = rows.len().min((room - kept) / line_counts[index]);
        room -= shown * line_counts[index];
        windows.push(shown);
    }
    for (index, (table, rows)) in tables.iter().enumerate() {
        let chosen = view.chosen_in(*table, rows);
        let window = window(rows.len(), windows[index], chosen.unwrap_or(0));
        let chosen = chosen.filter(|_| *table == view.focus());
        if index > 0 {
            lines.push(Line::default());
        }
        let of_table = table_lines(view, *table, rows, window, chosen);
        lines.extend(of_table.into_iter().flat_map(|line| line.wrapped(columns)));
    }
    // Details and help are the last lines, wherever tables end.
    let above = height.saturating_sub(tail.len());
    lines.truncate(above);
    lines.resize(above, Line::default());
    lines.extend(tail);
    lines.truncate(height);
    lines
}

/// How many lines of a terminal a line takes, about.
fn lines_of(width: usize, columns: usize) -> usize {
    match width.saturating_sub(columns) {
        0 => 1,
        more => 1 + more.div_ceil(columns.saturating_sub(INDENT).max(1)),
    }
}

fn title(view: &View) -> Line {
    let mut line = Line::of("cenote top  ", Look::Strong);
    line.push(view.cluster(), Look::Plain);
    if !view.tables().contains(&Focus::Hosts) {
        return line;
    }
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
    if !view.knows(table) {
        first.push("  asking", Look::Faint);
    } else if rows.is_empty() {
        first.push("  none", Look::Faint);
    } else if window.len() < rows.len() {
        let text = format!("  {}-{} of {}", window.start + 1, window.end, rows.len());
        first.push(text, Look::Faint);
    }
    if let Some(trouble) = view.trouble(table) {
        first.push(format!("  {trouble}"), Look::Bad);
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
