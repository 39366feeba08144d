//! The trait of image classifiers, for training loops.

use burn::module::Module;
use burn::tensor::Tensor;

/// A model that maps images to one logit per class.
pub trait ImageClassifier: Module {
    /// Computes logits `[batch, classes]` of images `[batch, channels, height, width]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2>;

    /// Number of classes, the second dimension of the logits.
    fn num_classes(&self) -> usize;

    /// Floating-point operations of the forward pass for one image \[channels, height, width\].
    ///
    /// Each multiply-add of convolutions, linear layers and attention counts as two. Training an
    /// image takes [`flops::TRAINING`](crate::flops::TRAINING) times as many. `None` if the model
    /// does not know; then the utilisation of a device cannot be reported.
    fn flops(&self, _image: [usize; 3]) -> Option<u64> {
        None
    }

    /// Values per channel that one image \[channels, height, width\] gives to a batch
    /// normalization.
    ///
    /// The minimum over the model's batch normalizations. In training a batch normalization needs
    /// two or more values per channel from a whole micro-batch. `None` without batch
    /// normalizations, or if the model does not know.
    fn normalized_values(&self, _image: [usize; 3]) -> Option<usize> {
        None
    }
}

/// The functions of [`ImageClassifier`] that every model here has alike.
macro_rules! classifies {
    () => {
        fn forward(&self, images: Tensor<4>) -> Tensor<2> {
            self.forward(images)
        }

        fn num_classes(&self) -> usize {
            self.classes
        }
    };
}
pub(crate) use classifies;

/// Methods of a model that `trace` follows to its last batch normalization, before the layer `fc`.
macro_rules! is_traced {
    () => {
        fn flops(&self, image: [usize; 3]) -> Option<u64> {
            let mut tracer = self.trace(image);
            tracer.linear(&self.fc);
            Some(tracer.operations())
        }

        fn normalized_values(&self, image: [usize; 3]) -> Option<usize> {
            Some(self.trace(image).positions())
        }
    };
}
pub(crate) use is_traced;
