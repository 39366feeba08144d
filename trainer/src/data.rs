//! `[data]` becomes data sets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{Dataset, DatasetError, Digits, ImageShape, Mnist, Normalization, Split};

use crate::config::{DataConfig, DataName};

/// Digits to train with when the configuration names no number.
const DIGITS_TRAIN: usize = 8192;
/// Digits to evaluate with when the configuration names no number.
const DIGITS_TEST: usize = 2048;

/// What a run learns from and what it is measured on.
#[derive(Clone)]
pub struct Splits {
    /// Images to learn from.
    pub train: Arc<dyn Dataset>,
    /// Images for evaluation.
    pub test: Arc<dyn Dataset>,
}

/// Downloads what is missing, if the configuration allows it. One rank of each node calls this
/// before any of them calls [`open`].
///
/// # Errors
/// If files are missing and cannot be downloaded.
pub fn prepare(config: &DataConfig) -> Result<(), DatasetError> {
    match config.name {
        DataName::Digits => Ok(()),
        DataName::Mnist if config.download => Mnist::download(dir(config)),
        DataName::Mnist => Ok(()),
    }
}

/// Whether [`prepare`] would have something to download.
pub fn needs_download(config: &DataConfig) -> bool {
    match config.name {
        DataName::Digits => false,
        DataName::Mnist => config.download && !Mnist::missing(dir(config)).is_empty(),
    }
}

/// Opens both splits; `seed` is that of generated data.
///
/// # Errors
/// If files are missing or not what they should be.
pub fn open(config: &DataConfig, seed: u64) -> Result<Splits, DatasetError> {
    match config.name {
        DataName::Digits => {
            let train = config.train_samples.unwrap_or(DIGITS_TRAIN);
            let test = config.test_samples.unwrap_or(DIGITS_TEST);
            Ok(Splits {
                train: Arc::new(Digits::new(Split::Train, train, seed)),
                test: Arc::new(Digits::new(Split::Test, test, seed)),
            })
        }
        DataName::Mnist => {
            let dir = dir(config);
            let train = Mnist::open(&dir, Split::Train)?;
            let test = Mnist::open(&dir, Split::Test)?;
            Ok(Splits {
                train: first(train, config.train_samples),
                test: first(test, config.test_samples),
            })
        }
    }
}

fn dir(config: &DataConfig) -> PathBuf {
    match &config.dir {
        Some(dir) => dir.clone(),
        None => Path::new("data").join(config.name.name()),
    }
}

/// The first `samples` of a data set; all of it if there are no more, or no number is given.
fn first(dataset: impl Dataset + 'static, samples: Option<usize>) -> Arc<dyn Dataset> {
    match samples {
        Some(len) if len < dataset.len() => Arc::new(First { dataset, len }),
        _ => Arc::new(dataset),
    }
}

/// The beginning of a data set.
struct First<D> {
    dataset: D,
    len: usize,
}

impl<D: Dataset> Dataset for First<D> {
    fn len(&self) -> usize {
        self.len
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
        if index >= self.len {
            return Err(DatasetError::Index {
                index,
                len: self.len,
            });
        }
        self.dataset.read(index, image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_have_the_numbers_asked_for() {
        let config = DataConfig {
            train_samples: Some(30),
            test_samples: Some(7),
            ..DataConfig::default()
        };
        let splits = open(&config, 1).unwrap();
        assert_eq!((splits.train.len(), splits.test.len()), (30, 7));
        assert!(!needs_download(&config));
    }

    #[test]
    fn the_first_samples_are_those_of_the_whole_set() {
        let whole = Digits::new(Split::Train, 20, 3);
        let part = first(whole.clone(), Some(5));
        assert_eq!(part.len(), 5);
        assert_eq!(part.shape(), whole.shape());
        let (mut a, mut b) = (vec![0; 784], vec![0; 784]);
        assert_eq!(
            part.read(4, &mut a).unwrap(),
            whole.read(4, &mut b).unwrap()
        );
        assert_eq!(a, b);
        assert!(part.read(5, &mut a).is_err());
        assert_eq!(first(whole, Some(50)).len(), 20);
    }

    #[test]
    fn missing_files_are_an_error_that_names_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let config = DataConfig {
            name: DataName::Mnist,
            dir: Some(folder.path().join("nowhere")),
            download: false,
            ..DataConfig::default()
        };
        let error = open(&config, 1).err().unwrap().to_string();
        assert!(error.contains("nowhere"), "{error}");
        assert!(!needs_download(&config));
        prepare(&config).unwrap();
    }
}
