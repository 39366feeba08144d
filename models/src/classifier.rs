//! What a training loop needs to know of a model that names the class of an image.

use burn::module::Module;
use burn::tensor::Tensor;

/// A model from images to one logit per class.
pub trait ImageClassifier: Module {
    /// Logits `[batch, classes]` of images `[batch, channels, height, width]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2>;

    /// Number of classes, the second dimension of the logits.
    fn num_classes(&self) -> usize;
}
