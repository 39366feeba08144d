//! Counts a model's operations from the shapes of its layers.
//!
//! It counts the products of convolutions, linear layers and attention, with two operations for
//! each multiply-add. Normalization, activations and pooling add less than a hundredth and are left
//! out, as is usual.

use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::nn::{Linear, PaddingConfig2d};

/// Operations of training an image, for each operation of its forward pass.
///
/// Backward computes the gradients of activations and of weights, at the cost of one forward pass
/// each.
pub const TRAINING: u64 = 3;

/// Follows one image through a model, with its current shape and the operations so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tracer {
    /// Channels, height, width.
    pub shape: [usize; 3],
    operations: u64,
}

impl Tracer {
    /// Starts with an image of \[channels, height, width\].
    pub fn new(shape: [usize; 3]) -> Self {
        Self {
            shape,
            operations: 0,
        }
    }

    /// Adds the operations of a matrix product: `rows` × `inner` by `inner` × `columns`.
    pub fn product(&mut self, rows: usize, inner: usize, columns: usize) {
        let sizes = [rows, inner, columns].map(|size| size as u64);
        let products = sizes.into_iter().fold(2, u64::saturating_mul);
        self.operations = self.operations.saturating_add(products);
    }

    pub fn conv(&mut self, conv: &Conv2d) {
        let [outputs, inputs, rows, columns] = conv.weight.lazy_shape().dims::<4>();
        let [_, height, width] = self.shape;
        let size = |length, axis: usize| {
            let dilated = (conv.kernel_size[axis] - 1) * conv.dilation[axis] + 1;
            slide(length, dilated, conv.stride[axis], &conv.padding, axis)
        };
        let (height, width) = (size(height, 0), size(width, 1));
        self.product(
            height.saturating_mul(width),
            inputs * rows * columns,
            outputs,
        );
        self.shape = [outputs, height, width];
    }

    /// Adds a convolution in parallel to others, whose result is added to theirs.
    pub fn side(&mut self, conv: &Conv2d) {
        let shape = self.shape;
        self.conv(conv);
        self.shape = shape;
    }

    pub fn pool(&mut self, pool: &MaxPool2d) {
        let [channels, height, width] = self.shape;
        let size = |length, axis: usize| {
            let (kernel, stride) = (pool.kernel_size[axis], pool.stride[axis]);
            slide(length, kernel, stride, &pool.padding, axis)
        };
        self.shape = [channels, size(height, 0), size(width, 1)];
    }

    /// Adds a linear layer on one vector.
    pub fn linear(&mut self, linear: &Linear) {
        self.linear_on(linear, 1);
    }

    /// Adds a linear layer on each of `tokens` vectors.
    pub fn linear_on(&mut self, linear: &Linear, tokens: usize) {
        let [inputs, outputs] = linear.weight.lazy_shape().dims::<2>();
        self.product(tokens, inputs, outputs);
    }

    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Number of positions of the image now. Layers never enlarge it, so this is the minimum so
    /// far.
    pub fn positions(&self) -> usize {
        let [_, height, width] = self.shape;
        height.saturating_mul(width)
    }
}

