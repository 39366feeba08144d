//! Writes a trained model into one file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use burn_dist::checkpoint::Source;
use burn_dist::parallel::{ParallelError, TrainedValues};
use clap::ValueEnum;
use models::ImageClassifier;
use models::weights::{KeyMap, PyTorchKeys, save_from, save_with};

use super::weights_file::About;
use super::{Trained, WithTrained};
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
    /// of the images, their normalisation and the step, with which [`Trained::find`] finds the model again.
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
        let (config, resize) = (&self.config().model, self.resize());
        let about = About::of_export(config, subject.clone(), resize, self.step).to_metadata();
        let device = burn::tensor::Device::flex();
        if self.file.is_some() {
            let save = Save {
                path,
                format,
                about,
            };
            return self.with_model(&subject, &device, save);
        }
        let source = self.source(&subject)?;
        let export = Export {
            source: &source,
            path,
            format,
            about,
        };
        crate::model::build(config, &subject, &device, export)
            .map_err(|error| misfit::of_model(&self.loaded, &error))?
    }
}

impl Format {
    fn keys(self, model: &impl PyTorchKeys) -> KeyMap {
        match self {
            Self::Torch => model.key_map(),
            Self::Burn => KeyMap::native(),
        }
    }
}

/// Writes a model that is filled.
struct Save<'a> {
    path: &'a Path,
    format: Format,
    about: HashMap<String, String>,
}

impl WithTrained for Save<'_> {
    type Output = ();

    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Result<(), TrainError> {
        let keys = self.format.keys(&model);
        Ok(save_with(&model, self.path, &keys, self.about)?)
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
        let keys = self.format.keys(&model);
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
