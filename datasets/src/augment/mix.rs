//! Mixup and CutMix: mix an image, including its label, with another one of the data set.

use crate::ImageShape;
use crate::area::Area;
use crate::random::Stream;

/// The enabled kinds of mixing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Mix {
    /// Zhang et al. 2017, <https://arxiv.org/abs/1710.09412>.
    pub(super) mixup: Option<Share>,
    /// Yun et al. 2019, <https://arxiv.org/abs/1905.04899>.
    pub(super) cutmix: Option<Share>,
}

/// Probability and strength of mixing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Share {
    /// Parameter of the distribution Beta(alpha, alpha).
    pub(super) alpha: f32,
    /// Probability that an image is mixed.
    pub(super) p: f32,
}

/// The other image, and the part taken from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Partner {
    /// Index of the image in the data set.
    pub(crate) index: usize,
    by: By,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    /// Weight of the image itself.
    Sum(f32),
    /// Sides of the rectangle as a share of the image's, and its centre, from 0 to 1 in both
    /// directions.
    Rectangle { side: f32, y: f32, x: f32 },
}

impl Mix {
    pub(super) fn is_none(&self) -> bool {
        self.mixup.is_none() && self.cutmix.is_none()
    }

    /// Draws the kind of mixing with one number, and the partner uniformly among the other images.
    pub(super) fn draw(&self, stream: &mut Stream, index: usize, images: usize) -> Option<Partner> {
        let others = images.checked_sub(1).filter(|&others| others > 0)?;
        let mixup = self.mixup.map_or(0.0, |share| share.p);
        let kind = stream.unit();
        let by = match (self.mixup, self.cutmix) {
            (Some(share), _) if kind < mixup => By::Sum(stream.beta(share.alpha)),
            (_, Some(share)) if kind < mixup + share.p => By::Rectangle {
                side: (1.0 - stream.beta(share.alpha)).sqrt(),
                y: stream.unit(),
                x: stream.unit(),
            },
            _ => return None,
        };
        let other = stream.below(others as u64) as usize;
        Some(Partner {
            index: other + usize::from(other >= index),
            by,
        })
    }
}

impl Partner {
    /// Mixes `partner` into `image` and returns the weight of the image's own label. For a
    /// rectangle this is the share of the image that was not replaced.
    pub(crate) fn mix_into(&self, shape: ImageShape, image: &mut [f32], partner: &[f32]) -> f32 {
        match self.by {
            By::Sum(weight) => {
                for (value, other) in image.iter_mut().zip(partner) {
                    *value = weight * *value + (1.0 - weight) * other;
                }
                weight
            }
            By::Rectangle { side, y, x } => {
                let of = |length: usize, part: f32| (length as f32 * part) as usize;
                let ImageShape { height, width, .. } = shape;
                let area = Area::around(
                    of(height, y),
                    of(width, x),
                    of(height, side),
                    of(width, side),
                    shape,
                );
                for row in area.rows(shape) {
                    if let (Some(to), Some(from)) = (image.get_mut(row.clone()), partner.get(row)) {
                        to.copy_from_slice(from);
                    }
                }
                1.0 - area.pixels() as f32 / (height * width).max(1) as f32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    const SHAPE: ImageShape = ImageShape {
        channels: 2,
        height: 8,
        width: 8,
    };

    fn mix(mixup: f32, cutmix: f32) -> Mix {
        let share = |p| Some(Share { alpha: 1.0, p });
        Mix {
            mixup: share(mixup),
            cutmix: share(cutmix),
        }
    }

    fn draw(mix: Mix, seed: u64, index: usize, images: usize) -> Option<Partner> {
        let mut stream = Stream::new(Purpose::Mix, seed, 0, index as u64);
        mix.draw(&mut stream, index, images)
    }

    #[test]
    fn partners_are_all_others_alike() {
        let mut counts = [0; 5];
        for seed in 0..4000 {
            counts[draw(mix(0.5, 0.5), seed, 2, 5).unwrap().index] += 1;
        }
        assert_eq!(counts[2], 0);
        let others = [counts[0], counts[1], counts[3], counts[4]];
        assert!(others.iter().all(|n| (900..1100).contains(n)), "{counts:?}");
    }

    #[test]
    fn nobody_is_mixed_with_himself() {
        assert_eq!(draw(mix(1.0, 0.0), 1, 0, 1), None);
        assert_eq!(draw(mix(1.0, 0.0), 1, 0, 0), None);
    }

    #[test]
    fn kinds_are_as_frequent_as_told() {
        let mut counts = [0; 3];
        for seed in 0..10_000 {
            let kind = match draw(mix(0.2, 0.3), seed, 0, 9).map(|partner| partner.by) {
                Some(By::Sum(_)) => 0,
                Some(By::Rectangle { .. }) => 1,
                None => 2,
            };
            counts[kind] += 1;
        }
        assert!((1800..2200).contains(&counts[0]), "{counts:?}");
        assert!((2800..3200).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn a_sum_has_the_weights_of_its_labels() {
        let partner = Partner {
            index: 0,
            by: By::Sum(0.75),
        };
        let mut image = [4.0; 128];
        assert_eq!(partner.mix_into(SHAPE, &mut image, &[8.0; 128]), 0.75);
        assert_eq!(image, [5.0; 128]);
    }

    #[test]
    fn the_weight_is_the_area_that_is_left() {
        let mut weights = Vec::new();
        for seed in 0..2000 {
            let mut image = [0.0; 128];
            let partner = draw(mix(0.0, 1.0), seed, 0, 9).unwrap();
            let weight = partner.mix_into(SHAPE, &mut image, &[1.0; 128]);
            let replaced = image.iter().sum::<f32>() / 128.0;
            assert!((1.0 - weight - replaced).abs() < 1e-6);
            // Both planes lose the same pixels.
            assert_eq!(image[..64], image[64..]);
            weights.push(weight);
        }
        // Clipping leaves more than half of an image on average.
        let mean = weights.iter().sum::<f32>() / 2000.0;
        assert!((0.55..0.75).contains(&mean), "{mean}");
        assert!(weights.iter().any(|&weight| weight < 0.3));
    }

    #[test]
    fn a_rectangle_has_its_place_and_size() {
        let partner = Partner {
            index: 0,
            by: By::Rectangle {
                side: 0.5,
                y: 0.99,
                x: 0.5,
            },
        };
        let mut image = [0.0; 128];
        // 4 x 4 around row 7 and column 4: rows 5, 6 and 7 remain, and columns 2 to 5.
        assert_eq!(
            partner.mix_into(SHAPE, &mut image, &[1.0; 128]),
            1.0 - 12.0 / 64.0
        );
        for (at, value) in image.iter().enumerate() {
            let (y, x) = (at / 8 % 8, at % 8);
            let inside = y >= 5 && (2..6).contains(&x);
            assert_eq!(*value, if inside { 1.0 } else { 0.0 }, "{y} {x}");
        }
    }
}
