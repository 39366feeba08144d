//! `[data]`: the data sets and their keys.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use datasets::Augment;
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::section::names;

names! {
    /// `[data] name`.
    DataName {
        /// 28×28 digits drawn by a generator; needs no files.
        #[default]
        Digits = "digits",
        /// MNIST: 28×28 handwritten digits, 60000 to train and 10000 to test.
        Mnist = "mnist",
        /// Fashion-MNIST: 28×28 grey images of clothes, 60000 to train and 10000 to test.
        FashionMnist = "fashion-mnist",
        /// CIFAR-10: 32×32 colour images of 10 classes, 50000 to train and 10000 to test.
        Cifar10 = "cifar-10",
        /// CIFAR-100: 32×32 colour images of 100 classes, 50000 to train and 10000 to test.
        Cifar100 = "cifar-100",
        /// A folder of images for each class.
        ImageFolder = "image-folder",
        /// Images of any size drawn by a generator, for benchmarks.
        Generated = "generated",
        /// The images of a program that trains with this library and gives them to its `Trainer`.
        Own = "own",
    }
}

names! {
    /// `[data] labels` of CIFAR-100.
    LabelsName {
        /// 100 classes.
        #[default]
        Fine = "fine",
        /// 20 classes of 5 fine ones each.
        Coarse = "coarse",
    }
}

names! {
    /// `[data] color` of an image folder.
    ColorName {
        /// As the files have it; all have to agree.
        #[default]
        Auto = "auto",
        /// Three channels; grey images get three equal ones.
        Rgb = "rgb",
        /// One channel.
        Grey = "grey",
    }
}

/// `[data]`: what is learned from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// Data set: `digits`, `mnist`, `fashion-mnist`, `cifar-10`, `cifar-100`, `image-folder`,
    /// `generated` or `own`. Default `digits`.
    pub name: DataName,
    /// Folder that holds the files, or will after the download. Default `data/<name>`; `digits`
    /// and `generated` need none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Whether missing files are downloaded, by the first rank of each node. Default true.
    pub download: bool,
    /// Folder for the unpacked copy of an archive, which the ranks of a node share. Default: beside
    /// the archive, or in the user's cache folder where that cannot be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<PathBuf>,
    /// Threads per rank that prepare batches; 0 prepares them in the thread that trains.
    /// Default 1.
    #[schemars(extend("unit" = "threads"))]
    pub workers: usize,
    /// Whether the training images lie in the memory of the GPU and batches are made there, which
    /// needs an augmentation of `shift`, `crop`, `flip` and `repeat` alone. Default: on a GPU, where
    /// the augmentation allows it and the images take no more than a quarter of its memory (1 GiB
    /// where that is not known); not of `image-folder` and `own`, whose images would all be decoded
    /// before the first step. The images of evaluations lie there too, whatever the augmentation, if all
    /// that is there takes no more than that quarter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_device: Option<bool>,
    /// Random changes to training images, in this order and joined by `+`: `repeat[:TIMES]`,
    /// `shift[:PIXELS]`, `crop[:PADDING[:reflect]]`, `resized-crop[:MIN_SCALE]`, `flip[:P]`,
    /// `auto-augment`, `rand-augment[:OPS[:MAGNITUDE]]`, `mixup[:ALPHA[:P]]`,
    /// `cutmix[:ALPHA[:P]]`, `cutout[:SIDE]`, `erase[:P]`; for example `crop:4+flip`. Default `none`.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    #[schemars(with = "String")]
    pub augment: Augment,
    /// Training images used, the first ones of the data set, of `image-folder` evenly from all classes. Default: all (`digits`: 8192,
    /// `generated`: 50000).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("unit" = "images"))]
    pub train_samples: Option<usize>,
    /// Test images used, picked in the same way. Default: all (`digits`: 2048,
    /// `generated`: 10000).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("unit" = "images"))]
    pub test_samples: Option<usize>,
    /// `cifar-100`: classes, `fine` (100) or `coarse` (20). Default `fine`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<LabelsName>,
    /// `image-folder`: side in pixels to which images are cropped; `generated`: their side.
    /// Default 224; `generated`: 32.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("unit" = "pixels"))]
    pub size: Option<usize>,
    /// `image-folder`: length in pixels to which the shorter side is scaled before the crop; not
    /// before the `resized-crop` of `augment`, whose parts are those of the whole picture. Default:
    /// `size` × 256 / 224.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("unit" = "pixels"))]
    pub resize: Option<usize>,
    /// `image-folder`: `rgb` and `grey` convert all images, `auto` wants files that agree. What is transparent is black
    /// where it is, and pictures are turned as a camera has noted. Default `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub color: Option<ColorName>,
    /// `image-folder`: share of each class that is kept for validation, where the folder has none
    /// of its own, in (0, 1). Default: the folder has `train`, and beside it `val` (or `valid`, or
    /// `validation`), or else `test`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<f64>,
    /// Mean of each channel by which images are normalised, of values from 0 to 1; one number is
    /// for all channels. Default: that of the data set; `image-folder`: ImageNet's,
    /// `[0.485, 0.456, 0.406]`, and 0.5 for grey.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<Vec<f64>>,
    /// The standard deviation by which the difference from the mean is divided, likewise. Default:
    /// that of the data set; `image-folder`: ImageNet's, `[0.229, 0.224, 0.225]`, and 0.5 for grey.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub std: Option<Vec<f64>>,
    /// `generated`: channels. Default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<usize>,
    /// `generated`: classes. Default 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<usize>,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            name: DataName::Digits,
            dir: None,
            download: true,
            cache_dir: None,
            workers: 1,
            on_device: None,
            augment: Augment::default(),
            train_samples: None,
            test_samples: None,
            labels: None,
            size: None,
            resize: None,
            color: None,
            validation: None,
            mean: None,
            std: None,
            channels: None,
            classes: None,
        }
    }
}

/// Side of the images of a folder, in pixels, when the configuration names none.
const FOLDER_SIDE: usize = 224;

impl DataConfig {
    /// Side of the images of a folder, in pixels.
    pub fn folder_side(&self) -> usize {
        self.size.unwrap_or(FOLDER_SIDE)
    }

    /// The keys that only some data sets have a use for, whether each is given, and which data
    /// sets those are.
    pub(super) fn particular_keys(&self) -> [(&'static str, bool, &'static [DataName]); 9] {
        use DataName::{Cifar10, Cifar100, FashionMnist, Generated, ImageFolder, Mnist};
        [
            (
                "data.dir",
                self.dir.is_some(),
                &[Mnist, FashionMnist, Cifar10, Cifar100, ImageFolder],
            ),
            (
                "data.cache_dir",
                self.cache_dir.is_some(),
                &[Cifar10, Cifar100],
            ),
            ("data.labels", self.labels.is_some(), &[Cifar100]),
            ("data.size", self.size.is_some(), &[ImageFolder, Generated]),
            ("data.resize", self.resize.is_some(), &[ImageFolder]),
            ("data.color", self.color.is_some(), &[ImageFolder]),
            ("data.validation", self.validation.is_some(), &[ImageFolder]),
            ("data.channels", self.channels.is_some(), &[Generated]),
            ("data.classes", self.classes.is_some(), &[Generated]),
        ]
    }
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
