//! Opens the data sets of `[data]`.

pub(crate) mod balance;
pub(crate) mod batch;
pub mod checksums;
pub(crate) mod class_names;
pub(crate) mod device_data;
pub(crate) mod division;
pub(crate) mod input;
pub(crate) mod normalization;
pub(crate) mod same_data;
pub(crate) mod validation;

use std::sync::Arc;

use datasets::{Area, Dataset, DatasetError, ImageShape, Normalization, Split};

use crate::config::{DataConfig, DataKind, EvalSet, evenly};
use crate::data::normalization::normalized;

/// A program's own images, for training and for the test of the finished model.
#[derive(Clone)]
pub struct Splits {
    /// Images for training.
    pub train: Arc<dyn Dataset>,
    /// Test images. Training evaluates on them, unless `data.validation` is set.
    pub test: Arc<dyn Dataset>,
}

/// Images that training learns from, and images that it evaluates on.
#[derive(Clone)]
pub struct Sets {
    /// Images for training.
    pub train: Arc<dyn Dataset>,
    /// Images for evaluation: for validation or test.
    pub eval: Arc<dyn Dataset>,
}

impl Sets {
    /// Reduces both sets to the same few training images, for a model to overfit.
    ///
    /// Takes `samples` images at even distances, so that sets sorted by class keep all classes.
    pub fn overfit(self, samples: usize) -> Self {
        let len = self.train.len();
        let samples = samples.clamp(1, len.max(1));
        let few: Arc<dyn Dataset> = Arc::new(Picked {
            dataset: self.train,
            indices: evenly(samples, len),
        });
        Self {
            train: few.clone(),
            eval: few,
        }
    }
}

/// A subset of a data set.
struct Picked {
    dataset: Arc<dyn Dataset>,
    indices: Vec<usize>,
}

impl Picked {
    /// Index in the data set of image `index`.
    fn origin(&self, index: usize) -> Result<usize, DatasetError> {
        let len = self.len();
        let picked = self.indices.get(index).copied();
        picked.ok_or(DatasetError::Index { index, len })
    }
}

impl Dataset for Picked {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn shape(&self) -> ImageShape {
        self.dataset.shape()
    }

    fn class_names(&self) -> &[String] {
        self.dataset.class_names()
    }

    fn normalization(&self) -> Normalization {
        self.dataset.normalization()
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        self.dataset.read(self.origin(index)?, image)
    }

    fn label(&self, index: usize) -> Result<u32, DatasetError> {
        self.dataset.label(self.origin(index)?)
    }

    fn read_part(
        &self,
        index: usize,
        choose: &mut dyn FnMut(usize, usize) -> Area,
        image: &mut [u8],
    ) -> Result<u32, DatasetError> {
        let origin = self.origin(index)?;
        self.dataset.read_part(origin, choose, image)
    }
}

/// Downloads missing files, if the configuration allows it.
///
/// One rank of each node calls this before any of them calls [`open`].
///
/// # Errors
/// Fails if files are missing and cannot be downloaded.
pub fn prepare(config: &DataConfig) -> Result<(), DatasetError> {
    if !config.download {
        return Ok(());
    }
    config.kind.download()
}

/// Whether [`prepare`] would download something.
pub fn needs_download(config: &DataConfig) -> bool {
    config.download && !config.kind.missing().is_empty()
}

/// Opens the images that training learns from and evaluates on. `seed` decides generated data and
/// the validation split.
///
/// # Errors
/// Fails if files are missing or damaged.
pub fn open(config: &DataConfig, seed: u64) -> Result<Sets, DatasetError> {
    open_with(config, seed, config.evaluated())
}

