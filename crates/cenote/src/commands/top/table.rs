//! Rows under a header, sorted by a column, as wide as their cells.

use std::cmp::Ordering;

/// How a piece of text looks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Look {
    /// As any text.
    #[default]
    Plain,
    /// A title, or the column that is sorted by.
    Strong,
    /// Less than that: help, headers.
    Faint,
    /// Wants to be looked at.
    Warning,
    /// Is wrong.
    Bad,
    /// The chosen line.
    Chosen,
}

/// What a cell is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub enum Rank {
    /// Letters and digits.
    Text(String),
    /// Numbers; what is not known comes before any.
    Number(Option<f64>),
}

impl Rank {
    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Number(a), Self::Number(b)) => {
                let number = |rank: &Option<f64>| rank.unwrap_or(f64::NEG_INFINITY);
                number(a).total_cmp(&number(b))
            }
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
        }
    }
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// What is shown.
    pub text: String,
    /// What it is sorted by.
    pub rank: Rank,
    /// How it looks.
    pub look: Look,
}

impl Cell {
    /// Sorted as text.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            rank: Rank::Text(text.clone()),
            text,
            look: Look::Plain,
        }
    }

    /// Shown as `text`, sorted by a number.
    pub fn number(text: impl Into<String>, number: impl Into<f64>) -> Self {
        Self {
            text: text.into(),
            rank: Rank::Number(Some(number.into())),
            look: Look::Plain,
        }
    }

    /// Not known.
    pub fn unknown() -> Self {
        Self {
            text: "-".to_owned(),
            rank: Rank::Number(None),
            look: Look::Plain,
        }
    }

    /// The same, looking otherwise.
    pub fn looking(self, look: Look) -> Self {
        Self { look, ..self }
    }
}

/// A row, and all that there is to say of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Which it is, from one sample to the next.
    pub name: String,
    /// One for each column.
    pub cells: Vec<Cell>,
    /// What does not fit into columns.
    pub details: String,
}

/// What rows are in order of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Order {
    /// Index of the column.
    pub column: usize,
    /// The greatest first.
    pub is_reversed: bool,
}

/// Sorts rows; equal ones by name.
pub fn sort(rows: &mut [Row], order: Order) {
    rows.sort_by(|a, b| {
        let ranks = |row: &Row| row.cells.get(order.column).map(|cell| cell.rank.clone());
        let by_rank = match (ranks(a), ranks(b)) {
            (Some(a), Some(b)) => a.compare(&b),
            _ => Ordering::Equal,
        };
        let by_rank = if order.is_reversed {
            by_rank.reverse()
        } else {
            by_rank
        };
        by_rank.then_with(|| a.name.cmp(&b.name))
    });
}

/// Width of each column: its header or its widest cell.
pub fn widths(header: &[&str], rows: &[Row]) -> Vec<usize> {
    let width = |(column, name): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.cells.get(column));
        let widest = cells.map(|cell| cell.text.chars().count()).max();
        // The header may carry the sign of the order.
        widest.unwrap_or(0).max(name.chars().count() + 1)
    };
    header.iter().enumerate().map(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |name: &str, size: Cell| Row {
            name: name.to_owned(),
            cells: vec![Cell::text(name), size],
            details: String::new(),
        };
        vec![
            row("b", Cell::number("10 GiB", 10.0)),
            row("a", Cell::number("9 GiB", 9.0)),
            row("c", Cell::unknown()),
            row("d", Cell::number("10 GiB", 10.0)),
        ]
    }

    fn names(column: usize, is_reversed: bool) -> String {
        let mut rows = rows();
        let order = Order {
            column,
            is_reversed,
        };
        sort(&mut rows, order);
        rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn numbers_are_sorted_as_numbers_and_equals_by_name() {
        assert_eq!(names(0, false), "abcd");
        assert_eq!(names(0, true), "dcba");
        assert_eq!(names(1, false), "cabd", "the unknown first");
        assert_eq!(names(1, true), "bdac");
        assert_eq!(names(7, true), "abcd", "no such column");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        assert_eq!(widths(&["NAME", "SIZE"], &rows()), [5, 6]);
        assert_eq!(widths(&["N"], &[]), [2]);
    }
}
