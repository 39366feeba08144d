//! The confusion matrix as a heat map.
//!
//! Right predictions and mistakes have different colors, so that few mistakes among many right
//! predictions stand out.

use std::fmt::Write;

use super::classes::class_name;
use super::html;

/// Maximum cells along a side. More classes share cells with their neighbors.
const CELLS: usize = 150;
/// Maximum classes with a name on every row.
const NAMED: usize = 120;
/// Maximum classes with a count in every cell.
const COUNTED: usize = 20;
/// Maximum characters of a name, and the cell size from which letters have full size.
const LONGEST: usize = 18;
const LETTERS: f64 = 12.0;
/// Number of color levels.
const LEVELS: usize = 12;
/// Side of the whole picture.
const SIDE: f64 = 760.0;

/// A validated matrix.
#[derive(Debug)]
pub struct Matrix<'a> {
    rows: &'a [Vec<i64>],
    names: &'a [String],
}

impl<'a> Matrix<'a> {
    /// Validates the matrix: square, without negative counts. `None` otherwise.
    pub fn new(rows: &'a [Vec<i64>], names: &'a [String]) -> Option<Self> {
        let is_count = |count: &i64| (0..=1 << 40).contains(count);
        let fits = |row: &Vec<i64>| row.len() == rows.len() && row.iter().all(is_count);
        (!rows.is_empty() && rows.iter().all(fits)).then_some(Self { rows, names })
    }

    /// The most frequent mistakes, as count, true class and predicted class.
    pub fn mistakes(&self, wanted: usize) -> Vec<(i64, usize, usize)> {
        let mut most: Vec<(i64, usize, usize)> = Vec::new();
        for (row, counts) in self.rows.iter().enumerate() {
            for (column, count) in counts.iter().enumerate() {
                if row != column && *count > 0 {
                    most.push((*count, row, column));
                }
            }
            most.sort_by_key(|(count, row, column)| (-count, *row, *column));
            most.truncate(wanted);
        }
        most
    }

    /// Draws the matrix.
    pub fn figure(&self) -> String {
        let group = self.rows.len().div_ceil(CELLS);
        let cells = self.cells(group);
        let count = cells.len();
        let named = count <= NAMED && group == 1;
        let side = (SIDE / count as f64).min(48.0);
        let margin = if named { self.room(side) } else { 34.0 };
        let full = side * count as f64;
        let size = margin + full + 4.0;
        let mut svg = format!(
            "<svg data-plot=\"confusion\" viewBox=\"0 0 {size:.1} {size:.1}\" role=\"img\" \
             aria-label=\"Confusion matrix\" style=\"max-width:{:.0}px;margin:0 auto\"",
            size.max(420.0)
        );
        if named {
            svg += &self.values(margin, side);
        }
        svg += ">\n";
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{margin} {margin}h{full:.1}v{full:.1}h-{full:.1}Z\"/>"
        );
        svg += &heat(&cells, margin, side);
        if count <= COUNTED && group == 1 {
            svg += &counts(&cells, margin, side);
        }
        svg += &match named {
            true => self.named(margin, side),
            false => numbers(self.rows.len(), margin, full),
        };
        let class = if self.is_small() { "" } else { "wide" };
        let shared = match group {
            1 => String::new(),
            group => format!(", {group} classes per cell"),
        };
        format!(
            "<figure class=\"{class}\"><figcaption><b>Confusion matrix</b><span class=\"keys\">\
             rows: true class; columns: predicted class; shade: share of the row, mistakes enhanced{shared}</span></figcaption>\n{svg}</svg></figure>\n"
        )
    }

    /// Sums over blocks of `group` × `group` counts.
    fn cells(&self, group: usize) -> Vec<Vec<i64>> {
        let blocks = self.rows.chunks(group);
        let sums = blocks.map(|rows| {
            let mut sums = vec![0i64; self.rows.len().div_ceil(group)];
            for row in rows {
                for (sum, counts) in sums.iter_mut().zip(row.chunks(group)) {
                    *sum += counts.iter().sum::<i64>();
                }
            }
            sums
        });
        sums.collect()
    }

    /// Data that the script shows under the pointer.
    fn values(&self, margin: f64, side: f64) -> String {
        let names: Vec<String> = (0..self.rows.len())
            .map(|class| class_name(self.names, class).chars().take(40).collect())
            .collect();
        let names = serde_json::to_string(&names).unwrap_or_default();
        let mut cells = Vec::new();
        for (row, counts) in self.rows.iter().enumerate() {
            let columns = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            cells.extend(columns.map(|(column, count)| format!("{row},{column},{count}")));
        }
        format!(
            " data-grid=\"{margin} {margin} {side:.4}\" data-names=\"{}\" data-cells=\"{}\"",
            html::escape(&names),
            cells.join(" ")
        )
    }

    /// Whether the picture is small enough to have something beside it.
    pub fn is_small(&self) -> bool {
        self.rows.len() <= COUNTED
    }

    /// Length in characters of the longest name to write.
    fn longest(&self) -> usize {
        let lengths =
            (0..self.rows.len()).map(|class| class_name(self.names, class).chars().count());
        lengths.max().unwrap_or_default().min(LONGEST)
    }

    /// Margin for the names.
    fn room(&self, side: f64) -> f64 {
        let letter = if side < LETTERS { 5.3 } else { 7.0 };
        14.0 + letter * self.longest() as f64
    }

    fn named(&self, margin: f64, side: f64) -> String {
        let class = if side < LETTERS { "small" } else { "" };
        let drop = if side < LETTERS { 2.6 } else { 4.0 };
        let level = side >= LETTERS && self.longest() <= 2;
        let mut labels = String::new();
        for index in 0..self.rows.len() {
            let full = class_name(self.names, index);
            let name = html::shortened(&full, LONGEST - 1);
            let middle = margin + side * (index as f64 + 0.5);
            if level {
                labels += &text(margin - 6.0, middle + drop, "end", &name);
                labels += &text(middle, margin - 6.0, "middle", &name);
                labels += "\n";
                continue;
            }
            let (place, edge) = (middle + drop, margin - 5.0);
            labels += &text(edge, place, &format!("end {class}"), &name);
            let _ = writeln!(
                labels,
                "<text x=\"{place:.1}\" y=\"{edge:.1}\" class=\"{class}\" \
                 transform=\"rotate(-90 {place:.1} {edge:.1})\">{name}</text>"
            );
        }
        labels
    }
}

