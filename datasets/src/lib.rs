//! Image data sets, and how they reach the ranks of a distributed training.
//!
//! The parts, in the order in which data flows:
//!
//! 1. A [`Dataset`] reads one image as bytes: [`Digits`] and [`Generated`] (made by the program,
//!    need no file), [`Mnist`], [`FashionMnist`], [`Cifar10`] and [`Cifar100`] (fetched by a
//!    [`Downloader`] where that is wanted), or an [`ImageFolder`] of JPEG, PNG, WebP, BMP, TIFF
//!    and PNM files.
//! 2. A sampler says which images a rank sees, and when: [`TrainSampler`] shuffles by seed and
//!    epoch and splits every global batch over the ranks; [`EvalSampler`] gives every image to
//!    exactly one rank. Both make an [`Epoch`].
//! 3. A [`Loader`] turns an [`Epoch`] into [`Batch`]es: it reads, augments ([`Augment`]) and
//!    normalises in worker threads and hands the batches out in order.
//!
//! Everything random is drawn from (seed, epoch, image) and nothing else, so the same run is seen
//! with any number of ranks and workers, and can be continued at any step.
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
//! let epoch = sampler.epoch(0).from_step(3); // as a run does that is resumed after 3 steps
//! assert_eq!(epoch.steps(), 12);
//! for batch in loader.iter(epoch) {
//!     let batch = batch?;
//!     assert_eq!(batch.labels.len(), 16);
//!     assert_eq!(batch.images.len(), 16 * 28 * 28);
//! }
//! # Ok(())
//! # }
//! ```

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
mod sampler;
mod unique;
mod unpack;

pub use area::Area;
pub use augment::{Augment, ParseAugmentError};
pub use cifar::{Cifar10, Cifar100, Cifar100Labels};
pub use digits::Digits;
pub use download::{Downloader, Form, RemoteFile};
pub use error::{DatasetError, SamplerError};
pub use fashion_mnist::FashionMnist;
pub use generated::Generated;
pub use image_folder::{Check, Color, ImageFolder, ImageFolderOptions, image_files, read_image};
pub use loader::{Batch, BatchIter, BatchPlan, Loader, Mixed, Move, Plans};
pub use mnist::Mnist;
pub use sampler::{Epoch, EvalSampler, TrainSampler};

/// A set of labelled images of one size, which any thread may read in any order.
pub trait Dataset: Send + Sync {
    /// Number of images.
    fn len(&self) -> usize;

    /// Whether there is no image at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of every image.
    fn shape(&self) -> ImageShape;

    /// What the labels mean: label `i` is named by the `i`-th entry.
    fn class_names(&self) -> &[String];

    /// Mean and standard deviation by which a loader normalises.
    fn normalization(&self) -> Normalization;

    /// Writes image `index` to `image` (planes of bytes: channel, row, column) and returns its
    /// label. Reading the same index again gives the same bytes.
    ///
    /// # Errors
    /// [`DatasetError::Index`] when `index` is not below [`len`](Dataset::len),
    /// [`DatasetError::Buffer`] when `image` is not [`ImageShape::len`] bytes long, and whatever
    /// keeps the image from being read.
    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError>;

    /// Writes a part of image `index`, scaled to [`shape`](Dataset::shape), to `image` and returns
    /// the label. `choose` is given the height and width of the image, and says which part.
    ///
    /// The image is what [`read`](Dataset::read) gives, unless a data set has it larger, or whole:
    /// it then takes the part from that, since reading scales and cuts. A data set that consists of
    /// another one hands the call on to it.
    ///
    /// # Errors
    /// As [`read`](Dataset::read), and [`DatasetError::Area`] if there is no such part.
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
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl ImageShape {
    /// Values in one image; saturates where the product does not fit.
    pub fn len(&self) -> usize {
        self.channels
            .saturating_mul(self.height)
            .saturating_mul(self.width)
    }

    /// Whether the image has no value at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Per-channel statistics of pixel values scaled to 0..=1; the normalised value of a byte `p` is
/// `(p / 255 - mean) / std`.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalization {
    /// One mean per channel.
    pub mean: Vec<f32>,
    /// One standard deviation per channel, above zero.
    pub std: Vec<f32>,
}

/// Which part of a data set: the images to learn from, or those kept for evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// Training images.
    Train,
    /// Images for evaluation, disjoint from the training images.
    Test,
}

/// Refuses an index or a buffer that does not fit, in the same words for every data set.
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
