//! Burn's own layers, computed by this workspace's kernels or in f32.
//!
//! A model of Burn's layers calls `layer.compute(x)` in place of `layer.forward(x)`.

use burn::nn::conv::Conv2d;
use burn::nn::gru::Gru;
use burn::nn::pool::MaxPool2d;
use burn::nn::{BatchNorm, Gelu, GroupNorm, LayerNorm, Linear, Lstm, LstmState, Relu, RmsNorm};
use burn::tensor::{DType, FloatDType, Tensor};
use burn_dist::autograd::full_precision;
use kernels::ops::{self, ConvOptions, Layout, LinearOptions, PoolOptions};

use crate::layers::read;

/// Computes a layer of Burn's. The result has the type of the input, also in mixed precision.
///
/// | layer | computed by |
/// |---|---|
/// | `Linear`, `Conv2d`, `MaxPool2d`, `Gelu`, `Relu` | `kernels::ops`, on CPUs and GPUs |
/// | `LayerNorm`, `GroupNorm`, `RmsNorm` | Burn, in f32 |
/// | `BatchNorm` | Burn, in the type of the input, which its running statistics have |
/// | `Lstm`, `Gru` | Burn, in f32: in a lower precision they mix types and panic |
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
/// use models::Compute;
///
/// let device = Device::flex();
/// let linear = LinearConfig::new(8, 4).init(&device);
/// let y = linear.compute(Tensor::<3>::ones([2, 5, 8], &device));
/// assert_eq!(y.dims(), [2, 5, 4]);
/// ```
pub trait Compute<X> {
    /// The result.
    type Output;

    /// Computes the layer.
    fn compute(&self, x: X) -> Self::Output;
}

/// Applies `work` to `x` in f32, and casts the result to the type of `x`. Parameters are read in
/// f32.
fn in_f32<const D: usize>(x: Tensor<D>, work: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    let dtype: FloatDType = x.dtype().into();
    full_precision(|| work(x.cast(FloatDType::F32))).cast(dtype)
}

impl<const D: usize> Compute<Tensor<D>> for Linear {
    type Output = Tensor<D>;

    fn compute(&self, x: Tensor<D>) -> Tensor<D> {
        let dtype: FloatDType = x.dtype().into();
        // The CPU rounds factors to bf16 and keeps activations in f32.
        let bf16 =
            x.dtype() == DType::BF16 && ops::layout(&x.device(), x.dtype()) == Layout::ChannelsLast;
        let x = match bf16 {
            true => x.cast(FloatDType::F32),
            false => x,
        };
        let options = LinearOptions {
            bf16,
            ..LinearOptions::default()
        };
        let weight = read(&self.weight);
        let bias = self.bias.as_ref().map(read);
        ops::linear(x, weight, bias, None, options).cast(dtype)
    }
}

/// Images in the layout of the kernels, and in f32 where those of the CPU compute.
fn laid_out(x: Tensor<4>, layout: Layout) -> Tensor<4> {
    layout.of_channels_first(match layout {
        Layout::ChannelsLast => x.cast(FloatDType::F32),
        Layout::ChannelsFirst => x,
    })
}

impl Compute<Tensor<4>> for Conv2d {
    type Output = Tensor<4>;

    fn compute(&self, x: Tensor<4>) -> Tensor<4> {
        let dtype: FloatDType = x.dtype().into();
        let layout = ops::layout(&x.device(), x.dtype());
        let Some(options) = ConvOptions::of(self, layout) else {
            return self.forward(x);
        };
        let weight = read(&self.weight);
        let bias = self.bias.as_ref().map(read);
        let y = ops::conv2d(laid_out(x, layout), weight, bias, None, options);
        layout.to_channels_first(y).cast(dtype)
    }
}

impl Compute<Tensor<4>> for MaxPool2d {
    type Output = Tensor<4>;

    fn compute(&self, x: Tensor<4>) -> Tensor<4> {
        let dtype: FloatDType = x.dtype().into();
        let layout = ops::layout(&x.device(), x.dtype());
        let Some(options) = PoolOptions::of(self, layout) else {
            return self.forward(x);
        };
        let y = ops::max_pool2d(laid_out(x, layout), options);
        layout.to_channels_first(y).cast(dtype)
    }
}

impl<const D: usize> Compute<Tensor<D>> for Gelu {
    type Output = Tensor<D>;

    fn compute(&self, x: Tensor<D>) -> Tensor<D> {
        ops::gelu(x)
    }
}

impl<const D: usize> Compute<Tensor<D>> for Relu {
    type Output = Tensor<D>;

    fn compute(&self, x: Tensor<D>) -> Tensor<D> {
        ops::relu(x)
    }
}

/// Implements [`Compute`] for normalizations, in f32.
macro_rules! normalizes {
    ($($layer:ty),+) => {$(
        impl<const D: usize> Compute<Tensor<D>> for $layer {
            type Output = Tensor<D>;

            fn compute(&self, x: Tensor<D>) -> Tensor<D> {
                in_f32(x, |x| self.forward(x))
            }
        }
    )+};
}

normalizes!(LayerNorm, GroupNorm, RmsNorm);

impl<const D: usize> Compute<Tensor<D>> for BatchNorm {
    type Output = Tensor<D>;

