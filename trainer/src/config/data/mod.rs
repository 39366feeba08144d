//! `[data]`: the data sets.
//!
//! Each data set is one file (keys, defaults, checks, and how to open it) and one line in the list
//! below. The crate `datasets` reads its images.

mod cifar_10;
mod cifar_100;
mod digits;
mod fashion_mnist;
mod generated;
mod image_folder;
mod mask_folder;
mod mnist;
mod own;
mod shapes;
mod text;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use datasets::{Augment, Dataset, DatasetError, RemoteFile, Split};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

use super::error::Fault;
use super::named::named_section;
use super::section::{keys, names};
use super::task;
use super::validate::{ensure, given_in_range, in_range};

pub use cifar_100::LabelsName;
pub use image_folder::ColorName;

named_section! {
    /// `[data]`: the data set. Some keys depend on `name`, which defaults to `digits`.
    "data" DataConfig(DataKeys) DataKind: AnyDataSet, Some("digits");
    "digits" Digits(digits::DigitsConfig),
    "mnist" Mnist(mnist::MnistConfig),
    "fashion-mnist" FashionMnist(fashion_mnist::FashionMnistConfig),
    "cifar-10" Cifar10(cifar_10::Cifar10Config),
    "cifar-100" Cifar100(cifar_100::Cifar100Config),
    "image-folder" ImageFolder(image_folder::ImageFolderConfig),
    "generated" Generated(generated::GeneratedConfig),
    "text" Text(text::TextConfig),
    "shapes" Shapes(shapes::ShapesConfig),
    "mask-folder" MaskFolder(mask_folder::MaskFolderConfig),
    "own" Own(own::OwnConfig),
}

names! {
    /// Data for evaluation.
    EvalSet {
        /// A share of the training data, or the folder `val`.
        #[default]
        Val = "val",
        /// The data set's data for the test of the finished model.
        Test = "test",
    }
}

keys! {
    /// The keys of `[data]` that go with every `name`.
    DataKeys {
        /// Share of the training data that is held out for validation, in (0, 1). Evaluations
        /// during training, the best checkpoint, early stopping and the schedule `plateau` then use
        /// it; `trainer eval` alone uses the test data. Images with classes: the same share of
        /// every class, which `train.seed` selects. Images with masks: `train.seed` selects them.
        /// `text`: the last windows of the files. Default: none; training evaluates on the test
        /// data, for `image-folder` and `mask-folder` on the folder `val` if it exists.
        validation: Option<f64> = None,
        /// Data that training evaluates on if `validation` is set: `val` or `test`. Default `val`.
        evaluate: Option<EvalSet> = None,
        /// Whether to download missing files. The first rank of each node downloads. Default true.
        download: bool = true,
        /// Threads per rank that prepare batches; 0 uses the training thread. Default 1.
        #[schemars(extend("unit" = "threads"))]
        workers: usize = 1,
        /// Whether training images stay in GPU memory and batches are made there. This supports the
        /// augmentations `shift`, `crop`, `flip` and `repeat`. Default: on if the augmentation
        /// allows it and the images fit into a quarter of the GPU's memory (1 GiB if unknown); off
        /// for `image-folder` and `own`, whose images would all be decoded first. Evaluation images
        /// stay there too if everything fits into that quarter.
        on_device: Option<bool> = None,
        /// Random augmentations of training images, in this order, joined by `+`: `repeat[:TIMES]`,
        /// `shift[:PIXELS]`, `crop[:PADDING[:reflect]]`, `resized-crop[:MIN_SCALE]`, `flip[:P]`,
        /// `auto-augment`, `rand-augment[:OPS[:MAGNITUDE]]`, `three-augment`,
        /// `color-jitter[:STRENGTH[:HUE]]`, `mixup[:ALPHA[:P]]`, `cutmix[:ALPHA[:P]]`,
        /// `cutout[:SIDE]`, `erase[:P]`. Example: `crop:4+flip`. Default `none`.
        #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
        #[schemars(with = "String")]
        augment: Augment = Augment::default(),
        /// How often classes are drawn, in [0, 1]: 0 as often as they are in the data, 1 all
        /// equally often, 0.5 by the square root of their size. Above 0, an epoch draws images with
        /// replacement, each with other augmentations. Default 0.
        balance: f64 = 0.0,
        /// Number of training images (`text`: windows): the first of the data set, for
        /// `image-folder` evenly from all classes. `validation` takes its share from them, for
        /// `image-folder` before. Default: all (`digits`: 8192, `generated`: 50000, `shapes`:
        /// 2048).
        #[schemars(extend("unit" = "images"))]
        train_samples: Option<usize> = None,
        /// Number of test images, chosen in the same way; for `image-folder` and `mask-folder` of
        /// the images that are evaluated. Default: all (`digits`: 2048, `generated`: 10000,
        /// `shapes`: 512).
        #[schemars(extend("unit" = "images"))]
        test_samples: Option<usize> = None,
        /// Mean per channel for normalization, of values from 0 to 1. One number in brackets is for
        /// all channels. Default: that of the data set; `image-folder`: ImageNet's, `[0.485, 0.456,
        /// 0.406]`, and 0.5 for grey.
        mean: Option<Vec<f64>> = None,
        /// Standard deviation per channel for normalization, like `mean`. Default: that of the data
        /// set; `image-folder`: ImageNet's, `[0.229, 0.224, 0.225]`, and 0.5 for grey.
        std: Option<Vec<f64>> = None,
    }
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            kind: DataKind::Digits(DigitsConfig::default()),
            keys: DataKeys::default(),
        }
    }
}

