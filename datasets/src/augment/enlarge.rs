//! Enlarges a part of an image in memory to the size of the image.

use crate::ImageShape;
use crate::area::Area;

/// Interpolation weights are multiples of 2^-11: two of them and a byte fit into 32 bits.
const BITS: u32 = 11;
const ONE: u32 = 1 << BITS;

/// Writes the part `area` of `from`, enlarged to `shape` by bilinear interpolation, to `to`. Pixels
/// are squares: the corners of the part become the corners of the image.
pub(crate) fn enlarge(area: Area, shape: ImageShape, from: &[u8], to: &mut [u8]) {
    let ImageShape { height, width, .. } = shape;
    let plane = height * width;
    if plane == 0 || area.pixels() == 0 {
        return;
    }
    let columns = (0..width).map(|x| Between::new(x, area.width, width));
    let columns: Vec<Between> = columns.collect();
    // The line between two rows of the part.
    let mut blend: Vec<u32> = Vec::with_capacity(area.width);
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

/// Two neighbours, and the weight of the second.
#[derive(Debug)]
struct Between {
    first: usize,
    second: usize,
    weight: u32,
}

impl Between {
    /// The source positions, among `from`, of `position` among `to`.
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
    use proptest::prelude::*;

    #[test]
    fn an_enlarged_part_is_torchs() {
        // torch.nn.functional.interpolate(mode="bilinear", align_corners=False) of [[0, 100], [200,
        // 60]] in float, rounded.
        let shape = ImageShape {
            channels: 1,
            height: 4,
            width: 4,
        };
        let mut image = [255; 16];
        (image[5], image[6], image[9], image[10]) = (0, 100, 200, 60);
        let area = Area {
            top: 1,
            left: 1,
            height: 2,
            width: 2,
        };
        let mut out = [0; 16];
        enlarge(area, shape, &image, &mut out);
        #[rustfmt::skip]
        let expected = [
            0, 25, 75, 100,
            50, 60, 80, 90,
            150, 130, 90, 70,
            200, 165, 95, 60,
        ];
        assert_eq!(out, expected);
    }

    proptest! {
        #[test]
        fn the_whole_image_is_itself(image in prop::collection::vec(any::<u8>(), 60)) {
            let shape = ImageShape { channels: 3, height: 4, width: 5 };
            let area = Area { top: 0, left: 0, height: 4, width: 5 };
            let mut out = vec![0; 60];
            enlarge(area, shape, &image, &mut out);
            prop_assert_eq!(out, image);
        }
    }
}