/// Opens the training images, and `evaluated` for evaluation.
///
/// Only [`EvalSet::Test`] opens the test images.
///
/// # Errors
/// Fails if files are missing or damaged, or the images do not exist.
pub fn open_with(config: &DataConfig, seed: u64, evaluated: EvalSet) -> Result<Sets, DatasetError> {
    let own = || -> Result<Arc<dyn Dataset>, DatasetError> {
        let samples = config.test_samples;
        let images = config.kind.open_evaluated(evaluated, samples, seed)?;
        Ok(some(config, images, samples))
    };
    let whole = || -> Result<Arc<dyn Dataset>, DatasetError> {
        let samples = config.train_samples;
        let images = config.kind.open(Split::Train, samples, seed)?;
        Ok(some(config, images, samples))
    };
    let Some(share) = config.validation else {
        return fitting(config, whole()?, own()?);
    };
    let [train, val] = match config.kind.divided(share, seed) {
        Some(divided) => {
            let [train, val] = divided?;
            let train = some(config, train, config.train_samples);
            [train, some(config, val, config.test_samples)]
        }
        None => validation::divide(whole()?, share, seed)?,
    };
    match evaluated {
        EvalSet::Val => fitting(config, train, val),
        EvalSet::Test if config.kind.has_test() => fitting(config, train, own()?),
        EvalSet::Test => Err(no_test(config)),
    }
}

/// The error of a folder without test images.
pub(crate) fn no_test(config: &DataConfig) -> DatasetError {
    DatasetError::Settings {
        what: "data.evaluate",
        reason: format!(
            "{} has no folder test beside train. Evaluate on \"val\"",
            config.kind.folder().display()
        ),
    }
}

/// Applies the configuration to a program's own images: their number and normalization.
///
/// # Errors
/// Fails if the configuration names another data set, or training and test images differ in size.
pub(crate) fn of_program(
    config: &DataConfig,
    own: &Splits,
    seed: u64,
) -> Result<Sets, DatasetError> {
    if !matches!(config.kind, DataKind::Own(_)) {
        return Err(DatasetError::Settings {
            what: "data.name",
            reason: format!(
                "it is {:?}, but the program passes images of its own. Set it to \"own\"",
                config.kind.name()
            ),
        });
    }
    let train = some(config, own.train.clone(), config.train_samples);
    let test = some(config, own.test.clone(), config.test_samples);
    let Some(share) = config.validation else {
        return fitting(config, train, test);
    };
    let [train, val] = validation::divide(train, share, seed)?;
    match config.evaluated() {
        EvalSet::Val => fitting(config, train, val),
        EvalSet::Test => fitting(config, train, test),
    }
}

/// Both sets, if their images have the same shape.
fn fitting(
    config: &DataConfig,
    train: Arc<dyn Dataset>,
    eval: Arc<dyn Dataset>,
) -> Result<Sets, DatasetError> {
    let (wanted, found) = (train.shape(), eval.shape());
    if wanted != found {
        let size = |shape: ImageShape| {
            let ImageShape {
                channels,
                height,
                width,
            } = shape;
            format!("{channels}×{height}×{width}")
        };
        return Err(DatasetError::Settings {
            what: "size of the images for evaluation",
            reason: format!(
                "{} (channels, height, width), but the training images have {}. For a folder of \
                 images, set data.color",
                size(found),
                size(wanted)
            ),
        });
    }
    Ok(Sets {
        train: normalized(config, train)?,
        eval: normalized(config, eval)?,
    })
}

/// The configured number of samples of a data set, or all.
fn some(
    config: &DataConfig,
    dataset: Arc<dyn Dataset>,
    samples: Option<usize>,
) -> Arc<dyn Dataset> {
    let len = dataset.len();
    match samples {
        Some(samples) if samples < len => Arc::new(Picked {
            dataset,
            indices: config.kind.pick(samples, len),
        }),
        _ => dataset,
    }
}

#[cfg(test)]
mod tests {
    use datasets::{Digits, ImageFolder, ImageFolderOptions};

    use super::*;
    use crate::config::{DataKeys, ImageFolderConfig, MnistConfig, OwnConfig};

    fn with(keys: DataKeys) -> DataConfig {
        DataConfig {
            keys,
            ..DataConfig::default()
        }
    }

