//! Models for Burn that train with burn-dist: a configuration, `init(&device)`, `forward`.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use models::{ImageClassifier, ModelError, WideResNetConfig};
//!
//! let device = Device::flex();
//! let model = WideResNetConfig::wrn_16_4(10).init(&device)?;
//! let logits = model.forward(Tensor::zeros([2, 3, 32, 32], &device));
//! assert_eq!(logits.dims(), [2, model.num_classes()]);
//! # Ok::<(), ModelError>(())
//! ```
//!
//! Every model calls [`boundary`](burn_dist::autograd::boundary) where a block begins, so that
//! distributed training can hand over gradients block by block. Without distributed training it
//! does nothing.
//!
//! | model | reference |
//! |---|---|
//! | [`Cnn`] | PyTorch's MNIST example |
//! | [`CscCnn`] | CSC's course on deep learning |
//! | [`WideResNet`] | WRN-d-k of Zagoruyko & Komodakis |
//! | [`PlainWideResNet`] | the Olivia guide of Sigma2 |
//! | [`ResNet`] | torchvision's ResNet-18, -34, -50, -101 and -152 |
//! | [`Vit`] | timm's vision transformers |
//! | [`ConvNext`] | torchvision's and timm's ConvNeXt |
//! | [`Transformer`] | causal language model, pre-norm as GPT-2 |
//! | [`UNet`] | U-Net for semantic segmentation |
//!
//! | module | contents |
//! |---|---|
//! | [`weights`] | PyTorch and safetensors files: load, fine-tune, save |
//! | [`flops`] | operations of a model |
//!
//! [`Compute`] computes Burn's own layers by the same kernels, for models of your own.

mod check;
mod classifier;
mod cnn;
mod compute;
mod convnext;
mod csc_cnn;
mod drop_path;
mod error;
pub mod flops;
mod layers;
mod lm;
mod norm;
mod path;
mod positions;
mod resnet;
#[cfg(test)]
mod testing;
mod unet;
mod vit;
pub mod weights;
mod wide_resnet;

pub use classifier::ImageClassifier;
pub use cnn::{Cnn, CnnConfig};
pub use compute::Compute;
pub use convnext::{ConvNext, ConvNextConfig};
pub use csc_cnn::{CscCnn, CscCnnConfig};
pub use error::ModelError;
pub use lm::{LanguageModel, Transformer, TransformerConfig};
pub use norm::{BatchNorm2d, LayerNorm};
pub use resnet::{ResNet, ResNetConfig, Stem};
pub use unet::{Segmenter, UNet, UNetConfig};
pub use vit::{Pooling, Vit, VitConfig};
pub use wide_resnet::{PlainWideResNet, PlainWideResNetConfig, WideResNet, WideResNetConfig};
