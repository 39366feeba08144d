//! AutoAugment: the pairs of operations that a search found best for CIFAR-10.
//!
//! Operations and their strengths are torchvision's.

use super::Pixels;
use super::change::Change;
use super::parse::{Parameters, ParseAugmentError};
use super::rand_augment::{MAX_MAGNITUDE, Operation, run};
use crate::ImageShape;
use crate::random::{Purpose, Stream};
use Operation::*;

/// Greatest strength in the paper; the least is 0.
const STRENGTHS: f32 = 9.0;

/// An operation, its probability in tenths, and its strength from 0 to 9 if it has one.
type Step = (Operation, u8, u8);

/// Cubuk et al. 2018, <https://arxiv.org/abs/1805.09501>, table 7 of the appendix.
#[rustfmt::skip]
const POLICY: [[Step; 2]; 25] = [
    [(Invert, 1, 0), (Contrast, 2, 6)],
    [(Rotate, 7, 2), (TranslateX, 3, 9)],
    [(Sharpness, 8, 1), (Sharpness, 9, 3)],
    [(ShearY, 5, 8), (TranslateY, 7, 9)],
    [(AutoContrast, 5, 0), (Equalize, 9, 0)],
    [(ShearY, 2, 7), (Posterize, 3, 7)],
    [(Color, 4, 3), (Brightness, 6, 7)],
    [(Sharpness, 3, 9), (Brightness, 7, 9)],
    [(Equalize, 6, 0), (Equalize, 5, 0)],
    [(Contrast, 6, 7), (Sharpness, 6, 5)],
    [(Color, 7, 7), (TranslateX, 5, 8)],
    [(Equalize, 3, 0), (AutoContrast, 4, 0)],
    [(TranslateY, 4, 3), (Sharpness, 2, 6)],
    [(Brightness, 9, 6), (Color, 2, 8)],
    [(Solarize, 5, 2), (Invert, 0, 0)],
    [(Equalize, 2, 0), (AutoContrast, 6, 0)],
    [(Equalize, 2, 0), (Equalize, 6, 0)],
    [(Color, 9, 9), (Equalize, 6, 0)],
    [(AutoContrast, 8, 0), (Solarize, 2, 8)],
    [(Brightness, 1, 3), (Color, 7, 0)],
    [(Solarize, 4, 5), (AutoContrast, 9, 0)],
    [(TranslateY, 9, 9), (TranslateY, 7, 9)],
    [(AutoContrast, 9, 0), (Solarize, 8, 3)],
    [(Equalize, 8, 0), (Invert, 1, 0)],
    [(TranslateY, 7, 9), (AutoContrast, 9, 0)],
];

/// The policy; it has no parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AutoAugment;

impl Change<Pixels> for AutoAugment {
    const USAGE: &'static str = "auto-augment";
    const PURPOSE: Purpose = Purpose::AutoAugment;

    fn read(_: &mut Parameters<'_>) -> Result<Self, ParseAugmentError> {
        Ok(Self)
    }

    fn text(&self) -> String {
        Self::USAGE.to_owned()
    }

    fn apply(&self, stream: &mut Stream, shape: ImageShape, pixels: &mut Pixels) {
        if shape.is_empty() {
            return;
        }
        let drawn = stream.below(POLICY.len() as u64) as usize;
        for &(operation, tenths, strength) in POLICY.get(drawn).into_iter().flatten() {
            let done = stream.unit() < f32::from(tenths) / 10.0;
            let negative = stream.below(2) == 1;
            if done {
                run(
                    operation,
                    magnitude(operation, strength, negative),
                    shape,
                    pixels,
                );
            }
        }
    }
}

/// Converts a strength of the paper to the scale of RandAugment.
fn magnitude(operation: Operation, strength: u8, negative: bool) -> f32 {
    let magnitude = f32::from(strength) / STRENGTHS * f32::from(MAX_MAGNITUDE);
    match operation.is_signed() && negative {
        true => -magnitude,
        false => magnitude,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ImageShape = ImageShape {
        channels: 3,
        height: 4,
        width: 5,
    };

    fn image() -> Vec<u8> {
        let value = |c: usize, y: usize, x: usize| 40 + 67 * c + 53 * y + 29 * x + 7 * x * y;
        let pixels = (0..60).map(|i| value(i / 20, i / 5 % 4, i % 5) % 256);
        pixels.map(|value| value as u8).collect()
    }

    fn pixels() -> Pixels {
        let mut pixels = Pixels::default();
        pixels.resize(SHAPE);
        pixels.image = image();
        pixels
    }

    /// First rows and sum of torchvision 0.29's result for the image
    /// (`AutoAugment._augmentation_space(10, ..)` and `_apply_op`).
    #[test]
    #[rustfmt::skip]
    fn strengths_are_torchvisions() {
        let cases: [(Operation, u8, bool, [u8; 10], u64); 6] = [
            (Posterize, 7, false, [40, 64, 96, 120, 152, 88, 128, 160, 200, 232], 7280),
            (Invert, 0, true, [215, 186, 157, 128, 99, 162, 126, 90, 54, 18], 7818),
            (Solarize, 2, true, [40, 69, 98, 127, 156, 93, 129, 165, 54, 18], 5027),
            (Contrast, 6, true, [91, 103, 114, 126, 138, 112, 127, 141, 156, 170], 7503),
            (TranslateY, 9, false, [0, 0, 0, 0, 0, 40, 69, 98, 127, 156], 5576),
            (Brightness, 3, false, [52, 89, 127, 165, 202, 120, 167, 214, 255, 255], 9270),
        ];
        for (operation, strength, negative, start, sum) in cases {
            let mut pixels = pixels();
            run(operation, magnitude(operation, strength, negative), SHAPE, &mut pixels);
            assert_eq!(pixels.image[..10], start, "{operation:?}");
            let found: u64 = pixels.image.iter().copied().map(u64::from).sum();
            assert_eq!(found, sum, "{operation:?}");
        }
    }

    #[test]
    fn pairs_come_as_often_as_they_should() {
        let runs = 4000;
        let unchanged = (0..runs)
            .filter(|&seed| {
                let mut pixels = pixels();
                let mut stream = Stream::new(Purpose::AutoAugment, seed, 0, 0);
                AutoAugment.apply(&mut stream, SHAPE, &mut pixels);
                pixels.image == image()
            })
            .count();
        // From the table. An image this small has no histogram to equalize, and `Color` of strength
        // 0 changes nothing either.
        let idle = |&(operation, tenths, strength): &Step| {
            let works = operation != Equalize && (operation, strength) != (Color, 0);
            1.0 - if works { f64::from(tenths) / 10.0 } else { 0.0 }
        };
        let expected: f64 = POLICY
            .iter()
            .map(|pair| idle(&pair[0]) * idle(&pair[1]))
            .sum();
        let (expected, found) = (expected / 25.0, unchanged as f64 / runs as f64);
        assert!(
            (found - expected).abs() < 0.03,
            "{found} instead of {expected}"
        );
    }

    #[test]
    fn no_pixels_are_no_trouble() {
        let shape = ImageShape { width: 0, ..SHAPE };
        let mut stream = Stream::new(Purpose::AutoAugment, 1, 0, 0);
        AutoAugment.apply(&mut stream, shape, &mut Pixels::default());
    }
}
