//! Writes a trained model into one file.

use std::collections::HashMap;
use std::path::Path;

use clap::ValueEnum;
use datasets::Dataset;
use models::ImageClassifier;
use models::weights::{KeyMap, PyTorchKeys, WeightsError, save_with};

use super::{Trained, WithTrained};
use crate::error::TrainError;

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
        let subject = self.subject()?;
        let json = |value: serde_json::Result<String>| value.unwrap_or_default();
        let (shape, normalization) = (subject.shape(), subject.normalization());
        let about = HashMap::from([
            (
                "model".to_owned(),
                json(serde_json::to_string(&self.config.model)),
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
        let device = burn::tensor::Device::flex();
        let export = Export {
            path,
            format,
            about,
        };
        Ok(self.with_model(&subject, &device, export)??)
    }
}

struct Export<'a> {
    path: &'a Path,
    format: Format,
    about: HashMap<String, String>,
}

impl WithTrained for Export<'_> {
    type Output = Result<(), WeightsError>;

    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Result<Self::Output, TrainError> {
        let keys = match self.format {
            Format::Torch => model.key_map(),
            Format::Burn => KeyMap::native(),
        };
        Ok(save_with(&model, self.path, &keys, self.about))
    }
}