    fn compute(&self, x: Tensor<D>) -> Tensor<D> {
        self.forward(x)
    }
}

impl Compute<(Tensor<3>, Option<LstmState<2>>)> for Lstm {
    type Output = (Tensor<3>, LstmState<2>);

    /// Computes in f32; the state is in f32.
    fn compute(&self, (x, state): (Tensor<3>, Option<LstmState<2>>)) -> Self::Output {
        let dtype: FloatDType = x.dtype().into();
        let (y, state) = full_precision(|| self.forward(x.cast(FloatDType::F32), state));
        (y.cast(dtype), state)
    }
}

impl Compute<(Tensor<3>, Option<Tensor<2>>)> for Gru {
    type Output = Tensor<3>;

    /// Computes in f32; the state is in f32.
    fn compute(&self, (x, state): (Tensor<3>, Option<Tensor<2>>)) -> Tensor<3> {
        in_f32(x, |x| self.forward(x, state))
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn::conv::Conv2dConfig;
    use burn::nn::gru::GruConfig;
    use burn::nn::pool::MaxPool2dConfig;
    use burn::nn::{
        BatchNormConfig, GroupNormConfig, LayerNormConfig, LinearConfig, LstmConfig,
        PaddingConfig2d, RmsNormConfig,
    };
    use burn::tensor::{Device, Distribution};
    use burn_dist::parallel::{Precision, autocast};

    use super::*;

    fn noise<const D: usize>(dims: [usize; D]) -> Tensor<D> {
        Tensor::random(dims, Distribution::Normal(0.0, 1.0), &Device::flex())
    }

    #[track_caller]
    fn assert_close<const D: usize>(found: Tensor<D>, expected: Tensor<D>, tolerance: f32) {
        assert_eq!(found.dims(), expected.dims());
        let far = (found.cast(FloatDType::F32) - expected).abs().max();
        let far = far.into_scalar::<f32>();
        assert!(far <= tolerance, "{far}");
    }

    /// The values in f32, and in the types below with autocast parameters.
    fn check<M, const D: usize>(
        layer: M,
        x: Tensor<D>,
        forward: impl Fn(&M, Tensor<D>) -> Tensor<D>,
        compute: impl Fn(&M, Tensor<D>) -> Tensor<D>,
    ) where
        M: Module,
    {
        let expected = forward(&layer, x.clone());
        assert_close(compute(&layer, x.clone()), expected.clone(), 1e-4);
        for precision in [Precision::Bf16, Precision::F16] {
            let cast = autocast(layer.clone(), precision).unwrap();
            let found = compute(&cast, x.clone().cast(precision.compute_dtype()));
            assert_eq!(found.dtype(), DType::from(precision.compute_dtype()));
            assert_close(found, expected.clone(), 0.1);
        }
    }

    #[test]
    fn layers_compute_what_burn_computes_in_every_precision() {
        let device = Device::flex();
        let images = || noise([2, 8, 6, 6]);
        let linear = LinearConfig::new(8, 4).init(&device);
        check(
            linear,
            noise([2, 5, 8]),
            |l, x| l.forward(x),
            |l, x| l.compute(x),
        );
        let conv = Conv2dConfig::new([8, 4], [3, 3]).with_padding(PaddingConfig2d::Same);
        check(
            conv.init(&device),
            images(),
            |l, x| l.forward(x),
            |l, x| l.compute(x),
        );
        let pool = MaxPool2dConfig::new([2, 2]).init();
        check(pool, images(), |l, x| l.forward(x), |l, x| l.compute(x));
        check(
            Gelu::new(),
            images(),
            |l, x| l.forward(x),
            |l, x| l.compute(x),
        );
        check(
            Relu::new(),
            images(),
            |l, x| l.forward(x),
            |l, x| l.compute(x),
        );
    }

    #[test]
    fn normalizations_and_recurrent_layers_compute_in_f32() {
        let device = Device::flex();
        let images = || noise([2, 8, 6, 6]);
        let tokens = || noise([2, 5, 8]);
        let layer = LayerNormConfig::new(8).init(&device);
        check(layer, tokens(), |l, x| l.forward(x), |l, x| l.compute(x));
        let rms = RmsNormConfig::new(8).init(&device);
        check(rms, tokens(), |l, x| l.forward(x), |l, x| l.compute(x));
        let group = GroupNormConfig::new(2, 8).init(&device);
        check(group, images(), |l, x| l.forward(x), |l, x| l.compute(x));
        let batch = BatchNormConfig::new(8).init(&device);
        check(batch, images(), |l, x| l.forward(x), |l, x| l.compute(x));
        let lstm = LstmConfig::new(8, 4, true).init(&device);
        let (forward, compute) = (
            |l: &Lstm, x| l.forward(x, None).0,
            |l: &Lstm, x| l.compute((x, None)).0,
        );
        check(lstm, tokens(), forward, compute);
        let gru = GruConfig::new(8, 4, true).init(&device);
        let (forward, compute) = (
            |l: &Gru, x| l.forward(x, None),
            |l: &Gru, x| l.compute((x, None)),
        );
        check(gru, tokens(), forward, compute);
    }
}
