//! Random changes to training images, and normalization.
//!
//! `parse` reads an [`Augment`] from a configuration. The operations run in one order for every
//! image, whatever its batch, worker or rank:
//!
//! 1. choose the part of the image to read (`resized_crop`);
//! 2. move pixels (`place`) and change colours (`auto_augment` to `color_jitter`), both on
//!    bytes;
//! 3. normalise;
//! 4. mix with another image (`mix`) and remove parts (`erase`).
//!
//! Each operation draws from its own random stream, keyed by (seed, epoch, image).

mod auto_augment;
mod change;
mod color_jitter;
mod enlarge;
mod erase;
mod mix;
mod normalize;
mod parse;
mod place;
mod rand_augment;
mod resized_crop;
mod three_augment;

pub(crate) use enlarge::enlarge;
pub(crate) use normalize::Normalizer;
pub use parse::ParseAugmentError;

use crate::random::{Purpose, Stream};
use crate::{Dataset, DatasetError, ImageShape};
use change::changes;
use mix::{Mix, Partner};
use place::Border;
pub(crate) use place::Placement;
use resized_crop::ResizedCrop;

/// Random changes of every training image; evaluation is never augmented.
///
/// In configurations it is one text with `+` between the operations, in the order of this table.
/// Brackets mark what may be left out:
///
/// | operation | effect |
/// |---|---|
/// | `none` | nothing; stands alone |
/// | `repeat[:TIMES]` | every image of a batch is in it TIMES (3) times, changed differently each time; an epoch keeps its number of images and so has one TIMES-th of the different ones. [Hoffer et al. 2019](https://arxiv.org/abs/1901.09335) |
/// | `shift[:PIXELS]` | moves by −PIXELS..=PIXELS (2) rows and as many columns, each uniform; black comes in. For digits |
/// | `crop[:PADDING[:zero\|reflect]]` | pads by PADDING (4) on all sides and crops to the image's size at a uniform place. The padding is black (`zero`) or the image mirrored at its outermost pixels (`reflect`, as NumPy's `pad`). The usual CIFAR augmentation: [Lee et al. 2014](https://arxiv.org/abs/1409.5185), reflection in [Wide ResNet](https://arxiv.org/abs/1605.07146) |
/// | `resized-crop[:MIN_SCALE]` | takes a part whose area is uniform in MIN_SCALE..1 (0.08) of the image and whose width ÷ height is log-uniform in 3/4..4/3, at a uniform place, and scales it to the image's size (bilinear). For an [`ImageFolder`](crate::ImageFolder) the image is the whole picture in the file. [Szegedy et al. 2014](https://arxiv.org/abs/1409.4842) as in torchvision's `RandomResizedCrop` |
/// | `flip[:P]` | mirrors left to right with probability P (0.5), between 0 and 1 |
/// | `auto-augment` | one of 25 pairs of operations with equal probability; every operation has its own probability and strength. [Cubuk et al. 2018](https://arxiv.org/abs/1805.09501), the policy for CIFAR, with torchvision's operations and strengths |
/// | `rand-augment[:OPS[:MAGNITUDE]]` | OPS (2) operations, each uniform among 14, all of strength MAGNITUDE (9) of 30. [Cubuk et al. 2019](https://arxiv.org/abs/1909.13719) with torchvision's operations and strengths; pixels from outside are black |
/// | `three-augment` | makes the image grey, inverts its values from 128 on, or blurs it (σ uniform in 0.1..2 pixels), each with probability 1/3. [Touvron et al. 2022](https://arxiv.org/abs/2204.07118), whose recipe adds `color-jitter:0.3` |
/// | `color-jitter[:STRENGTH[:HUE]]` | multiplies brightness, contrast and saturation by uniform factors in 1 ± STRENGTH (0.4), and turns hues by up to HUE (0, at most 0.5) of the circle, in random order; as torchvision's `ColorJitter` |
/// | `mixup[:ALPHA[:P]]` | with probability P (0.5) replaces the image by λ · image + (1 − λ) · another, λ from Beta(ALPHA, ALPHA) (0.8). [Zhang et al. 2017](https://arxiv.org/abs/1710.09412) |
/// | `cutmix[:ALPHA[:P]]` | with probability P (0.5) replaces a rectangle of area 1 − λ at a uniform centre by that of another image, λ from Beta(ALPHA, ALPHA) (1). [Yun et al. 2019](https://arxiv.org/abs/1905.04899) |
/// | `cutout[:SIDE]` | sets a square of SIDE (16) pixels around a uniform centre, clipped at the borders, to the data set's mean. [DeVries and Taylor 2017](https://arxiv.org/abs/1708.04552) |
/// | `erase[:P]` | with probability P (0.25) replaces a rectangle by normal noise, one number per value of the normalised image; area uniform in 2..33 % of the image, height ÷ width log-uniform in 0.3..3.3. [Zhong et al. 2017](https://arxiv.org/abs/1708.04896) with timm's mode `pixel` |
///
/// `shift`, `crop` and `resized-crop` exclude each other. With both `mixup` and `cutmix`, one draw
/// decides between them and neither, so their P must not sum to more than 1. The other image is
/// uniform among all others of the data set. It is moved and coloured as it is itself in this
/// epoch, but not mixed or erased. [`Batch::mixed`](crate::Batch::mixed) has the labels.
///
/// ```
/// use datasets::Augment;
///
/// let augment: Augment = "crop:4:reflect+flip".parse()?;
/// assert_eq!(augment.to_string(), "crop:4:reflect+flip:0.5"); // with every parameter
/// assert!(Augment::none().is_none());
/// # Ok::<(), datasets::ParseAugmentError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Augment {
    /// Number of copies of every image in a batch.
    repeat: Option<u8>,
    frame: Option<Frame>,
    /// Probability of mirroring.
    flip: Option<f32>,
    colours: Colours,
    mix: Mix,
    parts: Parts,
}

