//! Image size, classes and normalization of a model's data, without the images.

use std::path::Path;

use datasets::{Dataset, DatasetError, ImageShape, Normalization};

use super::Trained;
use crate::data;
use crate::data::normalization;
use crate::error::TrainError;
use crate::run::environment::{self, Environment};

/// Maximum values of an image. Weights files may come from anywhere, and an image needs memory.
const MOST_NUMBERS: usize = 1 << 24;

/// Image size, classes and normalization of a data set, which need not exist any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    shape: ImageShape,
    class_names: Vec<String>,
    normalization: Normalization,
}

impl Subject {
    /// Takes those of a data set.
    pub fn of(data: &dyn Dataset) -> Self {
        Self {
            shape: data.shape(),
            class_names: data.class_names().to_vec(),
            normalization: data.normalization(),
        }
    }

    /// Reads those of a run folder. `None` if they are missing or invalid.
    fn in_run(run_dir: &Path) -> Option<Self> {
        let text = std::fs::read(run_dir.join(environment::FILE)).ok()?;
        let environment: Environment = serde_json::from_slice(&text).ok()?;
        let [channels, height, width] = environment.image_shape;
        let shape = ImageShape {
            channels,
            height,
            width,
        };
        let (mean, std) = (environment.mean, environment.std);
        Self::complete(shape, environment.class_names, Normalization { mean, std })
    }

    /// Combines all parts. `None` if one is missing or they do not fit.
    pub(super) fn complete(
        shape: ImageShape,
        class_names: Vec<String>,
        normalization: Normalization,
    ) -> Option<Self> {
        let channels = shape.channels;
        let mut sides = [channels, shape.height, shape.width].into_iter();
        let numbers = sides.try_fold(1, usize::checked_mul);
        let complete = numbers.is_some_and(|numbers| (1..=MOST_NUMBERS).contains(&numbers))
            && !class_names.is_empty()
            && normalization.mean.len() == channels
            && normalization.std.len() == channels;
        complete.then_some(Self {
            shape,
            class_names,
            normalization,
        })
    }
}

impl Trained {
    /// Image size, classes and normalization of the model's data.
    ///
    /// Read from the run folder or the weights file, else from the configured data set. `data.mean`
    /// and `data.std` override the normalization.
    ///
    /// # Errors
    /// Fails if neither can be read, or images and normalization differ in channels.
    pub fn subject(&self) -> Result<Subject, TrainError> {
        self.check_images()?;
        let told = match &self.file {
            Some(about) => about.subject.clone(),
            None => self.run_dir.as_deref().and_then(Subject::in_run),
        };
        match told {
            Some(mut subject) => {
                let of_run = subject.normalization;
                subject.normalization = normalization::normalization(&self.config().data, of_run)?;
                Ok(subject)
            }
            None => {
                let sets = data::open(&self.config().data, self.config().train.seed)?;
                Ok(Subject::of(sets.train.as_ref()))
            }
        }
    }
}

impl Dataset for Subject {
    fn len(&self) -> usize {
        0
    }

    fn shape(&self) -> ImageShape {
        self.shape
    }

    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn normalization(&self) -> Normalization {
        self.normalization.clone()
    }

    fn read(&self, index: usize, _image: &mut [u8]) -> Result<u32, DatasetError> {
        Err(DatasetError::Index { index, len: 0 })
    }
}
