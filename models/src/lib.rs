//! Image models for Burn: a configuration, `init(&device)`, `forward`.
//!
//! Every model calls [`boundary`](burn_dist::autograd::boundary) where a block begins, so that
//! distributed training can hand gradients over block by block; alone it costs nothing.

mod classifier;
mod cnn;
mod error;

pub use classifier::ImageClassifier;
pub use cnn::{Cnn, CnnConfig};
pub use error::ModelError;
