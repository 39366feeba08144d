//! The two ways through a model: Burn's own operations on \[batch, channels, height, width\], on any
//! device and in any float type, or those of the crate `kernels` on \[batch, height, width,
//! channels\], on the CPU.
//!
//! A model asks [`Path::enter`] once and computes each layer through the path it was given, so that
//! it is written once. The layers are the same modules on both, with the same parameters.
//!
//! On the way of `kernels` activations are `f32` whatever the precision: in `bf16` the factors of
//! the products in linear layers and attention are rounded to it (a processor with dot products of
//! `bf16` doubles their speed), their sums and everything else are in `f32`. `f16` takes Burn's operations.

use burn::module::Param;
use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::nn::{Dropout, Linear};
use burn::tensor::{FloatDType, Tensor};
use burn_dist::autograd::full_precision;
use kernels::cpu::ConvMethod;
use kernels::cpu::flex as own;
use kernels::policy;

#[cfg(own_gpu)]
use crate::gpu;
use crate::layers::{self, added, drops, in_f32, linear_forward};
use crate::norm::{BatchNorm2d, LayerNorm, ThenNorm};

/// What the layers of a model compute with in one forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Burn's own operations.
    Burn,
    /// Those of `kernels`.
    Own {
        method: ConvMethod,
        /// Whether the products of linear layers are in `bf16`.
        bf16: bool,
    },
}

/// What follows a convolution or a linear layer.
pub(crate) struct Then<const D: usize> {
    relu: bool,
    plus: Option<Tensor<D>>,
}

/// Nothing.
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
    fn apply(self, x: Tensor<D>) -> Tensor<D> {
        self.apply_to(|plus| added(x, plus))
    }

    /// The same for a layer that adds.
    fn apply_to(self, layer: impl FnOnce(Option<Tensor<D>>) -> Tensor<D>) -> Tensor<D> {
        let x = layer(self.plus);
        if self.relu { layers::relu(x) } else { x }
    }
}

/// A parameter in `f32`, also where the model trains in a low precision.
fn read<const D: usize>(parameter: &Param<Tensor<D>>) -> Tensor<D> {
    full_precision(|| parameter.val()).cast(FloatDType::F32)
}

impl Path {
    /// The path for `images`, \[batch, channels, height, width\], and the images as its layers want
    /// them.
    pub fn enter(images: Tensor<4>) -> (Self, Tensor<4>) {
        let dtype = FloatDType::from(images.dtype());
        let bf16 = dtype == FloatDType::BF16;
        let Some(choice) =
            policy::chosen_for(&images.device()).filter(|_| bf16 || dtype == FloatDType::F32)
        else {
            return (Self::Burn, images);
        };
        let path = Self::Own {
            method: choice.method(),
            bf16,
        };
        (path, own::channels_last(images.cast(FloatDType::F32)))
    }