changes! {
    /// Changes of the bytes of an image, in this order.
    Colours: Pixels;
    auto_augment::AutoAugment,
    rand_augment::RandAugment,
    three_augment::ThreeAugment,
    color_jitter::ColorJitter,
}

changes! {
    /// Changes of its normalised values, in this order.
    Parts: [f32];
    erase::Cutout,
    erase::Erase,
}

/// The visible part of the (extended) image.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Frame {
    Shift { pixels: u8 },
    Crop { padding: u8, border: Border },
    Resized(ResizedCrop),
}

/// The key of everything random in an image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    pub(crate) seed: u64,
    pub(crate) epoch: usize,
    /// Index of the image in the data set.
    pub(crate) index: usize,
    /// Number of its copy in this epoch, from 0.
    pub(crate) copy: u32,
}

impl Key {
    fn stream(&self, purpose: Purpose) -> Stream {
        Stream::of_sample(purpose, self.seed, self.epoch, self.index, self.copy)
    }
}

/// The bytes of an image, with a buffer for the changed ones.
#[derive(Debug, Default)]
pub(crate) struct Pixels {
    /// Planes: channel, row, column.
    pub(crate) image: Vec<u8>,
    spare: Vec<u8>,
    /// Source of the value of every pixel of a plane.
    sources: Vec<u32>,
}

impl Pixels {
    /// Makes room for an image.
    pub(crate) fn resize(&mut self, shape: ImageShape) {
        self.image.resize(shape.len(), 0);
        self.spare.resize(shape.len(), 0);
    }

    /// Writes a new image from the current one.
    fn rewrite(&mut self, write: impl FnOnce(&[u8], &mut [u8])) {
        write(&self.image, &mut self.spare);
        std::mem::swap(&mut self.image, &mut self.spare);
    }
}

impl Augment {
    /// Changes nothing.
    pub fn none() -> Self {
        Augment::default()
    }

    /// Whether it changes nothing.
    pub fn is_none(&self) -> bool {
        *self == Augment::default()
    }