    #[test]
    fn digits_have_the_numbers_asked_for() {
        let config = with(DataKeys {
            train_samples: Some(30),
            test_samples: Some(7),
            ..DataKeys::default()
        });
        let sets = open(&config, 1).unwrap();
        assert_eq!((sets.train.len(), sets.eval.len()), (30, 7));
        assert!(!needs_download(&config));
    }

    #[test]
    fn a_share_for_validation_comes_from_the_training_images() {
        let config = |evaluate| {
            with(DataKeys {
                train_samples: Some(200),
                test_samples: Some(7),
                validation: Some(0.1),
                evaluate,
                ..DataKeys::default()
            })
        };
        for (evaluate, expected) in [
            (None, 20),
            (Some(EvalSet::Val), 20),
            (Some(EvalSet::Test), 7),
        ] {
            let sets = open(&config(evaluate), 1).unwrap();
            assert_eq!((sets.train.len(), sets.eval.len()), (180, expected));
        }
        let config = config(None);
        assert_eq!(config.evaluated(), EvalSet::Val);
        assert_eq!(config.evaluated_at_end(), EvalSet::Test);
        assert_eq!(open_with(&config, 1, EvalSet::Test).unwrap().eval.len(), 7);
        assert_eq!(DataConfig::default().evaluated(), EvalSet::Test);
    }

    /// Draws three images per class into each folder, and four into `test`.
    fn draw(root: &std::path::Path, parts: &[&str]) {
        for (part, class) in parts.iter().flat_map(|part| [(part, "a"), (part, "b")]) {
            let folder = root.join(part).join(class);
            std::fs::create_dir_all(&folder).unwrap();
            let count = if *part == "test" { 4u8 } else { 3 };
            for number in 0..count {
                let picture = image::GrayImage::from_pixel(8, 8, image::Luma([number]));
                picture.save(folder.join(format!("{number}.png"))).unwrap();
            }
        }
    }

