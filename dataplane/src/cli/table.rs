//! Tables of text: columns as wide as their widest cell.

use std::io::{self, Write};

/// A table under construction.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

#[derive(Debug)]
struct Column {
    title: String,
    right: bool,
}

impl Table {
    /// A table with these columns; a title that begins with `>` makes a column of numbers, set right.
    pub(super) fn new<T: AsRef<str>>(titles: &[T]) -> Table {
        let column = |title: &T| match title.as_ref().strip_prefix('>') {
            Some(title) => Column {
                title: title.into(),
                right: true,
            },
            None => Column {
                title: title.as_ref().into(),
                right: false,
            },
        };
        Table {
            columns: titles.iter().map(column).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; cells that are missing are empty.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes it, or `nothing` if it has no rows.
    pub(super) fn write(&self, out: &mut impl Write, nothing: &str) -> io::Result<()> {
        if self.rows.is_empty() {
            return writeln!(out, "{nothing}");
        }
        let titles: Vec<String> = self
            .columns
            .iter()
            .map(|column| column.title.clone())
            .collect();
        let width = |i: usize| {
            let cells = self
                .rows
                .iter()
                .chain([&titles])
                .filter_map(|row| row.get(i));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for row in [&titles].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for ((column, &width), cell) in self.columns.iter().zip(&widths).zip(row) {
                let gap = if line.is_empty() { "" } else { "  " };
                line.push_str(gap);
                line.push_str(&match column.right {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                });
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(table: &Table) -> String {
        let mut out = Vec::new();
        table.write(&mut out, "nothing").unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_fit_their_cells() {
        let mut table = Table::new(&["name", ">count", "note"]);
        assert_eq!(text(&table), "nothing\n");
        table.row(vec!["roce0".into(), "7".into(), "x".into()]);
        table.row(vec!["a".into(), "1234567".into()]);
        assert_eq!(
            text(&table),
            "name     count  note\nroce0        7  x\na      1234567\n"
        );
    }
}
