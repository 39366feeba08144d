//! Chooses the visible part of an image.

use crate::area::Area;
use crate::random::Stream;

/// A crop of random area and aspect ratio (Szegedy et al. 2014, <https://arxiv.org/abs/1409.4842>),
/// with the distribution of torchvision's `RandomResizedCrop`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ResizedCrop {
    /// Least share of the image's area; the greatest is 1.
    pub(super) min_scale: f32,
}

/// Greatest ratio of width to height; the least is its inverse. Log-uniform.
const MAX_RATIO: f32 = 4.0 / 3.0;
/// Attempts to draw a part that fits; after these, the largest one in the centre is taken.
const ATTEMPTS: usize = 10;

impl ResizedCrop {
    /// A part of an image with `height` rows and `width` columns.
    pub(super) fn draw(&self, stream: &mut Stream, height: usize, width: usize) -> Area {
        let attempts = (0..ATTEMPTS).find_map(|_| self.attempt(stream, height, width));
        attempts.unwrap_or_else(|| greatest(height, width))
    }

    fn attempt(&self, stream: &mut Stream, height: usize, width: usize) -> Option<Area> {
        let whole = (height * width) as f32;
        let area = whole * stream.between(self.min_scale, 1.0);
        let ratio = stream.around(MAX_RATIO.ln()).exp();
        let (of_height, of_width) = (height, width);
        let height = (area / ratio).sqrt().round() as usize;
        let width = (area * ratio).sqrt().round() as usize;
        let fits = (1..=of_height).contains(&height) && (1..=of_width).contains(&width);
        fits.then(|| Area {
            top: stream.below((of_height - height) as u64 + 1) as usize,
            left: stream.below((of_width - width) as u64 + 1) as usize,
            height,
            width,
        })
    }
}

/// The largest part with an allowed ratio, in the centre.
fn greatest(of_height: usize, of_width: usize) -> Area {
    let limit = |other: usize| (other as f32 * MAX_RATIO).round() as usize;
    let height = of_height.min(limit(of_width));
    let width = of_width.min(limit(of_height));
    Area {
        top: (of_height - height) / 2,
        left: (of_width - width) / 2,
        height,
        width,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;
    use proptest::prelude::*;

    fn stream(seed: u64) -> Stream {
        Stream::new(Purpose::Augment, seed, 0, 0)
    }

    #[test]
    fn areas_and_ratios_have_their_distributions() {
        let crop = ResizedCrop { min_scale: 0.2 };
        let (mut areas, mut wider) = (0.0, 0);
        for seed in 0..4000 {
            let area = crop.draw(&mut stream(seed), 64, 64);
            assert!(area.fits(64, 64), "{area:?}");
            let scale = area.pixels() as f32 / 4096.0;
            assert!((0.19..=1.0).contains(&scale), "{scale}");
            let ratio = area.width as f32 / area.height as f32;
            assert!((0.72..1.39).contains(&ratio), "{ratio}");
            areas += scale;
            wider += usize::from(area.width > area.height);
        }
        // Large parts fit less often, so the mean is below 0.6.
        assert!((0.53..0.6).contains(&(areas / 4000.0)), "{areas}");
        assert!((1850..2050).contains(&wider), "{wider}");
    }

    /// Means over 200000 draws of torchvision's `RandomResizedCrop.get_params`: share of the area,
    /// of the height, of the width, and start of the part from the top and from the left.
    #[test]
    fn parts_of_images_of_any_size_are_torchvisions() {
        for (height, width, expected) in [
            (64, 64, [0.4855, 0.6746, 0.6744, 0.1628, 0.1629]),
            (375, 500, [0.4325, 0.7201, 0.5632, 0.1396, 0.2183]),
            (500, 375, [0.4329, 0.5635, 0.7203, 0.2180, 0.1397]),
            (100, 300, [0.2251, 0.7831, 0.2767, 0.1088, 0.3611]),
            (20, 200, [0.1259, 0.9843, 0.1275, 0.0079, 0.4345]),
            (1, 9, [0.1315, 1.0, 0.1315, 0.0, 0.4336]),
            (2, 3, [0.5021, 0.8273, 0.5700, 0.0858, 0.2151]),
            (1, 1, [1.0, 1.0, 1.0, 0.0, 0.0]),
        ] {
            const DRAWS: u64 = 20_000;
            let crop = ResizedCrop { min_scale: 0.08 };
            let mut sums = [0.0; 5];
            for seed in 0..DRAWS {
                let area = crop.draw(&mut stream(seed), height, width);
                assert!(area.fits(height, width), "{area:?}");
                let (rows, columns) = (height as f64, width as f64);
                let shares = [
                    area.pixels() as f64 / (rows * columns),
                    area.height as f64 / rows,
                    area.width as f64 / columns,
                    area.top as f64 / rows,
                    area.left as f64 / columns,
                ];
                for (sum, share) in sums.iter_mut().zip(shares) {
                    *sum += share / DRAWS as f64;
                }
            }
            // Five standard errors of the mean of a share are at most 0.01.
            let near = |(mean, expected): (&f64, f64)| (mean - expected).abs() < 0.01;
            let all = sums.iter().zip(expected).all(near);
            assert!(all, "{height}×{width}: {sums:?}, not {expected:?}");
        }
    }

    #[test]
    fn the_greatest_part_stays_in_the_image() {
        let part = greatest(10, 30);
        assert_eq!((part.height, part.width), (10, 13));
        assert_eq!((part.top, part.left), (0, 8));
        let part = greatest(30, 10);
        assert_eq!((part.height, part.width), (13, 10));
        assert_eq!(greatest(9, 8).pixels(), 72);
    }

    proptest! {
        #[test]
        fn any_image_has_parts(height in 0usize..7, width in 0usize..70_000,
                               min_scale in 0.001f32..=1.0, seed: u64, turned: bool) {
            let (height, width) = if turned { (width, height) } else { (height, width) };
            let area = ResizedCrop { min_scale }.draw(&mut stream(seed), height, width);
            prop_assert!(area.fits(height, width), "{:?}", area);
        }
    }
}
