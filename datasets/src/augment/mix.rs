//! Mixup and CutMix: an image mixed with another one of the data set, labels and all.

use super::area::Area;
use crate::ImageShape;
use crate::random::Stream;

/// Which kinds of mixing there are.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Mix {
    /// Zhang et al. 2017, <https://arxiv.org/abs/1710.09412>.
    pub(super) mixup: Option<Share>,
    /// Yun et al. 2019, <https://arxiv.org/abs/1905.04899>.
    pub(super) cutmix: Option<Share>,
}

/// How often and how strongly images are mixed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Share {
    /// Of the distribution Beta(alpha, alpha).
    pub(super) alpha: f32,
    /// The probability that an image is mixed.
    pub(super) p: f32,
}

/// The other image and what is taken of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Partner {
    /// Which image of the data set.
    pub(crate) index: usize,
    by: By,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    /// The weight of the image itself.
    Sum(f32),
    /// The height and width of the rectangle as parts of the image's, and where its centre is, from
    /// 0 to 1 in both directions.
    Rectangle { side: f32, y: f32, x: f32 },
}

impl Mix {
    pub(super) fn is_none(&self) -> bool {
        self.mixup.is_none() && self.cutmix.is_none()
    }

    /// One draw decides the kind; the partner is uniform among the other images.
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
    /// Mixes `partner` into `image` and returns the weight of the image's own label: for a rectangle
    /// the part of the image that was not replaced.
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