/// A split of a data set, if it can be opened.
type Opened = Result<Arc<dyn Dataset>, DatasetError>;
/// Images for training and for validation, if they can be opened.
type Divided = Result<[Arc<dyn Dataset>; 2], DatasetError>;

/// The error of data that is not there.
pub(crate) fn no_validation() -> DatasetError {
    DatasetError::Settings {
        what: "data.validation",
        reason: "it is not set, and the data set has no data for validation. Set it, for example \
                 to 0.1"
            .to_owned(),
    }
}

/// The interface of a data set in `[data]`.
pub trait AnyDataSet {
    /// Name of the task that it is for.
    fn task(&self) -> &'static str {
        task::USUAL
    }

    /// Checks the data set's own keys.
    ///
    /// # Errors
    /// The first invalid key.
    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// The keys that are paths.
    fn paths(&mut self) -> Vec<(&'static str, &mut Option<PathBuf>)> {
        Vec::new()
    }

    /// The configured folder.
    fn dir(&self) -> Option<&Path> {
        None
    }

    /// The folder of the files: configured or default.
    fn folder(&self) -> &Path {
        self.dir().unwrap_or(Path::new(""))
    }

    /// Downloadable files that are missing.
    fn missing(&self) -> Vec<RemoteFile> {
        Vec::new()
    }

    /// Downloads the missing files.
    ///
    /// # Errors
    /// Fails if a file cannot be downloaded.
    fn download(&self) -> Result<(), DatasetError> {
        Ok(())
    }

    /// Makes [`open`](Self::open) write nothing.
    fn read_only(&mut self) {}

    /// Opens a split of images with classes. Generators draw `samples` images with the run's
    /// `seed`.
    ///
    /// # Errors
    /// Fails if files are missing or invalid, or the data has no classes of images.
    fn open(&self, _split: Split, _samples: Option<usize>, _seed: u64) -> Opened {
        Err(DatasetError::Settings {
            what: "data.name",
            reason: "this data has no classes of images. Set task.name to its task".to_owned(),
        })
    }

    /// Training images without the `share` for validation, and the latter, if the data set has a
    /// division of its own.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    fn divided(&self, _share: f64, _seed: u64) -> Option<Divided> {
        None
    }

    /// Opens images with classes for evaluation that the data set comes with, as
    /// [`open`](Self::open) does.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if the data set does not come with images for validation.
    fn open_evaluated(&self, set: EvalSet, samples: Option<usize>, seed: u64) -> Opened {
        match set {
            EvalSet::Test => self.open(Split::Test, samples, seed),
            EvalSet::Val => Err(no_validation()),
        }
    }

    /// Whether the data set comes with data for validation, so that none need be held out.
    fn has_val(&self) -> bool {
        false
    }

    /// Whether the data set comes with test data.
    fn has_test(&self) -> bool {
        true
    }

    /// Indices of the images to use if `samples` are configured and the split has more.
    fn pick(&self, samples: usize, _of: usize) -> Vec<usize> {
        (0..samples).collect()
    }

    /// Whether images are stored decoded, so that all can be uploaded quickly.
    fn is_stored(&self) -> bool {
        true
    }

    /// Pixels of the shorter side before the center crop, if images are resized for one.
    fn resize(&self) -> Option<usize> {
        None
    }
}

/// Implements the common parts of data sets in a folder, and lists the path keys.
macro_rules! in_folder {
    ($folder:literal, $($key:ident),+) => {
        fn paths(&mut self) -> Vec<(&'static str, &mut Option<PathBuf>)> {
            vec![$((concat!("data.", stringify!($key)), &mut self.$key)),+]
        }

        fn dir(&self) -> Option<&Path> {
            self.dir.as_deref()
        }

        fn folder(&self) -> &Path {
            self.dir().unwrap_or(Path::new($folder))
        }
    };
}
use in_folder;

