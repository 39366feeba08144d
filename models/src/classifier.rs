//! What a training loop needs to know of a model that names the class of an image.

use burn::module::Module;
use burn::tensor::Tensor;

/// A model from images to one logit per class.
pub trait ImageClassifier: Module {
    /// Logits `[batch, classes]` of images `[batch, channels, height, width]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2>;

    /// Number of classes, the second dimension of the logits.
    fn num_classes(&self) -> usize;

    /// Floating-point operations of the forward pass for one image \[channels, height, width\]: two
    /// for each multiply-add of convolutions, linear layers and attention. Training an image takes
    /// [`flops::TRAINING`](crate::flops::TRAINING) times as many.
    ///
    /// Nothing if the model does not know; then nobody can say what share of a device it uses.
    fn flops(&self, _image: [usize; 3]) -> Option<u64> {
        None
    }

    /// Values that one image \[channels, height, width\] gives to each channel of the batch
    /// normalization that gets the fewest. In training a batch normalization needs two or more
    /// values per channel from all images of a micro-batch together.
    ///
    /// Nothing without batch normalizations, or if the model does not know.
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

/// Those of a model that `trace` follows to its last batch normalization, before the layer `fc`.
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