    #[test]
    fn a_folder_says_which_of_its_images_are_evaluated() {
        // Folders, share, images evaluated in training and at the end, or a part of the error.
        for (parts, share, during, at_end) in [
            (
                &["train", "val", "test"][..],
                None,
                Ok(("val", 6)),
                Ok(("test", 8)),
            ),
            (&["train", "val"], None, Ok(("val", 6)), Ok(("val", 6))),
            (&["train", "test"], None, Ok(("test", 8)), Ok(("test", 8))),
            (
                &["train", "test"],
                Some(0.34),
                Ok(("val", 2)),
                Ok(("test", 8)),
            ),
            (&["."], Some(0.34), Ok(("val", 2)), Ok(("val", 2))),
            (
                &["train", "val"],
                Some(0.34),
                Err("also takes"),
                Err("also takes"),
            ),
        ] {
            let home = tempfile::tempdir().unwrap();
            draw(home.path(), parts);
            let config = DataConfig {
                kind: DataKind::ImageFolder(ImageFolderConfig {
                    dir: Some(home.path().to_owned()),
                    size: Some(8),
                    ..ImageFolderConfig::default()
                }),
                keys: DataKeys {
                    validation: share,
                    ..DataKeys::default()
                },
            };
            for (set, expected) in [
                (config.evaluated(), during),
                (config.evaluated_at_end(), at_end),
            ] {
                match (open_with(&config, 1, set), expected) {
                    (Ok(sets), Ok(expected)) => {
                        assert_eq!((set.name(), sets.eval.len()), expected, "{parts:?}");
                    }
                    (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                    (found, _) => panic!("{parts:?}: {:?}", found.map(|_| ())),
                }
            }
        }
    }

    #[test]
    fn own_images_are_those_of_a_program_that_has_some() {
        let own = Splits {
            train: Arc::new(Digits::new(Split::Train, 20, 3)),
            test: Arc::new(Digits::new(Split::Test, 10, 3)),
        };
        let config = DataConfig {
            kind: DataKind::Own(OwnConfig::default()),
            keys: DataKeys {
                train_samples: Some(5),
                mean: Some(vec![0.25]),
                ..DataKeys::default()
            },
        };
        let sets = of_program(&config, &own, 1).unwrap();
        assert_eq!((sets.train.len(), sets.eval.len()), (5, 10));
        assert_eq!(sets.eval.normalization().mean, [0.25]);
        let nobodys = open(&config, 1).err().unwrap().to_string();
        assert!(nobodys.contains("`Trainer`"), "{nobodys}");
        let other = of_program(&DataConfig::default(), &own, 1).err().unwrap();
        assert!(other.to_string().contains("\"digits\""), "{other}");
    }

    #[test]
    fn the_first_samples_are_those_of_the_whole_set() {
        let whole = Digits::new(Split::Train, 20, 3);
        let of = |samples| {
            some(
                &DataConfig::default(),
                Arc::new(whole.clone()),
                Some(samples),
            )
        };
        let part = of(5);
        assert_eq!(part.len(), 5);
        assert_eq!(part.shape(), whole.shape());
        let (mut a, mut b) = (vec![0; 784], vec![0; 784]);
        assert_eq!(
            part.read(4, &mut a).unwrap(),
            whole.read(4, &mut b).unwrap()
        );
        assert_eq!(a, b);
        assert!(part.read(5, &mut a).is_err());
        assert_eq!(of(50).len(), 20);
    }

    #[test]
    fn a_few_images_of_every_kind_are_learned_by_heart() {
        let config = with(DataKeys {
            train_samples: Some(100),
            ..DataKeys::default()
        });
        let whole = open(&config, 1).unwrap();
        let few = whole.clone().overfit(4);
        assert_eq!((few.train.len(), few.eval.len()), (4, 4));
        let (mut a, mut b) = (vec![0; 784], vec![0; 784]);
        for (index, origin) in [0, 25, 50, 75].into_iter().enumerate() {
            let label = few.eval.read(index, &mut a).unwrap();
            assert_eq!(label, whole.train.read(origin, &mut b).unwrap());
            assert_eq!(a, b);
        }
        assert!(few.train.read(4, &mut a).is_err());
        assert_eq!(whole.overfit(1000).train.len(), 100);
    }

    #[test]
    fn parts_of_picked_images_are_those_of_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path().join("train/a");
        std::fs::create_dir_all(&class).unwrap();
        for number in 0..4u8 {
            let picture = image::RgbImage::from_fn(40, 10, |x, _| image::Rgb([x as u8, number, 0]));
            picture.save(class.join(format!("{number}.png"))).unwrap();
        }
        let options = ImageFolderOptions::new(4);
        let whole = ImageFolder::open(folder.path(), Split::Train, &options).unwrap();
        let config = DataConfig {
            kind: DataKind::ImageFolder(ImageFolderConfig::default()),
            ..DataConfig::default()
        };
        let few = some(&config, Arc::new(whole), Some(2));
        let mut image = [0; 48];
        // The last columns, which a whole-image read crops.
        let mut right = |height, width| Area {
            top: height - 4,
            left: width - 4,
            height: 4,
            width: 4,
        };
        few.read_part(1, &mut right, &mut image).unwrap();
        assert_eq!(image[..16], [36, 37, 38, 39].repeat(4));
        assert_eq!(image[16..32], [2; 16]);
        assert!(few.read_part(2, &mut right, &mut image).is_err());
    }

    #[test]
    fn missing_files_are_an_error_that_names_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let config = DataConfig {
            kind: DataKind::Mnist(MnistConfig {
                dir: Some(folder.path().join("nowhere")),
            }),
            keys: DataKeys {
                download: false,
                ..DataKeys::default()
            },
        };
        let error = open(&config, 1).err().unwrap().to_string();
        assert!(error.contains("nowhere"), "{error}");
        assert!(!needs_download(&config));
        prepare(&config).unwrap();
    }

    #[test]
    fn a_few_of_what_is_sorted_are_of_all_of_it() {
        assert_eq!(evenly(4, 8), [0, 2, 4, 6]);
        assert_eq!(evenly(3, 10), [0, 3, 6]);
        assert_eq!(evenly(2, 2), [0, 1]);
    }
}
