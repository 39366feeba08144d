//! Predicts the classes of image files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use burn::tensor::activation::softmax;
use burn_dist::world::World;
use datasets::{Dataset, DatasetError, EvalSampler, ImageShape, Loader, Normalization, read_image};
use models::ImageClassifier;

use super::{Subject, Trained, WithTrained};
use crate::data::batch::to_tensors;
use crate::error::TrainError;
use crate::eval::evaluate::read;

/// Maximum images per batch, and their maximum number of values.
const BATCH: usize = 64;
const MOST_NUMBERS: usize = 1 << 24;

/// A class and its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedGuess {
    /// Name of the class.
    pub class: String,
    /// Probability from 0 to 1.
    pub probability: f32,
}

impl Trained {
    /// Predicts the `top` likeliest classes of each image, the likeliest first.
    ///
    /// Passes them to `each` in the order of `paths`. Images are scaled, center-cropped and
    /// normalized as for the run's evaluation. An image that cannot be read is an error for `each`;
    /// the others are still predicted.
    ///
    /// # Errors
    /// Fails if the model cannot be built, or needs a data set that cannot be read.
    pub fn predict(
        &self,
        paths: &[PathBuf],
        top: usize,
        each: impl FnMut(&Path, Result<&[NamedGuess], DatasetError>),
    ) -> Result<(), TrainError> {
        let predicted = self.try_predict(paths, top, each);
        predicted.map_err(|error| self.locate(error))
    }

    /// Pixels of the shorter side before the center crop, if the training used one.
    pub(super) fn resize(&self) -> Option<usize> {
        let of_file = self.file.as_ref().and_then(|about| about.resize);
        self.config().data.kind.resize().or(of_file)
    }

    fn try_predict(
        &self,
        paths: &[PathBuf],
        top: usize,
        each: impl FnMut(&Path, Result<&[NamedGuess], DatasetError>),
    ) -> Result<(), TrainError> {
        let subject = self.subject()?;
        let device = crate::system::device::choose(self.config(), &World::single())?.device;
        let resize = self.resize().unwrap_or(subject.shape().width);
        let predict = Predict {
            subject: &subject,
            resize,
            paths,
            top,
            device: &device,
            each,
        };
        self.with_model(&subject, &device, predict)
    }
}

struct Predict<'a, F> {
    subject: &'a Subject,
    resize: usize,
    paths: &'a [PathBuf],
    top: usize,
    device: &'a Device,
    each: F,
}

impl<F: FnMut(&Path, Result<&[NamedGuess], DatasetError>)> WithTrained for Predict<'_, F> {
    type Output = ();

    fn call<M: ImageClassifier>(mut self, model: M) -> Result<(), TrainError> {
        let batch = MOST_NUMBERS / self.subject.shape().len().max(1);
        for paths in self.paths.chunks(batch.clamp(1, BATCH)) {
            let decoded: Vec<_> = paths.iter().map(|path| self.decode(path)).collect();
            let images = decoded.iter().flatten().cloned().collect();
            let mut guesses = self.guess(&model, images)?.into_iter();
            for (path, image) in paths.iter().zip(decoded) {
                match image {
                    Ok(_) => (self.each)(path, Ok(&guesses.next().unwrap_or_default())),
                    Err(error) => (self.each)(path, Err(error)),
                }
            }
        }
        Ok(())
    }
}

impl<F> Predict<'_, F> {
    fn decode(&self, path: &Path) -> Result<Vec<u8>, DatasetError> {
        let shape = self.subject.shape();
        let mut image = vec![0; shape.len()];
        read_image(path, shape, self.resize, &mut image)?;
        Ok(image)
    }

    fn guess<M: ImageClassifier>(
        &self,
        model: &M,
        images: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<NamedGuess>>, TrainError> {
        if images.is_empty() {
            return Ok(Vec::new());
        }
        let sampler = EvalSampler::new(images.len(), BATCH, 0, 1)?;
        let loader = Loader::new(Arc::new(Pictures {
            subject: self.subject.clone(),
            images,
        }))?;
        let mut guesses = Vec::new();
        for batch in loader.iter(sampler.epoch()) {
            let (images, _) = to_tensors(batch?, self.device);
            let logits = model.forward(images);
            let classes = model.num_classes().max(1);
            let probabilities = read(softmax(logits, 1).try_into_data())?;
            let probabilities: Vec<f32> = probabilities.iter::<f32>().collect();
            guesses.extend(probabilities.chunks(classes).map(|row| self.best(row)));
        }
        Ok(guesses)
    }

    fn best(&self, probabilities: &[f32]) -> Vec<NamedGuess> {
        let names = self.subject.class_names();
        let mut guesses: Vec<NamedGuess> = names
            .iter()
            .zip(probabilities)
            .map(|(class, &probability)| NamedGuess {
                class: class.clone(),
                probability,
            })
            .collect();
        guesses.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        guesses.truncate(self.top);
        guesses
    }
}

/// Decoded images of unknown class.
struct Pictures {
    subject: Subject,
    images: Vec<Vec<u8>>,
}

impl Dataset for Pictures {
    fn len(&self) -> usize {
        self.images.len()
    }

    fn shape(&self) -> ImageShape {
        self.subject.shape()
    }

    fn class_names(&self) -> &[String] {
        self.subject.class_names()
    }

    fn normalization(&self) -> Normalization {
        self.subject.normalization()
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        let len = self.len();
        let found = self.images.get(index);
        let found = found.ok_or(DatasetError::Index { index, len })?;
        if found.len() != image.len() {
            return Err(DatasetError::Buffer {
                given: image.len(),
                needed: found.len(),
            });
        }
        image.copy_from_slice(found);
        Ok(0)
    }
}
