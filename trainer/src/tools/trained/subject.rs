//! What the images of a model are like, without the images.

use std::path::Path;

use datasets::{Dataset, DatasetError, ImageShape, Normalization};

use super::Trained;
use crate::data;
use crate::data::normalization;
use crate::run::environment::{self, Environment};

/// Numbers of the largest image that is believed: a file may come from anywhere, and memory is
/// taken for one.
const MOST_NUMBERS: usize = 1 << 24;

/// Size, classes and normalisation of a data set that need not be there any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    shape: ImageShape,
    class_names: Vec<String>,
    normalization: Normalization,
}

impl Subject {
    /// That of a data set.
    pub fn of(data: &dyn Dataset) -> Self {
        Self {
            shape: data.shape(),
            class_names: data.class_names().to_vec(),
            normalization: data.normalization(),
        }
    }

    /// What the run folder says; nothing if it does not, or something else than sizes and names.
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

    /// One of which everything is known; nothing if something is missing or does not fit.
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
    /// What the images are like, from the run folder or the file of weights, else from the data set
    /// that the configuration names; normalised as that says.
    ///
    /// # Errors
    /// If neither can be read, or the images have other channels than what they are normalised by.
    pub fn subject(&self) -> Result<Subject, DatasetError> {
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
                let splits = data::open(&self.config().data, self.config().train.seed)?;
                Ok(Subject::of(splits.train.as_ref()))
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
