//! Layout of images on their way through a model, and the calls of its layers.
//!
//! A model calls [`Path::enter`] once and computes each layer through the path, so it is written
//! once for all layouts. `kernels::ops` chooses the implementation of each layer.
//!
//! In `bf16` the CPU path keeps activations in `f32` and rounds the factors of the products in
//! linear layers and attention. A CPU with `bf16` dot products doubles their speed.

use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::nn::{Dropout, Linear};
use burn::tensor::{DType, FloatDType, Tensor};
use burn_dist::autograd::full_precision;
use kernels::ops::{self, ConvOptions, Layout, LinearOptions, PoolOptions, ThenNorm};

use crate::layers::{self, drops, read};
use crate::norm::{BatchNorm2d, LayerNorm};

/// How one forward pass computes its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    layout: Layout,
    /// Whether the factors of products are in `bf16`, and everything else in `f32`.
    bf16: bool,
}

/// The operations after a convolution or a linear layer.
pub(crate) struct Then<const D: usize> {
    relu: bool,
    plus: Option<Tensor<D>>,
}

/// No operation.
pub(crate) fn then_nothing<const D: usize>() -> Then<D> {
    Then {
        relu: false,
        plus: None,
    }
}

/// ReLU.
pub(crate) fn then_relu<const D: usize>() -> Then<D> {
    Then {
        relu: true,
        plus: None,
    }
}

/// A sum with `other`.
pub(crate) fn then_plus<const D: usize>(other: Tensor<D>) -> Then<D> {
    Then {
        relu: false,
        plus: Some(other),
    }
}

impl<const D: usize> Then<D> {
    fn after(self, x: Tensor<D>) -> Tensor<D> {
        let x = match self.plus {
            Some(plus) => x + plus,
            None => x,
        };
        if self.relu { ops::relu(x) } else { x }
    }
}

impl Path {
    /// The path for `images`, \[batch, channels, height, width\], and the images in its layout.
    pub fn enter(images: Tensor<4>) -> (Self, Tensor<4>) {
        let (layout, dtype) = (
            ops::layout(&images.device(), images.dtype()),
            images.dtype(),
        );
        let bf16 = layout == Layout::ChannelsLast && dtype == DType::BF16;
        let images = match bf16 {
            true => images.cast(FloatDType::F32),
            false => images,
        };
        (Self { layout, bf16 }, layout.of_channels_first(images))
    }

    /// The path for `tokens`, \[batch, tokens, features\], and the tokens in its type.
    pub fn enter_tokens(tokens: Tensor<3>) -> (Self, Tensor<3>) {
        let dtype = tokens.dtype();
        let layout = ops::layout(&tokens.device(), dtype);
        let bf16 = layout == Layout::ChannelsLast && dtype == DType::BF16;
        let tokens = match bf16 {
            true => tokens.cast(FloatDType::F32),
            false => tokens,
        };
        (Self { layout, bf16 }, tokens)
    }

    /// Casts the logits to the type of the images.
    pub fn leave<const D: usize>(self, logits: Tensor<D>) -> Tensor<D> {
        match self.bf16 {
            true => logits.cast(FloatDType::BF16),
            false => logits,
        }
    }

    /// A convolution and the operations after it.
    pub fn conv(self, conv: &Conv2d, x: Tensor<4>, then: Then<4>) -> Tensor<4> {
        let Some(options) = ConvOptions::of(conv, self.layout) else {
            return then.after(self.by_burn(x, |x| match x.dtype() {
                // In bf16 on a CPU the activations are in f32, so the parameters must be, too.
                DType::F32 => full_precision(|| conv.forward(x)),
                _ => conv.forward(x),
            }));
        };
        let options = ConvOptions {
            relu: then.relu,
            ..options
        };
        // In the order in which Burn's layer reads them.
        let weight = read(&conv.weight);
        let bias = conv.bias.as_ref().map(read);
        ops::conv2d(x, weight, bias, then.plus, options)
    }

    /// A linear layer on the last dimension, and the operations after it.
    pub fn linear<const D: usize>(self, linear: &Linear, x: Tensor<D>, then: Then<D>) -> Tensor<D> {
        self.linear_after(false, linear, x, then)
    }

    /// GELU, a linear layer, and the operations after them.
    pub fn gelu_linear<const D: usize>(
        self,
        linear: &Linear,
        x: Tensor<D>,
        then: Then<D>,
    ) -> Tensor<D> {
        self.linear_after(true, linear, x, then)
    }

    fn linear_after<const D: usize>(
        self,
        gelu: bool,
        linear: &Linear,
        x: Tensor<D>,
        then: Then<D>,
    ) -> Tensor<D> {
        let options = LinearOptions {
            gelu,
            relu: then.relu,
            bf16: self.bf16,
        };
        let weight = read(&linear.weight);
        let bias = linear.bias.as_ref().map(read);
        ops::linear(x, weight, bias, then.plus, options)
    }

    /// A linear layer, dropout, and the operations after them.
    pub fn linear_dropout<const D: usize>(
        self,
        linear: &Linear,
        dropout: &Dropout,
        x: Tensor<D>,
        then: Then<D>,
    ) -> Tensor<D> {
        if !drops(dropout, &x) {
            return self.linear(linear, x, then);
        }
        then.after(layers::dropout(
            dropout,
            self.linear(linear, x, then_nothing()),
        ))
    }

