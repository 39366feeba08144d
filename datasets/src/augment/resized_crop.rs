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
        let mut lines = std::mem::take(&mut pixels.lines);
        pixels.rewrite(|from, to| enlarge(area, shape, from, to, &mut lines));
        pixels.lines = lines;
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

/// Room for one line of an enlargement.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The line between two rows of the part.
    blend: Vec<u32>,
    /// Where every column of the image lies in the part.
    columns: Vec<Between>,
}

/// Writes the part `area` of `from`, enlarged to `shape` by bilinear interpolation, to `to`. Pixels
/// are squares: the corners of the part become the corners of the image.
fn enlarge(area: Area, shape: ImageShape, from: &[u8], to: &mut [u8], lines: &mut Lines) {
    let ImageShape { height, width, .. } = shape;
    let plane = height * width;
    if plane == 0 || area.pixels() == 0 {
        return;
    }
    let Lines { blend, columns } = lines;
    columns.clear();
    columns.extend((0..width).map(|x| Between::new(x, area.width, width)));
    for (from, to) in from.chunks_exact(plane).zip(to.chunks_exact_mut(plane)) {
        for (y, to) in to.chunks_exact_mut(width).enumerate() {
            let rows = Between::new(y, area.height, height);
            let row = |y: usize| &from[(area.top + y) * width + area.left..][..area.width];
            let pairs = row(rows.first).iter().zip(row(rows.second));
            blend.clear();
            blend.extend(pairs.map(|(&above, &below)| rows.blend(above.into(), below.into())));
            for (to, column) in to.iter_mut().zip(columns.iter()) {
                let value = column.blend(blend[column.first], blend[column.second]);
                *to = ((value + ONE * ONE / 2) >> (2 * BITS)) as u8;
            }
        }
    }
}

/// Two neighbours and the weight of the second.
#[derive(Debug)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;
    use proptest::prelude::*;

    fn shape(channels: usize, height: usize, width: usize) -> ImageShape {
        ImageShape {
            channels,
            height,
            width,
        }
    }

    fn stream(seed: u64) -> Stream {
        Stream::new(Purpose::Augment, seed, 0, 0)
    }

    #[test]
    fn an_enlarged_part_is_torchs() {
        // torch.nn.functional.interpolate(mode="bilinear", align_corners=False) of
        // [[0, 100], [200, 60]] in float, rounded.
        let shape = shape(1, 4, 4);
        let mut image = [255; 16];
        (image[5], image[6], image[9], image[10]) = (0, 100, 200, 60);
        let area = Area {
            top: 1,
            left: 1,
            height: 2,
            width: 2,
        };
        let mut out = [0; 16];
        enlarge(area, shape, &image, &mut out, &mut Lines::default());
        #[rustfmt::skip]
        let expected = [
            0, 25, 75, 100,
            50, 60, 80, 90,
            150, 130, 90, 70,
            200, 165, 95, 60,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn areas_and_ratios_have_their_distributions() {
        let (shape, crop) = (shape(3, 64, 64), ResizedCrop { min_scale: 0.2 });
        let (mut areas, mut wider) = (0.0, 0);
        for seed in 0..4000 {
            let area = crop.draw(&mut stream(seed), shape);
            assert!(area.top + area.height <= 64 && area.left + area.width <= 64);
            let scale = area.pixels() as f32 / 4096.0;
            assert!((0.19..=1.0).contains(&scale), "{scale}");
            let ratio = area.width as f32 / area.height as f32;
            assert!((0.72..1.39).contains(&ratio), "{ratio}");
            areas += scale;
            wider += usize::from(area.width > area.height);
        }
        // Large parts fit less often, so the mean lies below 0.6.
        assert!((0.53..0.6).contains(&(areas / 4000.0)), "{areas}");
        assert!((1850..2050).contains(&wider), "{wider}");
    }

    #[test]
    fn the_greatest_part_stays_in_the_image() {
        let part = greatest(shape(1, 10, 30));
        assert_eq!((part.height, part.width), (10, 13));
        assert_eq!((part.top, part.left), (0, 8));
        let part = greatest(shape(1, 30, 10));
        assert_eq!((part.height, part.width), (13, 10));
        assert_eq!(greatest(shape(1, 9, 8)).pixels(), 72);
    }

    proptest! {
        #[test]
        fn any_shape_is_filled(channels in 0usize..4, height in 0usize..7, width in 0usize..7,
                               min_scale in 0.001f32..=1.0, seed: u64, value: u8) {
            let shape = shape(channels, height, width);
            let mut pixels = Pixels::default();
            pixels.resize(shape);
            pixels.image.fill(value);
            ResizedCrop { min_scale }.apply(&mut stream(seed), shape, &mut pixels);
            // One colour stays: the weights sum to one.
            prop_assert_eq!(pixels.image, vec![value; shape.len()]);
        }

        #[test]
        fn the_whole_image_is_itself(image in prop::collection::vec(any::<u8>(), 60)) {
            let shape = shape(3, 4, 5);
            let area = Area { top: 0, left: 0, height: 4, width: 5 };
            let mut out = vec![0; 60];
            enlarge(area, shape, &image, &mut out, &mut Lines::default());
            prop_assert_eq!(out, image);
        }
    }
}
