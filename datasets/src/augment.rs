//! Random changes to training images, and the way from bytes to normalised numbers.
//!
//! Both happen in one pass over whole rows: an augmentation is a translation and perhaps a mirror
//! image, and a byte becomes its normalised value by one table look-up.

use std::fmt;
use std::str::FromStr;

use crate::random::{Purpose, Stream};
use crate::{DatasetError, ImageShape, Normalization};

/// What is changed at random in every training image. Written in configurations as `none`,
/// `shift`, `shift:PIXELS`, `crop+flip` or `crop+flip:PADDING`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Augment {
    /// Nothing.
    #[default]
    None,
    /// Moved by up to `pixels` rows and columns; black comes in at the edges. For digits.
    Shift {
        /// The farthest move.
        pixels: u8,
    },
    /// Padded with black by `padding` on all sides, cropped to its size anywhere within, and
    /// mirrored left to right in half of the cases. For photographs.
    CropFlip {
        /// The padding.
        padding: u8,
    },
}

/// A name that is no augmentation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown augmentation \"{given}\"; use none, shift, shift:PIXELS, crop+flip or crop+flip:PADDING (0 to 255)"
)]
pub struct ParseAugmentError {
    given: String,
}

impl FromStr for Augment {
    type Err = ParseAugmentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || ParseAugmentError {
            given: text.to_owned(),
        };
        let (name, reach) = match text.split_once(':') {
            Some((name, reach)) => (name, Some(reach.parse().map_err(|_| unknown())?)),
            None => (text, None),
        };
        match (name, reach) {
            ("none", None) => Ok(Augment::None),
            ("shift", reach) => Ok(Augment::Shift {
                pixels: reach.unwrap_or(2),
            }),
            ("crop+flip", reach) => Ok(Augment::CropFlip {
                padding: reach.unwrap_or(4),
            }),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Augment::None => write!(f, "none"),
            Augment::Shift { pixels } => write!(f, "shift:{pixels}"),
            Augment::CropFlip { padding } => write!(f, "crop+flip:{padding}"),
        }
    }
}

impl Augment {
    /// What happens to image `index` in `epoch`: depends on nothing else.
    pub(crate) fn place(&self, seed: u64, epoch: usize, index: usize) -> Placement {
        let (reach, flips) = match *self {
            Augment::None => return Placement::default(),
            Augment::Shift { pixels } => (pixels, false),
            Augment::CropFlip { padding } => (padding, true),
        };
        let mut stream = Stream::new(Purpose::Augment, seed, epoch as u64, index as u64);
        let mut offset = || stream.below(2 * u64::from(reach) + 1) as isize - isize::from(reach);
        Placement {
            down: offset(),
            right: offset(),
            mirrored: flips && stream.below(2) == 1,
        }
    }
}

/// Where an image lands in its frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) down: isize,
    pub(crate) right: isize,
    pub(crate) mirrored: bool,
}

/// Turns images of one data set into normalised numbers.
#[derive(Debug, Clone)]
pub(crate) struct Normalizer {
    shape: ImageShape,
    /// For every channel, the normalised value of every byte.
    tables: Vec<[f32; 256]>,
}

impl Normalizer {
    pub(crate) fn new(shape: ImageShape, by: &Normalization) -> Result<Self, DatasetError> {
        let unusable = |reason| Err(DatasetError::Normalization { reason });
        let channels = shape.channels;
        if by.mean.len() != channels || by.std.len() != channels {
            return unusable(format!(
                "{} means and {} standard deviations for {channels} channels",
                by.mean.len(),
                by.std.len()
            ));
        }
        let mut tables = Vec::with_capacity(by.mean.len());
        for (&mean, &std) in by.mean.iter().zip(&by.std) {
            if !mean.is_finite() || !std.is_finite() || std <= 0.0 {
                return unusable(format!("mean {mean} with standard deviation {std}"));
            }
            let value = |byte| (f64::from(byte) / 255.0 - f64::from(mean)) / f64::from(std);
            tables.push(std::array::from_fn(|byte| value(byte as u32) as f32));
        }
        Ok(Normalizer { shape, tables })
    }

    /// Writes the normalised `image` to `out` (both channel, row, column). What comes in at the
    /// edges is black, like a padded image that is normalised afterwards.
    pub(crate) fn convert(&self, image: &[u8], place: Placement, out: &mut [f32]) {
        let ImageShape { height, width, .. } = self.shape;
        let plane = height * width;
        if plane == 0 {
            return;
        }
        let planes = image.chunks_exact(plane).zip(out.chunks_exact_mut(plane));
        for (table, (image, out)) in self.tables.iter().zip(planes) {
            for (y, out) in out.chunks_exact_mut(width).enumerate() {
                let row = y
                    .checked_add_signed(-place.down)
                    .and_then(|y| image.chunks_exact(width).nth(y));
                match row {
                    Some(row) => write_row(row, table, place.right, out),
                    None => out.fill(table[0]),
                }
                if place.mirrored {
                    out.reverse();
                }
            }
        }
    }
}

