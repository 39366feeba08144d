//! The choice of 3-Augment: an image becomes grey, solarized or blurred.

use super::Pixels;
use super::change::Change;
use super::parse::{Parameters, ParseAugmentError};
use super::rand_augment::{blend, levels};
use crate::ImageShape;
use crate::random::{Purpose, Stream};

/// Touvron et al. 2022, DeiT III, <https://arxiv.org/abs/2204.07118>. Its colour jitter is
/// `color-jitter`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ThreeAugment;

/// Values from here on are inverted.
const SOLARIZE_FROM: f32 = 128.0;
/// Standard deviation of the blur in pixels, uniform.
const BLUR: (f32, f32) = (0.1, 2.0);

impl Change<Pixels> for ThreeAugment {
    const USAGE: &'static str = "three-augment";
    const PURPOSE: Purpose = Purpose::ThreeAugment;

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
        match stream.below(3) {
            0 => blend::color(-1.0, shape.height * shape.width, &mut pixels.image),
            1 => levels::solarize(SOLARIZE_FROM, &mut pixels.image),
            _ => {
                let sigma = stream.between(BLUR.0, BLUR.1);
                blur(sigma, shape, pixels);
            }
        }
    }
}

/// Blurs with a Gaussian of standard deviation `sigma`, cut off at three of them. Borders are
/// mirrored.
fn blur(sigma: f32, shape: ImageShape, pixels: &mut Pixels) {
    let ImageShape { height, width, .. } = shape;
    let kernel = |length: usize| gaussian(sigma, length - 1);
    let (down, across) = (kernel(height), kernel(width));
    let plane = height * width;
    let mut rows = vec![0.0; plane];
    pixels.rewrite(|from, to| {
        for (from, to) in from.chunks_exact(plane).zip(to.chunks_exact_mut(plane)) {
            for (row, sums) in from.chunks_exact(width).zip(rows.chunks_exact_mut(width)) {
                for (x, sum) in sums.iter_mut().enumerate() {
                    *sum = weigh(&across, x, width, |x| f32::from(row[x]));
                }
            }
            for (y, to) in to.chunks_exact_mut(width).enumerate() {
                for (x, value) in to.iter_mut().enumerate() {
                    let sum = weigh(&down, y, height, |y| rows[y * width + x]);
                    // The cast saturates.
                    *value = sum.round_ties_even() as u8;
                }
            }
        }
    });
}

/// Weights of the middle and of its neighbours at growing distances to one side, at most `reach`.
fn gaussian(sigma: f32, reach: usize) -> Vec<f32> {
    let reach = reach.min((3.0 * sigma).ceil() as usize);
    let mut weights: Vec<f32> = (0..=reach)
        .map(|distance| (-0.5 * (distance as f32 / sigma).powi(2)).exp())
        .collect();
    let sum = 2.0 * weights.iter().sum::<f32>() - 1.0;
    weights.iter_mut().for_each(|weight| *weight /= sum);
    weights
}

/// The weighted sum around `at`; the mirror is the outermost value.
fn weigh(weights: &[f32], at: usize, length: usize, value: impl Fn(usize) -> f32) -> f32 {
    let mut sum = 0.0;
    for (distance, weight) in weights.iter().enumerate() {
        if distance == 0 {
            sum += weight * value(at);
            continue;
        }
        let before = at.abs_diff(distance);
        let after = at + distance;
        let after = match after < length {
            true => after,
            false => 2 * (length - 1) - after,
        };
        sum += weight * (value(before) + value(after));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ImageShape = ImageShape {
        channels: 3,
        height: 4,
        width: 5,
    };

    fn pixels() -> Pixels {
        let value = |c: usize, y: usize, x: usize| 40 + 67 * c + 53 * y + 29 * x + 7 * x * y;
        let image = (0..60).map(|i| value(i / 20, i / 5 % 4, i % 5) % 256);
        let mut pixels = Pixels::default();
        pixels.resize(SHAPE);
        pixels.image = image.map(|value| value as u8).collect();
        pixels
    }

    /// Results of torchvision 0.15's `gaussian_blur` with windows of 5 and 7 pixels, whose f32 sums
    /// are in another order.
    #[test]
    #[rustfmt::skip]
    fn blurs_are_torchvisions() {
        for (sigma, expected) in [
            (0.5, [
                58, 82, 112, 143, 167, 101, 129, 162, 177, 202, 155, 186, 186, 68, 80, 198, 215, 99, 83, 115,
                125, 149, 173, 161, 179, 162, 172, 183, 61, 68, 152, 49, 67, 89, 120, 52, 53, 96, 144, 182,
                180, 167, 170, 42, 45, 164, 56, 67, 82, 107, 55, 70, 110, 150, 165, 76, 114, 163, 190, 91,
            ]),
            (0.9, [
                95, 109, 135, 157, 168, 120, 132, 146, 150, 153, 164, 166, 148, 118, 110, 185, 178, 140, 101, 92,
                150, 157, 154, 130, 120, 143, 142, 134, 111, 102, 106, 97, 97, 104, 110, 80, 74, 87, 115, 132,
                141, 126, 105, 81, 73, 114, 103, 97, 97, 99, 84, 90, 112, 132, 136, 82, 98, 131, 149, 146,
            ]),
        ] {
            let mut pixels = pixels();
            blur(sigma, SHAPE, &mut pixels);
            for (found, expected) in pixels.image.iter().zip(expected) {
                assert!(found.abs_diff(expected) <= 1, "{sigma}: {found} {expected}");
            }
        }
    }

    /// First values of torchvision's `rgb_to_grayscale` and `solarize(128)`.
    const GREY: [u8; 10] = [94, 123, 152, 152, 181, 147, 154, 190, 76, 112];
    const SOLARIZED: [u8; 10] = [40, 69, 98, 127, 99, 93, 126, 90, 54, 18];

    #[test]
    fn each_choice_comes_for_a_third_of_the_images() {
        let mut counts = [0; 3];
        for seed in 0..3000 {
            let mut pixels = pixels();
            let mut stream = Stream::new(Purpose::ThreeAugment, seed, 0, 0);
            ThreeAugment.apply(&mut stream, SHAPE, &mut pixels);
            let choice = match &pixels.image[..10] {
                start if start == GREY => 0,
                start if start == SOLARIZED => 1,
                _ => 2,
            };
            counts[choice] += 1;
        }
        assert!(
            counts.iter().all(|count| (900..1100).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn one_colour_and_small_images_stay() {
        for (height, width) in [(1, 1), (1, 5), (3, 2)] {
            let shape = ImageShape {
                channels: 1,
                height,
                width,
            };
            let mut pixels = Pixels::default();
            pixels.resize(shape);
            pixels.image.fill(90);
            blur(2.0, shape, &mut pixels);
            assert!(pixels.image.iter().all(|value| *value == 90));
        }
        let shape = ImageShape { width: 0, ..SHAPE };
        let mut stream = Stream::new(Purpose::ThreeAugment, 1, 0, 0);
        ThreeAugment.apply(&mut stream, shape, &mut Pixels::default());
    }
}
