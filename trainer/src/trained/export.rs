//! Writes a trained model into one file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use burn_dist::checkpoint::Source;
use burn_dist::parallel::{ParallelError, TrainedValues};
use clap::ValueEnum;
use datasets::Dataset;
use models::ImageClassifier;
use models::weights::{KeyMap, PyTorchKeys, save_from};

use super::Trained;
use crate::error::TrainError;
use crate::misfit;
use crate::model::WithModel;

/// How tensors are named and laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// As the model's reference in PyTorch.
    #[default]
    Torch,
    /// As Burn's modules.
    Burn,
}

impl Trained {
    /// Writes parameters and buffers to the safetensors file `path`, which appears when it is
    /// complete. Its metadata has the `[model]` section as JSON, the names of the classes, the size
    /// of the images, their normalisation and the step.
    ///
    /// [`models::weights::load`] reads both formats.
    ///
    /// # Errors
    /// If the model cannot be built or the file cannot be written.
    pub fn export(&self, path: &Path, format: Format) -> Result<(), TrainError> {
        let exported = self.try_export(path, format);
        exported.map_err(|error| self.locate(error))
    }

    fn try_export(&self, path: &Path, format: Format) -> Result<(), TrainError> {
        let subject = self.subject()?;
        let json = |value: serde_json::Result<String>| value.unwrap_or_default();
        let (shape, normalization) = (subject.shape(), subject.normalization());
        let about = HashMap::from([
            (
                "model".to_owned(),
                json(serde_json::to_string(&self.config().model)),
            ),
            (
                "class_names".to_owned(),
                json(serde_json::to_string(subject.class_names())),
            ),
            (
                "image_shape".to_owned(),
                format!("[{}, {}, {}]", shape.channels, shape.height, shape.width),
            ),
            (
                "mean".to_owned(),
                json(serde_json::to_string(&normalization.mean)),
            ),
            (
                "std".to_owned(),
                json(serde_json::to_string(&normalization.std)),
            ),
            ("step".to_owned(), self.step.to_string()),
        ]);
        let source = self.source(&subject)?;
        let export = Export {
            source: &source,
            path,
            format,
            about,
        };
        let device = burn::tensor::Device::flex();
        crate::model::build(&self.config().model, &subject, &device, export)
            .map_err(|error| misfit::of_model(&self.loaded, &error))?
    }
}

/// Copies tensor by tensor: the model gives the names and shapes, and its parameters, which come to
/// exist when they are first used, never do.
struct Export<'a> {
    source: &'a Source,
    path: &'a Path,
    format: Format,
    about: HashMap<String, String>,
}

impl WithModel for Export<'_> {
    type Output = Result<(), TrainError>;

    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Self::Output {
        let keys = match self.format {
            Format::Torch => model.key_map(),
            Format::Burn => KeyMap::native(),
        };
        let values = RefCell::new(TrainedValues::new(self.source));
        let misfit = RefCell::new(None);
        let told = |error: ParallelError| {
            let reason = error.to_string();
            misfit.borrow_mut().get_or_insert(error);
            reason
        };
        let read = |path: &str, shape: &[usize]| {
            let read = values.borrow_mut().read(path, shape);
            read.map_err(|reason| {
                told(ParallelError::Restore {
                    path: path.to_owned(),
                    reason,
                })
            })
        };
        let complete = || values.borrow().finish().map_err(told);
        let saved = save_from(&model, self.path, &keys, self.about, read, complete);
        // What the file cannot be written for then.
        misfit.take().map_or(Ok(()), Err)?;
        Ok(saved?)
    }
}