    /// Multi-head attention on the queries, keys and values in `qkv`.
    ///
    /// `qkv` is \[batch, tokens, 3 · features\].
    pub fn attention(self, qkv: Tensor<3>, heads: usize) -> Tensor<3> {
        ops::attention(qkv, heads, self.bf16)
    }

    /// Batch normalization, with ReLU if requested.
    pub fn batch_norm(self, norm: &BatchNorm2d, x: Tensor<4>, relu: bool) -> Tensor<4> {
        let then = ThenNorm {
            relu,
            ..ThenNorm::default()
        };
        norm.forward_then(x, self.layout, then)
    }

    /// Batch normalization, ReLU, and a sum with `plus`.
    pub fn batch_norm_relu_plus(
        self,
        norm: &BatchNorm2d,
        x: Tensor<4>,
        plus: Tensor<4>,
    ) -> Tensor<4> {
        let then = ThenNorm {
            relu: true,
            drop: 0.0,
            plus: Some(plus),
        };
        norm.forward_then(x, self.layout, then)
    }

    /// Batch normalization, ReLU, and dropout on an autodiff device.
    pub fn batch_norm_relu_dropout(
        self,
        norm: &BatchNorm2d,
        dropout: &Dropout,
        x: Tensor<4>,
    ) -> Tensor<4> {
        let then = ThenNorm {
            relu: true,
            drop: if drops(dropout, &x) {
                dropout.prob
            } else {
                0.0
            },
            plus: None,
        };
        norm.forward_then(x, self.layout, then)
    }

    /// Max-pooling.
    pub fn max_pool(self, pool: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
        match PoolOptions::of(pool, self.layout) {
            Some(options) => ops::max_pool2d(x, options),
            None => self.by_burn(x, |x| pool.forward(x)),
        }
    }

    /// The mean over the first `height` rows and `width` columns: \[batch, channels\].
    pub fn mean_of(self, x: Tensor<4>, part: [usize; 2]) -> Tensor<2> {
        ops::mean_of_pixels(x, part, self.layout)
    }

    /// The mean over all positions: \[batch, channels\].
    pub fn mean(self, x: Tensor<4>) -> Tensor<2> {
        let size = self.size(&x);
        self.mean_of(x, size)
    }

    /// Height and width of an activation.
    pub fn size(self, x: &Tensor<4>) -> [usize; 2] {
        self.layout.size(x)
    }

    /// Flattens an activation to one vector per image, channel by channel: \[batch, features\].
    pub fn flatten(self, x: Tensor<4>) -> Tensor<2> {
        self.layout.to_channels_first(x).flatten(1, 3)
    }

    /// Flattens an activation to one vector per pixel: \[batch, pixels, channels\].
    pub fn tokens(self, x: Tensor<4>) -> Tensor<3> {
        match self.layout {
            Layout::ChannelsLast => x.flatten(1, 2),
            // On a GPU a convolution leaves them in this order.
            Layout::ChannelsFirst => x.permute([0, 2, 3, 1]).flatten(1, 2),
        }
    }

    /// The dimension of the channels.
    pub fn channels(self) -> usize {
        match self.layout {
            Layout::ChannelsFirst => 1,
            Layout::ChannelsLast => 3,
        }
    }

    /// Layer normalization over the channels of each pixel.
    pub fn channel_norm(self, norm: &LayerNorm, x: Tensor<4>) -> Tensor<4> {
        self.of_channels_last(norm.forward(self.to_channels_last(x)))
    }

    /// Layer normalization over the channels of each pixel, and ReLU.
    pub fn channel_norm_relu(self, norm: &LayerNorm, x: Tensor<4>) -> Tensor<4> {
        ops::relu(self.channel_norm(norm, x))
    }

    /// An activation as \[batch, height, width, channels\].
    pub fn to_channels_last(self, x: Tensor<4>) -> Tensor<4> {
        self.layout.to_channels_last(x)
    }

    /// An activation from \[batch, height, width, channels\].
    pub fn of_channels_last(self, x: Tensor<4>) -> Tensor<4> {
        self.layout.of_channels_last(x)
    }

    /// Doubles height and width: every pixel becomes four.
    pub fn double(self, x: Tensor<4>) -> Tensor<4> {
        let [a, b] = match self.layout {
            Layout::ChannelsFirst => [2, 3],
            Layout::ChannelsLast => [1, 2],
        };
        twice(twice(x, a), b)
    }

    /// Joins the channels of two activations.
    pub fn join(self, x: Tensor<4>, other: Tensor<4>) -> Tensor<4> {
        Tensor::cat(vec![x, other], self.channels())
    }

    /// Applies Burn's `layer` to an activation.
    fn by_burn(self, x: Tensor<4>, layer: impl FnOnce(Tensor<4>) -> Tensor<4>) -> Tensor<4> {
        let x = self.layout.to_channels_first(x);
        self.layout.of_channels_first(layer(x))
    }
}

/// Repeats every slice of a dimension once, next to it.
fn twice(x: Tensor<4>, dim: usize) -> Tensor<4> {
    let mut dims = x.dims();
    dims[dim] *= 2;
    let x: Tensor<5> = x.unsqueeze_dim(dim + 1);
    x.repeat_dim(dim + 1, 2).reshape(dims)
}
