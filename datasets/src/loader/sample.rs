//! Makes one image as a model sees it: read, augmented, normalised, mixed.
//!
//! Everything depends only on (seed, epoch, index), including the image that is mixed in.

use std::sync::Arc;

use crate::augment::{Augment, Key, Normalizer, Pixels};
use crate::{Dataset, DatasetError, ImageShape};

/// The data set, augmentation and keys of samples.
pub(super) struct Samples {
    pub(super) dataset: Arc<dyn Dataset>,
    pub(super) normalizer: Normalizer,
    pub(super) augment: Augment,
    pub(super) seed: u64,
    /// `None` for an evaluation, which is never augmented.
    pub(super) epoch: Option<usize>,
}

/// Memory that every image reuses.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pixels: Pixels,
    /// The normalised image to mix in.
    partner: Vec<f32>,
}

/// The label or labels of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Label {
    pub(super) own: i32,
    /// Label of the image that was mixed in.
    pub(super) other: i32,
    /// Weight of `own`; the rest is that of `other`.
    pub(super) weight: f32,
}

impl Samples {
    pub(super) fn shape(&self) -> ImageShape {
        self.dataset.shape()
    }

    /// Whether images may have two labels.
    pub(super) fn mixes(&self) -> bool {
        self.epoch.is_some() && self.augment.mixes()
    }

    /// Writes a copy of image `index` to `out`, which has the length of an image.
    pub(super) fn make(
        &self,
        (index, copy): (usize, u32),
        scratch: &mut Scratch,
        out: &mut [f32],
    ) -> Result<Label, DatasetError> {
        scratch.pixels.resize(self.shape());
        let own = self.alone((index, copy), &mut scratch.pixels, out)?;
        let mut label = Label {
            own,
            other: own,
            weight: 1.0,
        };
        let Some(key) = self.key(index, copy) else {
            return Ok(label);
        };
        if let Some(partner) = self.augment.partner(key, self.dataset.len()) {
            scratch.partner.resize(out.len(), 0.0);
            let other = (partner.index, 0);
            label.other = self.alone(other, &mut scratch.pixels, &mut scratch.partner)?;
            label.weight = partner.mix_into(self.shape(), out, &scratch.partner);
        }
        self.augment.remove(key, self.shape(), out);
        Ok(label)
    }

    /// Writes image `index` to `out` before mixing; returns its label.
    fn alone(
        &self,
        (index, copy): (usize, u32),
        pixels: &mut Pixels,
        out: &mut [f32],
    ) -> Result<i32, DatasetError> {
        let label = match self.key(index, copy) {
            Some(key) => self.augment.read(key, self.dataset.as_ref(), pixels)?,
            None => self.dataset.read(index, &mut pixels.image)?,
        };
        self.normalizer.convert(&pixels.image, out);
        let classes = self.dataset.class_names().len();
        let known = i32::try_from(label).ok();
        known
            .filter(|_| (label as usize) < classes)
            .ok_or(DatasetError::Label {
                index,
                label,
                classes,
            })
    }

    fn key(&self, index: usize, copy: u32) -> Option<Key> {
        Some(Key {
            copy,
            seed: self.seed,
            epoch: self.epoch?,
            index,
        })
    }
}
