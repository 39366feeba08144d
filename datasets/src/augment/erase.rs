//! Cutout and random erasing: parts of a normalised image are removed, so that a model does not
//! rely on one detail.

use super::area::Area;
use crate::ImageShape;
use crate::random::Stream;

/// A square set to the mean (DeVries and Taylor 2017, <https://arxiv.org/abs/1708.04552>).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cutout {
    /// Pixels.
    pub(super) side: u16,
}

impl Cutout {
    /// Draws the centre, uniform among all pixels, so that the square may reach over the borders.
    pub(super) fn apply(&self, stream: &mut Stream, shape: ImageShape, image: &mut [f32]) {
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
    /// The probability that something is erased.
    pub(super) p: f32,
}

/// The erased part of the area, uniform.
const AREA: (f32, f32) = (0.02, 1.0 / 3.0);
/// The least ratio of height to width; the greatest is its inverse. Log-uniform.
const MIN_ASPECT: f32 = 0.3;
/// Draws of a rectangle that fits; after these, nothing is erased.
const ATTEMPTS: usize = 10;

impl Erase {
    pub(super) fn apply(&self, stream: &mut Stream, shape: ImageShape, image: &mut [f32]) {
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

/// A rectangle anywhere in the image; none where the one that was drawn is too large.
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
