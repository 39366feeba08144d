//! Cutout and random erasing: remove parts of a normalised image, so that a model does not rely on
//! one detail.

use super::change::Change;
use super::parse::{PROBABILITIES, Parameters, ParseAugmentError};
use crate::ImageShape;
use crate::area::Area;
use crate::random::{Purpose, Stream};

/// A square set to the mean (DeVries and Taylor 2017, <https://arxiv.org/abs/1708.04552>).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cutout {
    /// In pixels.
    pub(super) side: u16,
}

impl Change<[f32]> for Cutout {
    const USAGE: &'static str = "cutout[:SIDE]";
    const PURPOSE: Purpose = Purpose::Cutout;

    fn read(words: &mut Parameters<'_>) -> Result<Self, ParseAugmentError> {
        let side = words.whole("SIDE", 16, 1..=u16::MAX)?;
        Ok(Self { side })
    }

    fn text(&self) -> String {
        format!("cutout:{}", self.side)
    }

    /// Draws the centre uniformly among all pixels, so the square may cross the borders.
    fn apply(&self, stream: &mut Stream, shape: ImageShape, image: &mut [f32]) {
        let y = stream.below(shape.height as u64) as usize;
        let x = stream.below(shape.width as u64) as usize;
        let side = usize::from(self.side);
        for row in Area::around(y, x, side, side, shape).rows(shape) {
            // The mean of normalised values is 0.
            image.get_mut(row).unwrap_or_default().fill(0.0);
        }
    }
}

/// A rectangle of noise (Zhong et al. 2017, <https://arxiv.org/abs/1708.04896>).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Erase {
    /// Probability that a part is erased.
    pub(super) p: f32,
}

/// Erased share of the area, uniform.
const AREA: (f32, f32) = (0.02, 1.0 / 3.0);
/// Least ratio of height to width; the greatest is its inverse. Log-uniform.
const MIN_ASPECT: f32 = 0.3;
/// Attempts to draw a rectangle that fits; after these, nothing is erased.
const ATTEMPTS: usize = 10;

impl Change<[f32]> for Erase {
    const USAGE: &'static str = "erase[:P]";
    const PURPOSE: Purpose = Purpose::Erase;

    fn read(words: &mut Parameters<'_>) -> Result<Self, ParseAugmentError> {
        let p = words.number("P", 0.25, PROBABILITIES)?;
        Ok(Self { p })
    }

    fn text(&self) -> String {
        format!("erase:{}", self.p)
    }

    fn apply(&self, stream: &mut Stream, shape: ImageShape, image: &mut [f32]) {
        if !stream.chance(self.p) {
            return;
        }
        let Some(area) = (0..ATTEMPTS).find_map(|_| draw(stream, shape)) else {
            return;
        };
        for row in area.rows(shape) {
            for pair in image.get_mut(row).unwrap_or_default().chunks_mut(2) {
                let noise = stream.normals();
                pair.copy_from_slice(&noise[..pair.len()]);
            }
        }
    }
}

/// A rectangle anywhere in the image; `None` if the one drawn is too large.
fn draw(stream: &mut Stream, shape: ImageShape) -> Option<Area> {
    let ImageShape { height, width, .. } = shape;
    let area = stream.between(AREA.0, AREA.1) * (height * width) as f32;
    let aspect = stream.around(-MIN_ASPECT.ln()).exp();
    let erased_height = (area * aspect).sqrt().round() as usize;
    let erased_width = (area / aspect).sqrt().round() as usize;
    if erased_height >= height || erased_width >= width {
        return None;
    }
    Some(Area {
        top: stream.below((height - erased_height) as u64 + 1) as usize,
        left: stream.below((width - erased_width) as u64 + 1) as usize,
        height: erased_height,
        width: erased_width,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: ImageShape = ImageShape {
        channels: 3,
        height: 32,
        width: 32,
    };

    fn stream(seed: u64) -> Stream {
        Stream::new(Purpose::Erase, seed, 0, 0)
    }

    /// Rows and columns of the first plane that differ from `untouched`.
    fn extent(image: &[f32], untouched: f32) -> (usize, usize) {
        let changed: Vec<usize> = (0..1024).filter(|&at| image[at] != untouched).collect();
        let span = |of: fn(usize) -> usize| {
            let places = changed.iter().map(|&at| of(at));
            let (low, high) = (places.clone().min(), places.max());
            low.zip(high).map_or(0, |(low, high)| high - low + 1)
        };
        let (height, width) = (span(|at| at / 32), span(|at| at % 32));
        assert_eq!(changed.len(), height * width, "no rectangle");
        (height, width)
    }

    #[test]
    fn squares_are_cut_and_clipped() {
        let (mut whole, mut pixels) = (0, 0);
        for seed in 0..2000 {
            let mut image = vec![1.0; SHAPE.len()];
            Cutout { side: 8 }.apply(&mut stream(seed), SHAPE, &mut image);
            let (height, width) = extent(&image, 1.0);
            assert!((4..=8).contains(&height) && (4..=8).contains(&width));
            assert_eq!(image[..1024], image[2048..]);
            whole += usize::from(height * width == 64);
            pixels += height * width;
        }
        // 25 of the 32 centres in each direction keep the whole side; the others lose 16 pixels in
        // sum (4 + 3 + 2 + 1 and 3 + 2 + 1).
        let (whole, pixels) = (whole as f32 / 2000.0, pixels as f32 / 2000.0);
        assert!((whole - (25.0_f32 / 32.0).powi(2)).abs() < 0.04, "{whole}");
        assert!((pixels - (8.0 - 0.5_f32).powi(2)).abs() < 0.6, "{pixels}");
    }

    #[test]
    fn erased_areas_and_ratios_are_within_bounds() {
        let mut erased = 0;
        let mut noise = Vec::new();
        for seed in 0..2000 {
            let mut image = vec![9.0; SHAPE.len()];
            Erase { p: 0.25 }.apply(&mut stream(seed), SHAPE, &mut image);
            let (height, width) = extent(&image, 9.0);
            if height == 0 {
                continue;
            }
            erased += 1;
            // Sides are rounded.
            let (low, high) = ((height - 1) * (width - 1), (height + 1) * (width + 1));
            assert!(high as f32 > 0.02 * 1024.0 && (low as f32) < 1024.0 / 3.0);
            let ratio = |height: usize, width: usize| height as f32 / width.max(1) as f32;
            assert!(ratio(height + 1, width - 1) > 0.3 && ratio(height - 1, width + 1) < 3.4);
            noise.extend(image.iter().filter(|&&value| value != 9.0));
        }
        assert!((420..580).contains(&erased), "{erased}");
        let mean = |values: &mut dyn Iterator<Item = f32>| values.sum::<f32>() / noise.len() as f32;
        assert!(mean(&mut noise.iter().copied()).abs() < 0.02);
        assert!((mean(&mut noise.iter().map(|value| value * value)) - 1.0).abs() < 0.03);
    }

    proptest! {
        #[test]
        fn any_shape_is_no_panic(channels in 0usize..4, height in 0usize..6, width in 0usize..6,
                                 side in 1u16..9, seed: u64) {
            let shape = ImageShape { channels, height, width };
            let mut image = vec![1.0; shape.len()];
            Cutout { side }.apply(&mut stream(seed), shape, &mut image);
            Erase { p: 1.0 }.apply(&mut stream(seed), shape, &mut image);
        }
    }
}