/// A label, which is already escaped.
fn text(x: f64, y: f64, class: &str, label: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{label}</text>")
}

/// The squares of each level and color, as one path each.
fn heat(cells: &[Vec<i64>], margin: f64, side: f64) -> String {
    let mut paths = vec![String::new(); 2 * LEVELS];
    let drawn = side - (side * 0.06).min(1.0);
    for (row, counts) in cells.iter().enumerate() {
        let sum = counts.iter().sum::<i64>();
        for (column, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let share = *count as f64 / sum as f64;
            // The square root makes rare counts visible.
            let level = (share.sqrt() * LEVELS as f64).ceil() as usize;
            let level = level.clamp(1, LEVELS) - 1;
            let colour = if row == column { 0 } else { LEVELS };
            if let Some(path) = paths.get_mut(colour + level) {
                let x = margin + side * column as f64;
                let y = margin + side * row as f64;
                let _ = write!(path, "M{x:.1} {y:.1}h{drawn:.1}v{drawn:.1}h-{drawn:.1}Z");
            }
        }
    }
    let mut svg = String::new();
    for (index, path) in paths
        .iter()
        .enumerate()
        .filter(|(_, path)| !path.is_empty())
    {
        let class = if index < LEVELS { "right" } else { "wrong" };
        let opacity = (index % LEVELS + 1) as f64 / LEVELS as f64;
        let opacity = 0.08 + 0.92 * opacity;
        let _ = writeln!(
            svg,
            "<path class=\"{class}\" fill-opacity=\"{opacity:.2}\" d=\"{path}\"/>"
        );
    }
    svg
}

fn counts(cells: &[Vec<i64>], margin: f64, side: f64) -> String {
    let mut svg = String::new();
    for (row, counts) in cells.iter().enumerate() {
        let sum = counts.iter().sum::<i64>();
        for (column, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let strong = if *count as f64 > 0.4 * sum as f64 {
                " strong"
            } else {
                ""
            };
            let place = |index: usize| margin + side * (index as f64 + 0.5);
            let class = format!("count{strong}");
            svg += &text(place(column), place(row) + 4.0, &class, &count.to_string());
            svg += "\n";
        }
    }
    svg
}

/// Some class numbers along both sides, if names have no room.
fn numbers(classes: usize, margin: f64, full: f64) -> String {
    let mut labels = String::new();
    for fifth in 0..5usize {
        let class = classes * fifth / 5;
        let (place, edge) = (margin + full * fifth as f64 / 5.0, margin - 5.0);
        labels += &text(edge, place + 9.0, "end", &class.to_string());
        let _ = writeln!(
            labels,
            "<text x=\"{place:.1}\" y=\"{edge:.1}\">{class}</text>"
        );
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square(count: usize) -> Vec<Vec<i64>> {
        let row = |row: usize| {
            (0..count)
                .map(move |c| if c == row { 90 } else { 1 })
                .collect()
        };
        (0..count).map(row).collect()
    }

    #[test]
    fn what_is_no_matrix_of_counts_is_refused() {
        for rows in [
            vec![],
            vec![vec![1, 2]],
            vec![vec![1, 2], vec![1]],
            vec![vec![-1]],
        ] {
            assert!(Matrix::new(&rows, &[]).is_none());
        }
        let huge = [vec![i64::MAX]];
        assert!(Matrix::new(&huge, &[]).is_none());
    }

    #[test]
    fn any_number_of_classes_makes_a_small_picture() {
        for (count, text) in [
            (1, "90"),
            (10, "&lt;9&gt;"),
            (100, "&lt;99&gt;"),
            (2000, "14 classes per cell"),
        ] {
            let rows = square(count);
            let names: Vec<String> = (0..count).map(|class| format!("<{class}>")).collect();
            let figure = Matrix::new(&rows, &names).unwrap().figure();
            assert!(figure.contains(text), "{count}");
            assert!(!figure.contains("NaN") && !figure.contains("<9"), "{count}");
            assert!(figure.len() < 900_000, "{count}: {}", figure.len());
        }
    }

    #[test]
    fn mistakes_are_sorted_and_cells_summed() {
        let rows = vec![vec![9, 1, 0], vec![4, 5, 2], vec![0, 2, 8]];
        let matrix = Matrix::new(&rows, &[]).unwrap();
        assert_eq!(matrix.mistakes(3), [(4, 1, 0), (2, 1, 2), (2, 2, 1)]);
        assert_eq!(matrix.cells(2), [[19, 2], [2, 8]]);
    }
}