    /// Number of copies of each image in a batch: 1 without `repeat`.
    ///
    /// For [`TrainSampler::repeat`](crate::TrainSampler::repeat).
    pub fn repeat(&self) -> usize {
        self.repeat.map_or(1, usize::from)
    }

    /// Whether images may be mixed with others.
    pub(crate) fn mixes(&self) -> bool {
        !self.mix.is_none()
    }

    /// Reads the image `key` of `dataset`, moves its pixels and changes their colours. Returns its
    /// label.
    pub(crate) fn read(
        &self,
        key: Key,
        dataset: &dyn Dataset,
        pixels: &mut Pixels,
    ) -> Result<u32, DatasetError> {
        let shape = dataset.shape();
        let label = self.read_moved(key, dataset, pixels)?;
        self.colours.apply(key, shape, pixels);
        Ok(label)
    }

    fn read_moved(
        &self,
        key: Key,
        dataset: &dyn Dataset,
        pixels: &mut Pixels,
    ) -> Result<u32, DatasetError> {
        if self.frame.is_none() && self.flip.is_none() {
            return dataset.read(key.index, &mut pixels.image);
        }
        let mut stream = key.stream(Purpose::Augment);
        let label = match self.frame {
            Some(Frame::Resized(crop)) => {
                let mut choose = |height, width| crop.draw(&mut stream, height, width);
                dataset.read_part(key.index, &mut choose, &mut pixels.image)?
            }
            _ => dataset.read(key.index, &mut pixels.image)?,
        };
        let mut place = Placement::default();
        self.draw_place(&mut place, &mut stream);
        if place != Placement::default() {
            let (border, shape) = (self.border(), dataset.shape());
            pixels.rewrite(|from, to| place.apply(border, shape, from, to));
        }
        Ok(label)
    }

    fn draw_place(&self, place: &mut Placement, stream: &mut Stream) {
        match self.frame {
            Some(Frame::Shift { pixels: reach } | Frame::Crop { padding: reach, .. }) => {
                place.draw_offsets(reach, stream)
            }
            Some(Frame::Resized(_)) | None => {}
        }
        place.mirrored = self.flip.is_some_and(|p| stream.chance(p));
    }

    fn border(&self) -> Border {
        match self.frame {
            Some(Frame::Crop { border, .. }) => border,
            _ => Border::Zero,
        }
    }

    /// Whether images of this size are only moved within the frame and mirrored, so that
    /// [`place`](Self::place) describes everything.
    pub(crate) fn only_places(&self, shape: ImageShape) -> bool {
        let reach = match self.frame {
            None => 0,
            Some(Frame::Shift { pixels }) => pixels,
            Some(Frame::Crop { padding, .. }) => padding,
            Some(Frame::Resized(_)) => return false,
        };
        let others = !self.colours.is_none() || !self.mix.is_none() || !self.parts.is_none();
        // One reflection is enough then.
        let side = shape.height.min(shape.width);
        !others && usize::from(reach) < side
    }

    /// Place of the image `key` in its frame.
    pub(crate) fn place(&self, key: Key) -> Placement {
        let mut place = Placement::default();
        if self.frame.is_some() || self.flip.is_some() {
            self.draw_place(&mut place, &mut key.stream(Purpose::Augment));
        }
        place
    }

    /// Whether a moved image is continued by its mirror image instead of black.
    pub(crate) fn reflects(&self) -> bool {
        self.border() == Border::Reflect
    }

    /// The image among `images` to mix with the image `key`, and how; `None` without mixing.
    pub(crate) fn partner(&self, key: Key, images: usize) -> Option<Partner> {
        if self.mix.is_none() {
            return None;
        }
        let stream = &mut key.stream(Purpose::Mix);
        self.mix.draw(stream, key.index, images)
    }

    /// Removes parts of the normalised image `key`.
    pub(crate) fn remove(&self, key: Key, shape: ImageShape, image: &mut [f32]) {
        self.parts.apply(key, shape, image);
    }
}