    /// The logits in the type that the images had.
    pub fn leave(self, logits: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Own { bf16: true, .. } => logits.cast(FloatDType::BF16),
            _ => logits,
        }
    }

    /// A convolution and what follows it.
    pub fn conv(self, conv: &Conv2d, x: Tensor<4>, then: Then<4>) -> Tensor<4> {
        let Self::Own { method, .. } = self else {
            return then.apply_to(|plus| layers::conv2d(conv, x, plus));
        };
        let Some(padding) = layers::padding(&conv.padding).filter(|_| layers::is_plain(conv))
        else {
            return then.apply(channels_first(x, |x| conv.forward(x)));
        };
        let options = own::ConvOptions {
            stride: conv.stride,
            padding,
            method,
            relu: then.relu,
        };
        // In the order in which Burn's layer reads them: reading draws them, the first time.
        let weight = read(&conv.weight);
        let bias = conv.bias.as_ref().map(read);
        own::conv2d(x, weight, bias, then.plus, options)
    }

    /// A linear layer on the last dimension, and what follows it.
    pub fn linear<const D: usize>(self, linear: &Linear, x: Tensor<D>, then: Then<D>) -> Tensor<D> {
        self.linear_after(false, linear, x, then)
    }

    /// A linear layer, with GELU before it if there is to be, and what follows it.
    fn linear_after<const D: usize>(
        self,
        gelu: bool,
        linear: &Linear,
        x: Tensor<D>,
        then: Then<D>,
    ) -> Tensor<D> {
        let Self::Own { bf16, .. } = self else {
            let x = if gelu { self.gelu(x) } else { x };
            return then.apply_to(|plus| linear_forward(linear, x, plus));
        };
        let options = own::LinearOptions {
            gelu,
            relu: then.relu,
            bf16,
        };
        let weight = read(&linear.weight);
        let bias = linear.bias.as_ref().map(read);
        own::linear(x, weight, bias, then.plus, options)
    }

    /// GELU, a linear layer, and what follows them.
    pub fn gelu_linear<const D: usize>(
        self,
        linear: &Linear,
        x: Tensor<D>,
        then: Then<D>,
    ) -> Tensor<D> {
        match self {
            Self::Own { bf16: true, .. } => self.linear_after(true, linear, x, then),
            _ => self.linear(linear, self.gelu(x), then),
        }
    }

    /// A linear layer, dropout, and what follows them.
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
        then.apply(self.dropout(dropout, self.linear(linear, x, then_nothing())))
    }

    /// A parameter in the type of the activations.
    pub fn read<const D: usize>(self, parameter: &Param<Tensor<D>>) -> Tensor<D> {
        match self {
            Self::Own { .. } => read(parameter),
            Self::Burn => parameter.val(),
        }
    }

    /// Batch normalization, with ReLU if asked for.
    pub fn batch_norm(self, norm: &BatchNorm2d, x: Tensor<4>, with_relu: bool) -> Tensor<4> {
        match self {
            Self::Own { .. } => norm.forward_channels_last(x, with_relu),
            Self::Burn => {
                let then = ThenNorm {
                    relu: with_relu,
                    ..ThenNorm::default()
                };
                norm.forward_then(x, then)
            }
        }
    }

    /// Batch normalization, ReLU, and a sum with `plus`.
    pub fn batch_norm_relu_plus(
        self,
        norm: &BatchNorm2d,
        x: Tensor<4>,
        plus: Tensor<4>,
    ) -> Tensor<4> {
        match self {
            Self::Own { .. } => self.add(norm.forward_channels_last(x, true), plus),
            Self::Burn => {
                let then = ThenNorm {
                    relu: true,
                    plus: Some(plus),
                    ..ThenNorm::default()
                };
                norm.forward_then(x, then)
            }
        }
    }

    /// Batch normalization, ReLU, and dropout on an autodiff device.
    pub fn batch_norm_relu_dropout(
        self,
        norm: &BatchNorm2d,
        dropout: &Dropout,
        x: Tensor<4>,
    ) -> Tensor<4> {
        match self {
            Self::Own { .. } => self.dropout(dropout, norm.forward_channels_last(x, true)),
            Self::Burn => {
                let then = ThenNorm {
                    relu: true,
                    dropout: Some(dropout),
                    plus: None,
                };
                norm.forward_then(x, then)
            }
        }
    }

    /// Layer normalization over the last dimension.
    pub fn layer_norm<const D: usize>(self, norm: &LayerNorm, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Own { .. } => norm.forward_own(x),
            Self::Burn => norm.forward(x),
        }
    }

    /// GELU with the exact normal distribution.
    pub fn gelu<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Own { .. } => own::gelu(x),
            Self::Burn => layers::gelu(x),
        }
    }

    /// `a + b`.
    pub fn add<const D: usize>(self, a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Own { .. } => own::add(a, b, false),
            Self::Burn => a + b,
        }
    }

    /// `relu(a + b)`.
    pub fn add_relu<const D: usize>(self, a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Own { .. } => own::add(a, b, true),
            Self::Burn => layers::add_relu(a, b),
        }
    }

    /// Dropout, on an autodiff device alone.
    pub fn dropout<const D: usize>(self, dropout: &Dropout, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Own { .. } if drops(dropout, &x) => own::dropout(x, dropout.prob),
            Self::Own { .. } => x,
            Self::Burn => layers::dropout(dropout, x),
        }
    }

    /// Max-pooling.
    pub fn max_pool(self, pool: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
        if self == Self::Burn {
            return layers::max_pool2d(pool, x);
        }
        let plain = pool.dilation == [1, 1] && !pool.ceil_mode;
        match layers::padding(&pool.padding).filter(|_| plain) {
            Some(padding) => {
                let options = own::PoolOptions {
                    kernel: pool.kernel_size,
                    stride: pool.stride,
                    padding,
                };
                own::max_pool2d(x, options)
            }
            None => channels_first(x, |x| pool.forward(x)),
        }
    }

    /// The mean over the first `height` rows and `width` columns: \[batch, channels\].
    pub fn mean_of(self, x: Tensor<4>, [height, width]: [usize; 2]) -> Tensor<2> {
        let [batch, _, _, channels] = x.dims();
        let whole = self.size(&x) == [height, width];
        match self {
            Self::Own { .. } if whole => own::mean_of_pixels(x),
            Self::Own { .. } => {
                own::mean_of_pixels(x.slice([0..batch, 0..height, 0..width, 0..channels]))
            }
            Self::Burn => layers::mean_of(x, [height, width]),
        }
    }

    /// The mean over all positions: \[batch, channels\].
    pub fn mean(self, x: Tensor<4>) -> Tensor<2> {
        let size = self.size(&x);
        self.mean_of(x, size)
    }

    /// Height and width of an activation.
    pub fn size(self, x: &Tensor<4>) -> [usize; 2] {
        let [_, a, b, c] = x.dims();
        match self {
            Self::Own { .. } => [a, b],
            Self::Burn => [b, c],
        }
    }

    /// An activation as one vector per image, channel by channel: \[batch, features\].
    pub fn flatten(self, x: Tensor<4>) -> Tensor<2> {
        match self {
            Self::Own { .. } => own::channels_first(x).flatten(1, 3),
            Self::Burn => x.flatten(1, 3),
        }
    }

    /// An activation as one vector per pixel: \[batch, pixels, channels\].
    pub fn tokens(self, x: Tensor<4>) -> Tensor<3> {
        match self {
            Self::Own { .. } => x.flatten(1, 2),
            // On a GPU a convolution leaves them in this order.
            Self::Burn => x.permute([0, 2, 3, 1]).flatten(1, 2),
        }
    }

    /// Patches, \[batch, patches, features\], behind a class token if there is one, with a position added to each.
    pub fn embed(
        self,
        patches: Tensor<3>,
        token: Option<&Param<Tensor<3>>>,
        positions: &Param<Tensor<3>>,
    ) -> Tensor<3> {
        let Some(token) = token else {
            return patches + self.read(positions);
        };
        #[cfg(own_gpu)]
        if self == Self::Burn
            && let Some(out) = gpu::embed(&patches, token, positions)
        {
            return out;
        }
        let token = self.read(token).repeat_dim(0, patches.dims()[0]);
        Tensor::cat(vec![token, patches], 1) + self.read(positions)
    }

    /// The mean over all tokens: \[batch, features\].
    pub fn mean_of_tokens(self, x: Tensor<3>) -> Tensor<2> {
        match self {
            Self::Own { .. } => own::mean_of_pixels(x.unsqueeze_dim(1)),
            Self::Burn => in_f32(x, |x| x.mean_dim(1)).squeeze_dim(1),
        }
    }
}

/// Applies Burn's `operation` to an activation whose channels come last.
fn channels_first(x: Tensor<4>, operation: impl FnOnce(Tensor<4>) -> Tensor<4>) -> Tensor<4> {
    own::channels_last(operation(own::channels_first(x)))
}
