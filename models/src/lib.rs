//! Image models for Burn: a configuration, `init(&device)`, `forward`.
//!
//! Every model calls [`boundary`](burn_dist::autograd::boundary) where a block begins, so that
//! distributed training can hand gradients over block by block; alone it costs nothing.
//!
//! | model | reference |
//! |---|---|
//! | [`Cnn`] | PyTorch's MNIST example |
//! | [`CscCnn`] | CSC's course on deep learning |
//! | [`WideResNet`] | WRN-d-k of Zagoruyko & Komodakis |
//! | [`PlainWideResNet`] | the Olivia guide of Sigma2 |
//! | [`ResNet`] | torchvision's ResNet-18 and -50 |
//! | [`Vit`] | timm's vision transformers |

mod check;
mod classifier;
mod cnn;
mod csc_cnn;
mod error;
pub mod flops;
mod layers;
mod norm;
mod path;
mod positions;
mod resnet;
#[cfg(test)]
mod testing;
mod vit;
pub mod weights;
mod wide_resnet;

pub use classifier::ImageClassifier;
pub use cnn::{Cnn, CnnConfig};
pub use csc_cnn::{CscCnn, CscCnnConfig};
pub use error::ModelError;
pub use norm::{BatchNorm2d, LayerNorm};
pub use resnet::{ResNet, ResNetConfig, Stem};
pub use vit::{Pooling, Vit, VitConfig};
pub use wide_resnet::{PlainWideResNet, PlainWideResNetConfig, WideResNet, WideResNetConfig};
