//! A part of the image, enlarged to the image's size.

use super::Pixels;
use super::area::Area;
use crate::ImageShape;
use crate::random::Stream;

/// A crop of random area and aspect ratio (Szegedy et al. 2014, <https://arxiv.org/abs/1409.4842>),
/// with the distribution of torchvision's `RandomResizedCrop`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ResizedCrop {
    /// The least part of the image's area; the greatest is all.
    pub(super) min_scale: f32,
}

/// The greatest ratio of width to height; the least is its inverse. Log-uniform.
const MAX_RATIO: f32 = 4.0 / 3.0;
/// Draws of a part that fits; after these, the greatest one in the centre is taken.
const ATTEMPTS: usize = 10;
/// Weights of the interpolation are multiples of 2^-11: two of them and a byte fit into 32 bits.
const BITS: u32 = 11;
const ONE: u32 = 1 << BITS;

impl ResizedCrop {
    pub(super) fn apply(&self, stream: &mut Stream, shape: ImageShape, pixels: &mut Pixels) {
        let area = self.draw(stream, shape);
        let mut row = std::mem::take(&mut pixels.row);
        pixels.rewrite(|from, to| enlarge(area, shape, from, to, &mut row));
        pixels.row = row;
    }

    fn draw(&self, stream: &mut Stream, shape: ImageShape) -> Area {
        let attempts = (0..ATTEMPTS).find_map(|_| self.attempt(stream, shape));
        attempts.unwrap_or_else(|| greatest(shape))
    }

    fn attempt(&self, stream: &mut Stream, shape: ImageShape) -> Option<Area> {
        let whole = (shape.height * shape.width) as f32;
        let area = whole * stream.between(self.min_scale, 1.0);
        let ratio = stream.around(MAX_RATIO.ln()).exp();
        let height = (area / ratio).sqrt().round() as usize;
        let width = (area * ratio).sqrt().round() as usize;
        let fits = (1..=shape.height).contains(&height) && (1..=shape.width).contains(&width);
        fits.then(|| Area {
            top: stream.below((shape.height - height) as u64 + 1) as usize,
            left: stream.below((shape.width - width) as u64 + 1) as usize,
            height,
            width,
        })
    }
}

/// The greatest part whose ratio is allowed, in the centre.
fn greatest(shape: ImageShape) -> Area {
    let limit = |other: usize| (other as f32 * MAX_RATIO).round() as usize;
    let height = shape.height.min(limit(shape.width));
    let width = shape.width.min(limit(shape.height));
    Area {
        top: (shape.height - height) / 2,
        left: (shape.width - width) / 2,
        height,
        width,
    }
}

/// Writes the part `area` of `from`, enlarged to `shape` by bilinear interpolation, to `to`. Pixels
/// are squares: the corners of the part become the corners of the image.
fn enlarge(area: Area, shape: ImageShape, from: &[u8], to: &mut [u8], row: &mut [u32]) {
    let ImageShape { height, width, .. } = shape;
    let plane = height * width;
    if plane == 0 || area.pixels() == 0 {
        return;
    }
    let row = &mut row[..area.width];
    for (from, to) in from.chunks_exact(plane).zip(to.chunks_exact_mut(plane)) {
        for (y, to) in to.chunks_exact_mut(width).enumerate() {
            let above = Between::new(y, area.height, height);
            let line = |y: usize| &from[(area.top + y) * width + area.left..][..area.width];
            for ((blend, &a), &b) in row
                .iter_mut()
                .zip(line(above.first))
                .zip(line(above.second))
            {
                *blend = above.blend(a.into(), b.into());
            }
            for (x, to) in to.iter_mut().enumerate() {
                let left = Between::new(x, area.width, width);
                let value = left.blend(row[left.first], row[left.second]);
                *to = ((value + (ONE * ONE / 2)) >> (2 * BITS)) as u8;
            }
        }
    }
}

/// Two neighbours and the weight of the second.
struct Between {
    first: usize,
    second: usize,
    weight: u32,
}

impl Between {
    /// Which of `from` positions are seen at `position` of `to`.
    fn new(position: usize, from: usize, to: usize) -> Self {
        // The centre of the position, in units of ONE / (2 * to).
        let centre = ((2 * position + 1) * from).saturating_sub(to);
        let first = centre / (2 * to);
        let weight = (centre % (2 * to)) * ONE as usize / (2 * to);
        Between {
            first,
            second: (first + 1).min(from - 1),
            weight: weight as u32,
        }
    }

    fn blend(&self, first: u32, second: u32) -> u32 {
        first * (ONE - self.weight) + second * self.weight
    }
}
