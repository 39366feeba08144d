//! Image data sets, samplers and loaders for distributed training.
//!
//! Data flows through three parts:
//!
//! 1. A [`Dataset`] reads one image as bytes: [`Digits`] and [`Generated`] (computed, without
//!    files), [`Mnist`], [`FashionMnist`], [`Cifar10`] and [`Cifar100`] (a [`Downloader`] can fetch
//!    them), or an [`ImageFolder`] of JPEG, PNG, WebP, BMP, TIFF and PNM files.
//! 2. A sampler chooses the images of a rank and their order. [`TrainSampler`] shuffles by seed and
//!    epoch and splits every global batch over the ranks; [`EvalSampler`] gives every image to
//!    exactly one rank. Both make an [`Epoch`].
//! 3. A [`Loader`] turns an [`Epoch`] into [`Batch`]es: worker threads read, augment ([`Augment`])
//!    and normalise, and batches come out in order.
//!
//! Randomness depends only on (seed, epoch, image). So runs with any number of ranks and workers
//! see the same data, and can resume at any step.
//!
//! ```
//! use std::sync::Arc;
//! use datasets::{Digits, Loader, Split, TrainSampler};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let digits = Arc::new(Digits::new(Split::Train, 1000, 42));
//! // Rank 0 of 2: global batches of 64 are 2 ranks x 2 micro-batches of 16.
//! let sampler = TrainSampler::new(1000, 64, 16, 0, 2, 42)?;
//! let loader = Loader::new(digits)?.workers(2).augment("shift:2".parse()?, 42);
//!
//! let epoch = sampler.epoch(0).from_step(3); // resumes after 3 steps
//! assert_eq!(epoch.steps(), 12);
//! for batch in loader.iter(epoch) {
//!     let batch = batch?;
//!     assert_eq!(batch.labels.len(), 16);
//!     assert_eq!(batch.images.len(), 16 * 28 * 28);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`contained`] | panics of image decoders turned into errors |

#![deny(unsafe_code)]

mod area;
mod augment;
mod cifar;
mod delegate;
mod digits;
mod download;
mod error;
mod fashion_mnist;
mod generated;
mod hex;
mod idx;
mod idx_set;
mod image_folder;
mod loader;
mod lock;
#[allow(unsafe_code)]
mod mapping;
mod mnist;
mod random;
mod unique;
mod unpack;

pub use crate::loader::{Batch, BatchIter, BatchPlan, Loader, Mixed, Move, Plans};
pub use ::loader::{Epoch, EvalSampler, SamplerError, TrainSampler, class_weights};
pub use area::Area;
pub use augment::{Augment, ParseAugmentError};
pub use cifar::{Cifar10, Cifar100, Cifar100Labels};
pub use digits::Digits;
pub use download::{Downloader, Form, RemoteFile};
pub use error::DatasetError;
pub use fashion_mnist::FashionMnist;
pub use generated::Generated;
pub use image_folder::{Check, Color, ImageFolder, ImageFolderOptions, image_files, read_image};
pub use mnist::Mnist;

/// A set of labelled images of one size, which any thread may read in any order.
pub trait Dataset: Send + Sync {
    /// Number of images.
    fn len(&self) -> usize;

    /// Whether the data set has no image.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of every image.
    fn shape(&self) -> ImageShape;

    /// Names of the classes: label `i` has the `i`-th name.
    fn class_names(&self) -> &[String];

    /// Mean and standard deviation for a loader's normalization.
    fn normalization(&self) -> Normalization;

    /// Writes image `index` to `image` (planes of bytes: channel, row, column) and returns its
    /// label.
    ///
    /// Reading the same index again gives the same bytes.
    ///
    /// # Errors
    /// [`DatasetError::Index`] if `index` is not below [`len`](Dataset::len),
    /// [`DatasetError::Buffer`] if `image` does not have [`ImageShape::len`] bytes, and errors in
    /// reading the image.
    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError>;

    /// The label of image `index`.
    ///
    /// By default it reads the image. A data set that knows its labels overrides this, because a
    /// stratified split asks for all of them. A data set that consists of another one forwards the
    /// call to it.
    ///
    /// # Errors
    /// As [`read`](Dataset::read).
    fn label(&self, index: usize) -> Result<u32, DatasetError> {
        self.read(index, &mut vec![0; self.shape().len()])
    }

    /// Writes a part of image `index`, scaled to [`shape`](Dataset::shape), and returns its label.
    ///
    /// `choose` gets the height and width of the image and returns the part. By default the image
    /// is that of [`read`](Dataset::read). A data set with larger or uncropped originals takes the
    /// part from the original instead. A data set that consists of another one forwards the call to
    /// it.
    ///
    /// # Errors
    /// As [`read`](Dataset::read), and [`DatasetError::Area`] if the part lies outside the image.
    fn read_part(
        &self,
        index: usize,
        choose: &mut dyn FnMut(usize, usize) -> Area,
        image: &mut [u8],
    ) -> Result<u32, DatasetError> {
        let shape = self.shape();
        let mut whole = vec![0; image.len()];
        let label = self.read(index, &mut whole)?;
        let area = choose(shape.height, shape.width);
        DatasetError::check_area(area, shape.height, shape.width)?;
        augment::enlarge(area, shape, &whole, image);
        Ok(label)
    }
}

/// The size of an image; its bytes are planes in the order channel, row, column.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImageShape {
    /// Colour planes: 1 for grey, 3 for RGB.
    pub channels: usize,
    /// Number of rows.
    pub height: usize,
    /// Number of columns.
    pub width: usize,
}

impl ImageShape {
    /// Number of values in one image; saturates on overflow.
    pub fn len(&self) -> usize {
        self.channels
            .saturating_mul(self.height)
            .saturating_mul(self.width)
    }

    /// Whether the image has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Per-channel statistics of pixel values scaled to 0..=1.
///
/// The normalised value of a byte `p` is `(p / 255 - mean) / std`.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalization {
    /// One mean per channel.
    pub mean: Vec<f32>,
    /// One standard deviation per channel, above zero.
    pub std: Vec<f32>,
}

/// A part of a data set: images for training or for evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// Training images.
    Train,
    /// Images for evaluation, disjoint from the training images.
    Test,
}

/// The label at `index` of a list.
pub(crate) fn label_in<T: Copy + Into<u32>>(
    labels: &[T],
    index: usize,
) -> Result<u32, DatasetError> {
    let label = labels.get(index).map(|label| (*label).into());
    label.ok_or(DatasetError::Index {
        index,
        len: labels.len(),
    })
}

/// Refuses an invalid index or buffer, with the same errors for every data set.
pub(crate) fn check_read(
    index: usize,
    len: usize,
    image: &[u8],
    shape: ImageShape,
) -> Result<(), DatasetError> {
    if index >= len {
        return Err(DatasetError::Index { index, len });
    }
    if image.len() != shape.len() {
        return Err(DatasetError::Buffer {
            given: image.len(),
            needed: shape.len(),
        });
    }
    Ok(())
}