/// As [`in_folder`], and implements downloads.
macro_rules! downloads {
    ($set:ident, $folder:literal, $($key:ident),+) => {
        $crate::config::data::in_folder!($folder, $($key),+);

        fn missing(&self) -> Vec<RemoteFile> {
            $set::missing(self.folder())
        }

        fn download(&self) -> Result<(), DatasetError> {
            $set::download(self.folder())
        }
    };
}
use downloads;

impl DataConfig {
    pub(super) fn check(&self) -> [Result<(), Fault>; 7] {
        let balance = self.balance;
        let share = (0.0..=1.0).contains(&balance);
        [
            in_range("data.workers", self.workers as u64, 0, 256),
            given_in_range("data.train_samples", self.train_samples, 100_000_000),
            given_in_range("data.test_samples", self.test_samples, 100_000_000),
            ensure(share, "data.balance", balance, "in [0, 1]"),
            self.check_validation(),
            self.kind.check(),
            self.check_normalization(),
        ]
    }

    fn check_validation(&self) -> Result<(), Fault> {
        match (self.validation, self.evaluate) {
            (Some(share), _) => {
                let good = share > 0.0 && share < 1.0;
                ensure(good, "data.validation", share, "between 0 and 1")
            }
            (None, None) => Ok(()),
            (None, Some(_)) => {
                let message = "`data.evaluate` has no effect without `data.validation`";
                let fault = Fault::in_key("data.evaluate", message);
                Err(fault.help("set data.validation, for example to 0.1, or remove this key"))
            }
        }
    }

    /// Neither downloads nor writes files when the data is opened.
    pub fn read_only(&mut self) {
        self.download = false;
        self.kind.read_only();
    }

    /// The data that training evaluates on.
    pub fn evaluated(&self) -> EvalSet {
        match self.evaluate {
            Some(set) => set,
            None if self.has(EvalSet::Val) => EvalSet::Val,
            None => EvalSet::Test,
        }
    }

    /// The data that a finished model is evaluated on: the test data, if there is some.
    pub fn evaluated_at_end(&self) -> EvalSet {
        match self.has(EvalSet::Val) && !self.has(EvalSet::Test) {
            true => EvalSet::Val,
            false => EvalSet::Test,
        }
    }

    /// Whether there is data of this kind.
    pub fn has(&self, set: EvalSet) -> bool {
        match set {
            EvalSet::Val => self.validation.is_some() || self.kind.has_val(),
            EvalSet::Test => self.kind.has_test(),
        }
    }

    /// Checks `mean` and `std`. Their number of channels is checked when the data is opened.
    fn check_normalization(&self) -> Result<(), Fault> {
        for (key, numbers) in [("data.mean", &self.mean), ("data.std", &self.std)] {
            if numbers.as_ref().is_some_and(Vec::is_empty) {
                let fault = Fault::in_key(key, format!("`{key}` is empty"));
                return Err(fault.help("give one number per channel, or one for all channels"));
            }
        }
        for mean in self.mean.iter().flatten() {
            let good = (0.0..=1.0).contains(mean);
            ensure(good, "data.mean", *mean, "in [0, 1]").map_err(of_bytes)?;
        }
        for std in self.std.iter().flatten() {
            // Outside this range, normalized values overflow f32 or all become equal.
            let good = (1e-6..=1e6).contains(std);
            ensure(good, "data.std", *std, "positive, from 1e-6 to 1e6").map_err(of_bytes)?;
        }
        Ok(())
    }
}

/// Checks that a program's task evaluates on the data that the configuration wants.
///
/// # Errors
/// Fails if `data.validation` is set, and the task does not follow it.
pub(crate) fn check_evaluated(config: &DataConfig, by_task: EvalSet) -> Result<(), Fault> {
    let wanted = config.evaluated();
    if config.validation.is_none() || wanted == by_task {
        return Ok(());
    }
    let message = format!(
        "with `data.validation`, training evaluates on {}, but the program's task does so on {}",
        wanted.name(),
        by_task.name()
    );
    let fault = Fault::in_key("data.validation", message);
    Err(fault.help("hold out a share with `Opening::held_out`, or remove this key"))
}

fn of_bytes(fault: Fault) -> Fault {
    fault.help("mean and std are of values from 0 to 1: divide those of bytes by 255")
}

/// `samples` indices out of `len`, at equal distances.
pub(crate) fn evenly(samples: usize, len: usize) -> Vec<usize> {
    let index = |i| (i as u128 * len as u128 / samples as u128) as usize;
    (0..samples).map(index).collect()
}

fn as_text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn from_text<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(D::Error::custom)
}