/// Positions of a window of `kernel` on `length` pixels.
fn slide(
    length: usize,
    kernel: usize,
    stride: usize,
    padding: &PaddingConfig2d,
    axis: usize,
) -> usize {
    let padded = match (padding, axis) {
        (PaddingConfig2d::Same, _) => return length.div_ceil(stride.max(1)),
        (PaddingConfig2d::Valid, _) => length,
        (PaddingConfig2d::Explicit(top, _, bottom, _), 0) => length + top + bottom,
        (PaddingConfig2d::Explicit(_, left, _, right), _) => length + left + right,
    };
    match padded.checked_sub(kernel) {
        Some(rest) => rest / stride.max(1) + 1,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        CnnConfig, ConvNextConfig, CscCnnConfig, ImageClassifier, PlainWideResNetConfig,
        ResNetConfig, Stem, VitConfig, WideResNetConfig,
    };
    use burn::tensor::Device;

    fn flops<M: ImageClassifier>(model: M, image: [usize; 3]) -> f64 {
        model.flops(image).unwrap() as f64
    }

    /// Checks a published number, within half of its last digit.
    #[track_caller]
    fn assert_about(found: f64, published: f64, digit: f64) {
        let difference = (found - published).abs();
        assert!(difference <= 0.5 * digit, "{found} is not {published}");
    }

    #[test]
    fn small_networks_are_as_counted_by_hand() {
        let device = Device::flex();
        let cnn = CnnConfig::new().init(&device).unwrap();
        let by_hand = 26 * 26 * 32 * 9 + 24 * 24 * 64 * 32 * 9 + 9216 * 128 + 128 * 10;
        assert_eq!(cnn.flops([1, 28, 28]), Some(2 * by_hand));
        let csc = CscCnnConfig::new().init(&device).unwrap();
        let by_hand = 28 * 28 * 16 * 25 + 14 * 14 * 32 * 16 * 25 + 1568 * 10;
        assert_eq!(csc.flops([1, 28, 28]), Some(2 * by_hand));
    }

    #[test]
    fn large_networks_are_as_published() {
        let device = Device::flex();
        let (imagenet, cifar) = ([3, 224, 224], [3, 32, 32]);
        // Multiply-adds from torchvision's tables of models.
        let resnet18 = ResNetConfig::resnet18(1000).init(&device).unwrap();
        assert_about(flops(resnet18, imagenet) / 2.0, 1.814e9, 1e6);
        let resnet50 = ResNetConfig::resnet50(1000).init(&device).unwrap();
        assert_about(flops(resnet50, imagenet) / 2.0, 4.089e9, 1e6);
        for (config, published) in [
            (ResNetConfig::resnet34(1000), 3.664e9),
            (ResNetConfig::resnet101(1000), 7.801e9),
        ] {
            let model = config.init(&device).unwrap();
            assert_about(flops(model, imagenet) / 2.0, published, 1e6);
        }
        let convnext = ConvNextConfig::tiny(1000).init(&device).unwrap();
        assert_about(flops(convnext, imagenet) / 2.0, 4.456e9, 1e6);
        let vit = VitConfig::vit_b_16(1000).init(&device).unwrap();
        // In the last block the patches have neither projection nor MLP.
        let saved = 196.0 * (768.0 * 768.0 + 2.0 * 768.0 * 3072.0);
        assert_about(flops(vit, imagenet) / 2.0 + saved, 17.564e9, 1e6);
        // The paper on wide residual networks states 5.2 billion for WRN-28-10.
        let wide = WideResNetConfig::wrn_28_10(10).init(&device).unwrap();
        assert_about(flops(wide, cifar) / 2.0, 5.2e9, 1e8);
    }

    #[test]
    fn the_plain_wide_network_is_as_counted_by_hand() {
        let model = PlainWideResNetConfig::olivia(100)
            .init(&Device::flex())
            .unwrap();
        let block = |pixels: u64, inputs: u64, outputs: u64| {
            let scale = if inputs == outputs {
                0
            } else {
                inputs * outputs
            };
            pixels * (9 * (inputs + outputs) * outputs + scale)
        };
        let by_hand = 1024 * 9 * 3 * 16
            + block(1024, 16, 160)
            + block(1024, 160, 160)
            + block(256, 160, 320)
            + block(256, 320, 320)
            + block(64, 320, 640)
            + block(64, 640, 640)
            + 640 * 100;
        assert_eq!(model.flops([3, 32, 32]), Some(2 * by_hand));
        assert_about(2.0 * by_hand as f64, 4.82e9, 1e7);
    }

    #[test]
    fn the_stem_and_the_size_of_the_image_count() {
        let device = Device::flex();
        let cifar = ResNetConfig::resnet18(100)
            .with_stem(Stem::Cifar)
            .init(&device)
            .unwrap();
        let (small, large) = (cifar.flops([3, 32, 32]), cifar.flops([3, 64, 64]));
        let classes = 2 * 512 * 100;
        let of = |flops: Option<u64>| flops.unwrap() - classes;
        assert_eq!(4 * of(small), of(large));
        assert_about(flops(cifar, [3, 32, 32]) / 2.0, 0.555e9, 1e6);
    }

    #[test]
    fn tokens_count_with_and_without_a_class_token() {
        let device = Device::flex();
        let vit = VitConfig::new(8, 2, 2, 7)
            .with_height(8)
            .with_width(12)
            .init(&device)
            .unwrap();
        let (patches, tokens, dim) = (6, 7, 8);
        let attention = tokens * 3 * dim * dim + 2 * tokens * tokens * dim;
        let network = dim * dim + 2 * dim * 32;
        // Only the class token continues after the last attention.
        let by_hand = patches * 48 * dim + 2 * attention + (tokens + 1) * network + dim * 7;
        assert_eq!(vit.flops([3, 8, 12]), Some(2 * by_hand));
    }
}
