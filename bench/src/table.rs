//! Plain tables for the terminal, with text on the left and numbers on the right.

use std::fmt;

/// A table under construction.
#[derive(Debug)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes an empty table with these columns.
    pub fn new(header: impl Into<Vec<&'static str>>) -> Self {
        Self {
            header: header.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, which should have a cell for each column.
    pub fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    fn widths(&self) -> Vec<usize> {
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        self.header
            .iter()
            .enumerate()
            .map(|(column, name)| {
                let widest = cells(column)
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0);
                widest.max(name.chars().count())
            })
            .collect()
    }
}

/// Whether a cell is a number, with or without a unit.
fn is_number(cell: &str) -> bool {
    let digit_first = cell.starts_with(|first: char| first.is_ascii_digit());
    (digit_first && !cell.contains(' ')) || cell == "-"
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let line = |cells: &mut dyn Iterator<Item = (&str, bool)>| {
            let padded: Vec<String> = cells
                .zip(&widths)
                .map(|((cell, right), width)| {
                    if right {
                        format!("{cell:>width$}")
                    } else {
                        format!("{cell:<width$}")
                    }
                })
                .collect();
            padded.join("  ").trim_end().to_owned()
        };
        // Aligns a heading with its numbers.
        let first = self.rows.first();
        let over_number = |column: usize| {
            first
                .and_then(|row| row.get(column))
                .is_some_and(|cell| is_number(cell))
        };
        let mut header = self
            .header
            .iter()
            .enumerate()
            .map(|(column, name)| (*name, over_number(column)));
        writeln!(f, "{}", line(&mut header))?;
        for row in &self.rows {
            writeln!(
                f,
                "{}",
                line(&mut row.iter().map(|cell| (cell.as_str(), is_number(cell))))
            )?;
        }
        Ok(())
    }
}

/// A number with about three significant digits, or `-` if there is none.
pub fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["what", "µs"]);
        table.row(["a".to_owned(), number(Some(0.456))]);
        table.row(["longer".to_owned(), number(Some(123.4))]);
        table.row(["none".to_owned(), number(None)]);
        assert_eq!(
            table.to_string(),
            "what      µs\na       0.46\nlonger   123\nnone       -\n"
        );
    }

    #[test]
    fn words_that_start_with_a_digit_are_words() {
        let mut table = Table::new(["what", "size"]);
        table.row(["2 ranks".to_owned(), "64KiB".to_owned()]);
        table.row(["three ranks".to_owned(), "1MiB".to_owned()]);
        assert_eq!(
            table.to_string(),
            "what          size\n2 ranks      64KiB\nthree ranks   1MiB\n"
        );
    }

    #[test]
    fn a_short_row_is_no_panic() {
        let mut table = Table::new(["a", "b"]);
        table.row(["1".to_owned()]);
        assert_eq!(table.to_string(), "a  b\n1\n");
    }
}
