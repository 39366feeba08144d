//! `[model]`: the models.
//!
//! Each model is one file (keys, defaults, checks, and how to build it for the data) and one line
//! in the list below. The crate `models` has its layers. A preset fills in missing keys, so that
//! the resolved configuration states every size.

mod cnn;
mod convnext;
mod csc_cnn;
mod resnet;
mod transformer;
mod unet;
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
use super::task;

pub use convnext::ConvNextPreset;
pub use resnet::StemName;
pub use vit::{PoolingName, VitPreset};
pub use wide_resnet::WidePreset;

/// Defines `[model]` and its builder from the list of models.
macro_rules! models {
    ($($name:literal $variant:ident($file:ident::$own:ident),)*) => {
        named_section! {
            /// `[model]`: the model to train. The keys depend on `name`.
            "model" ModelConfig(ModelKeys) ModelKind: AnyModel, None;
            $($name $variant($file::$own),)*
        }

        impl ModelConfig {
            /// Builds the model for the images and classes of `data`, with random parameters, and
            /// passes it to `then`.
            ///
            /// # Errors
            /// Fails if the model does not accept images of this size.
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
    "convnext" ConvNext(convnext::ConvNextConfig),
    "transformer" Transformer(transformer::TransformerConfig),
    "unet" UNet(unet::UNetConfig),
}

keys! {
    /// The keys of `[model]` that go with every `name`.
    ModelKeys {
        /// Weights file to start training from, written by `trainer export` or PyTorch
        /// (`.safetensors`, `.pt`, `.pth`). `vit` also accepts files of timm and torchvision, and
        /// resamples the position embedding of other image sizes. Default: random weights.
        weights: Option<PathBuf> = None,
        /// Whether the last layer starts from random weights instead of the file's, for training on
        /// other classes. Default false.
        new_head: bool = false,
        /// Patterns for the paths of parameters that training does not change, such as
        /// `["stem.*", "stages.*"]`; `*` matches any characters and `?` one. Each must match a
        /// parameter. Batch normalizations still follow the batches. Default none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        freeze: Vec<String> = Vec::new(),
    }
}

/// The interface of a model in `[model]`.
pub trait AnyModel {
    /// Name of the task that it is for.
    fn task(&self) -> &'static str {
        task::USUAL
    }

    /// Fills in missing keys from the preset.
    fn fill(&mut self) {}

    /// Checks the model's own keys.
    ///
    /// # Errors
    /// The first invalid key.
    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Builds the model for the images and classes of `data`, and passes it to `then`.
    ///
    /// # Errors
    /// Fails if the model does not accept images of this size, or does not classify.
    fn build<W: WithModel>(&self, _data: &dyn Dataset, _device: &Device, _then: W) -> Built<W>
    where
        Self: Sized,
    {
        Err(ModelError::OtherTask {
            of: self.task(),
            task: task::USUAL,
        })
    }
}

/// Result of using a model that may fail to build.
pub type Built<W> = Result<<W as WithModel>::Output, ModelError>;

/// A use of a model of any type.
pub trait WithModel {
    /// The result.
    type Output;

    /// Uses the model.
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
