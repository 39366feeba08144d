//! `[model]`: each model is one file, with its keys, their defaults and checks, and how it is built
//! for the data, and one line in the list below. Its layers are in the crate `models`.
//!
//! A preset fills in the keys that are left out, so that the resolved configuration says every
//! size by itself.

mod cnn;
mod csc_cnn;
mod resnet;
mod vit;
mod wide_resnet;

use std::path::PathBuf;

use burn::tensor::Device;
use datasets::Dataset;
use models::weights::PyTorchKeys;
use models::{ImageClassifier, ModelError};

use super::error::Fault;
use super::named::named_section;
use super::section::keys;

pub use resnet::StemName;
pub use vit::{PoolingName, VitPreset};
pub use wide_resnet::WidePreset;

/// Makes `[model]` and what builds it of the list of models.
macro_rules! models {
    ($($name:literal $variant:ident($file:ident::$own:ident),)*) => {
        named_section! {
            /// `[model]`: the model to train. The keys depend on `name`.
            "model" ModelConfig(ModelKeys) ModelKind: AnyModel, None;
            $($name $variant($file::$own),)*
        }

        impl ModelConfig {
            /// Builds the model for the images and classes of `data`, with random parameters, and
            /// hands it to `then`.
            ///
            /// # Errors
            /// If it cannot take such images.
            pub fn build<W: WithModel>(&self, data: &dyn Dataset, device: &Device, then: W) -> Built<W> {
                match &self.kind { $(ModelKind::$variant(own) => own.build(data, device, then)),* }
            }
        }
    };
}

models! {
    "cnn" Cnn(cnn::CnnConfig),
    "csc-cnn" CscCnn(csc_cnn::CscCnnConfig),
    "wide-resnet" WideResNet(wide_resnet::WideResNetConfig),
    "resnet" ResNet(resnet::ResNetConfig),
    "vit" Vit(vit::VitConfig),
}

keys! {
    /// The keys of `[model]` that go with every `name`.
    ModelKeys {
        /// Weights file to start training from, written by `trainer export` or PyTorch
        /// (`.safetensors`, `.pt`, `.pth`). `vit` also accepts files of timm and torchvision, and
        /// resamples the position embedding of other image sizes. Default: random weights.
        #[serde(skip_serializing_if = "Option::is_none")]
        weights: Option<PathBuf> = None,
        /// Whether the last layer starts from random weights instead of the file's, for training on
        /// other classes. Default false.
        new_head: bool = false,
    }
}

/// What every model says of itself.
pub trait AnyModel {
    /// Fills in what the preset says and the configuration leaves out.
    fn fill(&mut self) {}

    /// Whether its own keys make sense.
    ///
    /// # Errors
    /// The first that does not.
    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Builds it for the images and classes of `data` and hands it to `then`.
    ///
    /// # Errors
    /// If it cannot take such images.
    fn build<W: WithModel>(&self, data: &dyn Dataset, device: &Device, then: W) -> Built<W>
    where
        Self: Sized;
}

/// What comes of a model, if it can be built.
pub type Built<W> = Result<<W as WithModel>::Output, ModelError>;

/// What is done with a model once it is known which type it has.
pub trait WithModel {
    /// What comes of it.
    type Output;

    /// Does it.
    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Self::Output;
}

impl ModelConfig {
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.weights.is_none() && self.new_head {
            let text = "`model.new_head` has no effect without `model.weights`";
            return Err(Fault::in_key("model.new_head", text));
        }
        self.kind.check()
    }
}

fn classes(data: &dyn Dataset) -> usize {
    data.class_names().len()
}