/// Writes `row`, moved `right` columns, to `out` of the same length.
fn write_row(row: &[u8], table: &[f32; 256], right: isize, out: &mut [f32]) {
    let moved = right.unsigned_abs().min(row.len());
    let kept = row.len() - moved;
    let (row, out, border) = if right >= 0 {
        let (border, out) = out.split_at_mut(moved);
        (&row[..kept], out, border)
    } else {
        let (out, border) = out.split_at_mut(kept);
        (&row[moved..], out, border)
    };
    border.fill(table[0]);
    for (out, &byte) in out.iter_mut().zip(row) {
        *out = table[usize::from(byte)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: ImageShape = ImageShape {
        channels: 2,
        height: 3,
        width: 4,
    };

    fn plain() -> Normalizer {
        // Leaves a byte's value as it is, plus 1 in the second channel.
        let by = Normalization {
            mean: vec![0.0, -1.0 / 255.0],
            std: vec![1.0 / 255.0; 2],
        };
        Normalizer::new(SHAPE, &by).unwrap()
    }

    #[test]
    fn values_are_normalised_per_channel() {
        let by = Normalization {
            mean: vec![0.5, 0.25],
            std: vec![0.5, 0.125],
        };
        let normalizer = Normalizer::new(SHAPE, &by).unwrap();
        let mut out = [0.0; 24];
        normalizer.convert(&[255; 24], Placement::default(), &mut out);
        assert_eq!(out[..12], [1.0; 12]);
        assert_eq!(out[12..], [6.0; 12]);
    }

    #[test]
    fn unusable_statistics_are_refused() {
        for (mean, std) in [
            (vec![0.5], vec![0.5]),
            (vec![0.5; 2], vec![0.5, 0.0]),
            (vec![0.5, f32::NAN], vec![0.5; 2]),
            (vec![0.5; 2], vec![0.5, f32::INFINITY]),
        ] {
            assert!(Normalizer::new(SHAPE, &Normalization { mean, std }).is_err());
        }
    }

    #[test]
    fn names_read_back() {
        for text in ["none", "shift:3", "crop+flip:4", "shift:255"] {
            assert_eq!(text.parse::<Augment>().unwrap().to_string(), text);
        }
        assert_eq!("shift".parse(), Ok(Augment::Shift { pixels: 2 }));
        assert_eq!("crop+flip".parse(), Ok(Augment::CropFlip { padding: 4 }));
        for text in ["", "none:1", "shift:", "shift:256", "shift:-1", "flip"] {
            assert!(text.parse::<Augment>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_placement_occurs_and_none_beyond_reach() {
        let augment = Augment::CropFlip { padding: 1 };
        let mut counts = std::collections::HashMap::new();
        for index in 0..1800 {
            let place = augment.place(5, 6, index);
            assert_eq!(place, augment.place(5, 6, index));
            *counts
                .entry((place.down, place.right, place.mirrored))
                .or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 3 * 3 * 2);
        assert!(counts.values().all(|n| (60..150).contains(n)), "{counts:?}");
        assert_ne!(
            (0..9).map(|i| augment.place(5, 6, i)).collect::<Vec<_>>(),
            (0..9).map(|i| augment.place(5, 7, i)).collect::<Vec<_>>(),
        );
    }

    proptest! {
        #[test]
        fn convert_moves_and_mirrors(image in prop::collection::vec(any::<u8>(), 24),
                                     down in -6isize..7, right in -6isize..7, mirrored: bool) {
            let mut out = [f32::NAN; 24];
            plain().convert(&image, Placement { down, right, mirrored }, &mut out);
            for channel in 0..2 {
                for y in 0..3isize {
                    for x in 0..4isize {
                        let framed = if mirrored { 3 - x } else { x };
                        let (from_y, from_x) = (y - down, framed - right);
                        let inside = (0..3).contains(&from_y) && (0..4).contains(&from_x);
                        let byte = if inside { image[channel * 12 + (from_y * 4 + from_x) as usize] } else { 0 };
                        let value = out[channel * 12 + (y * 4 + x) as usize];
                        prop_assert!((value - f32::from(byte) - channel as f32).abs() < 1e-3);
                    }
                }
            }
        }
    }
}
