//! Exports a trained model as one weights file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use burn_dist::checkpoint::Source;
use burn_dist::parallel::{ParallelError, TrainedValues};
use clap::ValueEnum;
use models::ImageClassifier;
use models::weights::{self, Batches, KeyMap, PyTorchKeys, save_from, save_with};

use super::weights_file::About;
use super::{Trained, WithTrained};
use crate::config::WithModel;
use crate::error::TrainError;
use crate::run::environment::Environment;
use crate::train::misfit;

/// How tensors are named and laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Like the reference model in PyTorch.
    #[default]
    Torch,
    /// Like Burn's modules.
    Burn,
}

impl Trained {
    /// Writes parameters and buffers atomically to the file `path`.
    ///
    /// The ending decides the format; see [`Container`](weights::Container).
    ///
    /// Its metadata contains the `[model]` section as JSON, class names, image size, normalization
    /// and step. [`Trained::find`] reads them, so an exported file needs no configuration.
    /// [`models::weights::load`] reads both formats.
    ///
    /// # Errors
    /// Fails if the model cannot be built or the file cannot be written.
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
            let batches = Batches {
                by_name: weights::batches(&self.path)?,
                otherwise: 0,
            };
            let save = Save {
                path,
                format,
                about,
                batches,
            };
            return self.with_model(&subject, &device, save);
        }
        let source = self.source(&subject)?;
        let export = Export {
            source: &source,
            path,
            format,
            about,
            batches: self.batches(),
        };
        config
            .build(&subject, &device, export)
            .map_err(|error| misfit::of_model(&self.loaded, &error))?
    }
}

impl Trained {
    /// Batches in the statistics of batch normalizations, as PyTorch counts them.
    ///
    /// They are those of one rank in this run, and those of the weights that it started from.
    fn batches(&self) -> Batches {
        let environment = self.run_dir.as_deref().and_then(Environment::read);
        let environment = environment.unwrap_or_default();
        let of_checkpoint = || {
            let batching = self.loaded.batching(environment.world_size.max(1));
            let of_step = batching.map_or(1, |batching| batching.accumulate);
            self.step.unwrap_or_default().saturating_mul(of_step as u64)
        };
        let own = self.batches.unwrap_or_else(of_checkpoint);
        let own = i64::try_from(own).unwrap_or(i64::MAX);
        let before = environment.weights.unwrap_or_default();
        let of_layer = |(name, count): (String, i64)| (name, count.saturating_add(own));
        Batches {
            by_name: before.fewer_batches.into_iter().map(of_layer).collect(),
            otherwise: before.batches.saturating_add(own),
        }
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
    batches: Batches,
}

impl WithTrained for Save<'_> {
    type Output = ();

    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Result<(), TrainError> {
        let keys = self.format.keys(&model);
        Ok(save_with(
            &model,
            self.path,
            &keys,
            self.about,
            &self.batches,
        )?)
    }
}

/// Copies tensor by tensor. The model only gives names and shapes: its lazy parameters are never
/// created.
struct Export<'a> {
    source: &'a Source,
    path: &'a Path,
    format: Format,
    about: HashMap<String, String>,
    batches: Batches,
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
        let saved = save_from(
            &model,
            self.path,
            &keys,
            (self.about, &self.batches),
            read,
            complete,
        );
        // The write fails for this reason.
        misfit.take().map_or(Ok(()), Err)?;
        Ok(saved?)
    }
}
