//! Columns for people.

use std::io::{self, Write};

/// Rows of text under a header, each column as wide as its widest cell.
pub struct Table {
    rows: Vec<Vec<String>>,
    has_colours: bool,
}

/// Columns of which a cell's first word says how well something is.
const STATES: [&str; 2] = ["STATE", "HEALTH"];

/// The colour of such a cell, as a terminal takes it; none where all is well.
fn colour(cell: &str) -> Option<&'static str> {
    const YELLOW: &str = "\x1b[33m";
    const RED: &str = "\x1b[31m";
    let word = cell.split([' ', ',']).next().unwrap_or_default();
    match word {
        "warning" | "draining" | "regenerating" | "degraded" => Some(YELLOW),
        "ERROR" | "silent" | "ended" | "unreachable" | "down" | "lost" | "its" => Some(RED),
        _ => None,
    }
}

impl Table {
    /// A table with its header.
    pub fn new<const N: usize>(header: [&str; N]) -> Self {
        Self {
            rows: vec![header.map(str::to_owned).to_vec()],
            has_colours: false,
        }
    }

    /// With the colours of a terminal, if it is written to one.
    pub fn coloured(self, has_colours: bool) -> Self {
        Self {
            has_colours,
            ..self
        }
    }

    /// Adds a row; one with fewer cells than the header ends early.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes the header and the rows.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let header = self.rows[0].get(column).map(String::as_str);
                let is_state = header.is_some_and(|header| STATES.contains(&header));
                match colour(cell).filter(|_| self.has_colours && is_state) {
                    Some(colour) => line.extend([colour, cell, "\x1b[0m"]),
                    None => line.push_str(cell),
                }
                let blanks = width + 2 - cell.chars().count();
                line.extend(std::iter::repeat_n(' ', blanks));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_without_blanks() {
        let mut table = Table::new(["NAME", "N"]);
        table.row(vec!["longer".to_owned(), "1".to_owned()]);
        table.row(vec!["x".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "NAME    N\nlonger  1\nx\n");
    }

    #[test]
    fn states_have_colours_where_a_terminal_wants_them() {
        let written = |has_colours| {
            let mut table = Table::new(["NAME", "STATE"]).coloured(has_colours);
            table.row(vec!["down".to_owned(), "up".to_owned()]);
            table.row(vec!["b".to_owned(), "silent".to_owned()]);
            let mut out = Vec::new();
            table.write(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(false), "NAME  STATE\ndown  up\nb     silent\n");
        let coloured = "NAME  STATE\ndown  up\nb     \x1b[31msilent\x1b[0m\n";
        assert_eq!(written(true), coloured);
    }
}
