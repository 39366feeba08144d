//! Pictures of an evaluation for loggers: sample images and the confusion matrix.

use std::fmt::Write;
use std::io::Cursor;

use image::{ImageFormat, Rgb, RgbImage};

/// Side of a drawn confusion matrix in pixels, if its cells can be larger than one.
const SIDE: u32 = 512;
/// Largest cell in pixels.
const CELL: u32 = 32;
/// Maximum classes of a table.
const TABLE: usize = 32;

/// Color of a cell with all images of its class, if they are right.
const RIGHT: [u8; 3] = [22, 128, 80];
/// The same, if they are wrong.
const WRONG: [u8; 3] = [217, 83, 25];

/// Pictures of one evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gallery {
    /// Steps before the evaluation.
    pub step: u64,
    /// Name of the evaluated data, such as `val`.
    pub set: String,
    /// Sample images.
    pub pictures: Vec<SampleImage>,
    /// Names of the classes.
    pub names: Vec<String>,
    /// Confusion matrix: samples of the class of the row that were predicted as that of the column.
    /// Empty without classes.
    pub confusion: Vec<Vec<i64>>,
}

/// A sample image.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleImage {
    /// Its group: `examples` or `mistakes`.
    pub group: &'static str,
    /// Its number in the group.
    pub number: usize,
    /// The image as a PNG file.
    pub png: Vec<u8>,
    /// Its class and the predictions.
    pub caption: String,
}

impl Gallery {
    /// Draws the confusion matrix as a PNG file: a cell's color says which share of its row it has.
    /// `None` without one.
    pub fn confusion_png(&self) -> Option<Vec<u8>> {
        let classes = u32::try_from(self.confusion.len())
            .ok()
            .filter(|count| *count > 0)?;
        let cell = (SIDE / classes).clamp(1, CELL);
        let sums: Vec<i64> = self.confusion.iter().map(|row| row.iter().sum()).collect();
        let color = |x: u32, y: u32| {
            let (row, column) = ((y / cell) as usize, (x / cell) as usize);
            let count = self.confusion.get(row).and_then(|row| row.get(column));
            let sum = sums.get(row).copied().unwrap_or_default().max(1);
            let share = count.copied().unwrap_or_default() as f64 / sum as f64;
            // Rare mistakes must be visible too.
            let strength = share.clamp(0.0, 1.0).sqrt();
            let full = if row == column { RIGHT } else { WRONG };
            Rgb(full.map(|part| (255.0 - strength * (255.0 - f64::from(part))) as u8))
        };
        let picture = RgbImage::from_fn(classes * cell, classes * cell, color);
        let mut file = Cursor::new(Vec::new());
        picture.write_to(&mut file, ImageFormat::Png).ok()?;
        Some(file.into_inner())
    }

    /// The confusion matrix as a Markdown table. `None` with too many classes.
    pub fn confusion_table(&self) -> Option<String> {
        let classes = self.confusion.len();
        if classes == 0 || classes > TABLE {
            return None;
        }
        let name = |class: usize| match self.names.get(class) {
            Some(name) => cell(name),
            None => class.to_string(),
        };
        let mut table = "| class \\ predicted |".to_owned();
        for class in 0..classes {
            // Writing to a string cannot fail.
            let _ = write!(table, " {} |", name(class));
        }
        let _ = write!(table, "\n|---|{}\n", "---|".repeat(classes));
        for (class, row) in self.confusion.iter().enumerate() {
            let _ = write!(table, "| {} |", name(class));
            for count in row {
                let _ = write!(table, " {count} |");
            }
            table.push('\n');
        }
        Some(table)
    }

    /// The captions of a group's pictures as a Markdown list. `None` without any.
    pub fn captions(&self, group: &str) -> Option<String> {
        let own = self
            .pictures
            .iter()
            .filter(|picture| picture.group == group);
        let lines =
            own.map(|picture| format!("- {}: {}\n", picture.number, cell(&picture.caption)));
        let text: String = lines.collect();
        (!text.is_empty()).then_some(text)
    }
}

/// Text for a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confusion_matrix_is_a_picture_and_a_table() {
        let gallery = Gallery {
            names: vec!["a|b".to_owned(), "c".to_owned()],
            confusion: vec![vec![4, 0], vec![1, 3]],
            ..Gallery::default()
        };
        let table = gallery.confusion_table().unwrap();
        let expected =
            "| class \\ predicted | a\\|b | c |\n|---|---|---|\n| a\\|b | 4 | 0 |\n| c | 1 | 3 |\n";
        assert_eq!(table, expected);
        let png = gallery.confusion_png().unwrap();
        let picture = image::load_from_memory(&png).unwrap().into_rgb8();
        assert_eq!(picture.dimensions(), (2 * CELL, 2 * CELL));
        assert_eq!(picture.get_pixel(0, 0).0, RIGHT);
        assert_eq!(picture.get_pixel(CELL, 0).0, [255; 3]);
        // A quarter of the second row is wrong.
        let wrong = WRONG.map(|part| (255.0 - 0.5 * (255.0 - f64::from(part))) as u8);
        assert_eq!(picture.get_pixel(0, CELL).0, wrong);
        assert_eq!(Gallery::default().confusion_png(), None);
        assert_eq!(Gallery::default().confusion_table(), None);
    }
}
