//! RandAugment: a few operations of one strength, drawn for every image.
//!
//! The operations are torchvision's on byte tensors, to the bit. They differ only where
//! torchvision's f32 arithmetic decides by its last bit: sources exactly between two pixels, and
//! values of a stretched range and outermost pixels of a sharpened image, which it sometimes lowers
//! by one.

mod affine;
pub(super) mod blend;
pub(super) mod levels;
#[cfg(test)]
mod tests;

use super::Pixels;
use super::change::Change;
use super::parse::{Parameters, ParseAugmentError};
use crate::ImageShape;
use crate::random::{Purpose, Stream};
use affine::Affine;

/// Cubuk et al. 2019, <https://arxiv.org/abs/1909.13719>.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RandAugment {
    /// Number of operations per image, each drawn independently.
    pub(super) operations: u8,
    /// Their strength, out of [`MAX_MAGNITUDE`].
    pub(super) magnitude: u8,
}

/// Greatest strength; the least is 0.
pub(super) const MAX_MAGNITUDE: u8 = 30;

/// Operations on an image; the comments give their extent at the greatest magnitude.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// No change.
    Identity,
    /// 0.3 columns per row, to either side; the top left corner stays.
    ShearX,
    /// 0.3 rows per column, to either side.
    ShearY,
    /// 150/331 of the width, to either side, in whole pixels.
    TranslateX,
    /// 150/331 of the height, to either side, in whole pixels.
    TranslateY,
    /// 30 degrees around the centre, in either direction.
    Rotate,
    /// Blended with black by 0.9, or moved that much away from it.
    Brightness,
    /// Blended with its grey version by 0.9, or moved that much away from it.
    Color,
    /// Blended with its mean grey by 0.9, or moved that much away from it.
    Contrast,
    /// Blended with a smoothed version by 0.9, or moved that much away from it.
    Sharpness,
    /// 4 of the 8 bits remain.
    Posterize,
    /// Inverts values from 0 on (at magnitude 0, from 255 on).
    Solarize,
    /// Stretches the range of each channel to 0..=255.
    AutoContrast,
    /// Equalizes the histogram of each channel.
    Equalize,
    /// Inverts all values; part of AutoAugment, not of RandAugment.
    Invert,
}

use Operation::*;

const OPERATIONS: [Operation; 14] = [
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
];

impl Operation {
    /// Whether its strength has a direction; each one has probability 1/2.
    pub(super) fn is_signed(self) -> bool {
        !matches!(
            self,
            Identity | Posterize | Solarize | AutoContrast | Equalize | Invert
        )
    }
}

impl Change<Pixels> for RandAugment {
    const USAGE: &'static str = "rand-augment[:OPS[:MAGNITUDE]]";
    const PURPOSE: Purpose = Purpose::RandAugment;

    fn read(words: &mut Parameters<'_>) -> Result<Self, ParseAugmentError> {
        Ok(Self {
            operations: words.whole("OPS", 2, 1..=14)?,
            magnitude: words.whole("MAGNITUDE", 9, 0..=MAX_MAGNITUDE)?,
        })
    }

    fn text(&self) -> String {
        format!("rand-augment:{}:{}", self.operations, self.magnitude)
    }

    fn apply(&self, stream: &mut Stream, shape: ImageShape, pixels: &mut Pixels) {
        if shape.is_empty() {
            return;
        }
        for _ in 0..self.operations {
            let drawn = stream.below(OPERATIONS.len() as u64) as usize;
            let operation = OPERATIONS.get(drawn).copied().unwrap_or(Identity);
            let negative = operation.is_signed() && stream.below(2) == 1;
            let magnitude = f32::from(self.magnitude);
            let magnitude = if negative { -magnitude } else { magnitude };
            run(operation, magnitude, shape, pixels);
        }
    }
}

/// Applies `operation` to the image; a negative magnitude means the other direction.
pub(super) fn run(operation: Operation, magnitude: f32, shape: ImageShape, pixels: &mut Pixels) {
    let of = |greatest: f32| greatest / f32::from(MAX_MAGNITUDE) * magnitude;
    let translation = |length: usize| of(150.0 / 331.0 * length as f32).trunc();
    let plane = shape.height * shape.width;
    let image = &mut pixels.image;
    let affine = match operation {
        ShearX => Affine::shear_x(of(0.3), shape),
        ShearY => Affine::shear_y(of(0.3), shape),
        TranslateX => Affine::translate(translation(shape.width), 0.0),
        TranslateY => Affine::translate(0.0, translation(shape.height)),
        Rotate => Affine::rotate(of(30.0).to_radians()),
        Identity => return,
        Brightness => return blend::brightness(of(0.9), image),
        Color => return blend::color(of(0.9), plane, image),
        Contrast => return blend::contrast(of(0.9), plane, image),
        Sharpness => {
            let by = of(0.9);
            return pixels.rewrite(|from, to| blend::sharpness(by, shape, from, to));
        }
        Posterize => return levels::posterize(of(4.0).round() as u32, image),
        Solarize => return levels::solarize(255.0 - of(255.0), image),
        AutoContrast => return levels::auto_contrast(plane, image),
        Equalize => return levels::equalize(plane, image),
        Invert => return levels::solarize(0.0, image),
    };
    let mut sources = std::mem::take(&mut pixels.sources);
    affine.sources(shape, &mut sources);
    pixels.rewrite(|from, to| affine::gather(&sources, from, to));
    pixels.sources = sources;
}
