//! The public operations: results and gradients are the same in all implementations and both
//! layouts.

use std::cell::RefCell;

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::MaxPool2dConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use kernels::ops::{self, ConvOptions, Layout, LinearOptions, PoolOptions, ThenNorm};
use kernels::policy::{Choice, Engine, engine, scoped};

const LAYOUTS: [Layout; 2] = [Layout::ChannelsFirst, Layout::ChannelsLast];
const CHANNELS: usize = 16;

fn device() -> Device {
    Device::flex().autodiff()
}

fn images(channels: usize) -> Tensor<4> {
    random([2, channels, 6, 8])
}

thread_local! {
    // Not Burn's generator, which all tests of the process would share.
    static SOURCE: RefCell<fastrand::Rng> = const { RefCell::new(fastrand::Rng::with_seed(1)) };
}

/// Returns numbers from -2 to 2 with gradients, different ones for every call.
fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    let number = |source: &mut fastrand::Rng| source.f32() * 4.0 - 2.0;
    let values = SOURCE.with_borrow_mut(|source| {
        let count = shape.iter().product();
        (0..count).map(|_| number(source)).collect::<Vec<_>>()
    });
    Tensor::from_data(TensorData::new(values, shape), &device()).require_grad()
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_to_vec().unwrap()
}

/// Computes `layer` of `x` with all implementations, in both layouts, and compares with Burn's.
#[track_caller]
fn assert_same<const D: usize, const R: usize>(
    x: &Tensor<D>,
    layer: impl Fn(Layout, Tensor<D>) -> Tensor<R>,
) {
    let computed = |choice, layout| {
        scoped(choice, || {
            let out = layer(layout, x.clone());
            // A different factor for every element, so that errors do not cancel.
            let count = out.shape().num_elements() as i64;
            let factors = Tensor::<1, Int>::arange(0..count, &device()).float().sin();
            let gradients = (out.clone() * factors.reshape(out.dims())).sum().backward();
            let gradient = x.grad(&gradients).expect("a gradient");
            [floats(out), floats(gradient)]
        })
    };
    let expected = computed(Choice::Burn, Layout::ChannelsFirst);
    for choice in [Choice::Auto, Choice::Exact, Choice::Burn] {
        for layout in LAYOUTS {
            for (found, expected) in computed(choice, layout).iter().zip(&expected) {
                assert_eq!(found.len(), expected.len());
                let largest = expected.iter().fold(1e-3f32, |most, v| most.max(v.abs()));
                for (found, expected) in found.iter().zip(expected) {
                    assert!(
                        (found - expected).abs() <= 1e-4 * largest,
                        "{choice:?}, {layout:?}: {found}, not {expected}"
                    );
                }
            }
        }
    }
}

/// Does the same for an operation on images.
#[track_caller]
fn assert_same_of_images(x: &Tensor<4>, layer: impl Fn(Layout, Tensor<4>) -> Tensor<4>) {
    assert_same(x, |layout, x| {
        layout.to_channels_first(layer(layout, layout.of_channels_first(x)))
    });
}

#[test]
fn convolutions_of_burns_layer() {
    for (kernel, padding, relu) in [(3, 1, true), (1, 0, false)] {
        let padding = PaddingConfig2d::Explicit(padding, padding, padding, padding);
        let config = Conv2dConfig::new([CHANNELS, 32], [kernel; 2]).with_padding(padding);
        let mut conv: Conv2d = config.init(&device());
        conv.weight = Param::from_tensor(random([32, CHANNELS, kernel, kernel]));
        conv.bias = Some(Param::from_tensor(random([32])));
        let plus = images(32);
        assert_same_of_images(&images(CHANNELS), |layout, x| {
            let options = ConvOptions {
                relu,
                ..ConvOptions::of(&conv, layout).unwrap()
            };
            let plus = layout.of_channels_first(plus.clone());
            let bias = conv.bias.as_ref().map(Param::val);
            ops::conv2d(x, conv.weight.val(), bias, Some(plus), options)
        });
    }
}

#[test]
fn layers_that_no_kernel_computes_are_named() {
    let conv = Conv2dConfig::new([4, 4], [3, 3]);
    let plain = |config: Conv2dConfig| {
        ConvOptions::of(&config.init(&device()), Layout::ChannelsFirst).is_some()
    };
    assert!(plain(conv.clone()));
    assert!(!plain(conv.clone().with_groups(2)));
    assert!(!plain(conv.clone().with_dilation([2, 1])));
    assert!(!plain(conv.clone().with_padding(PaddingConfig2d::Same)));
    assert!(!plain(
        conv.with_padding(PaddingConfig2d::Explicit(0, 0, 1, 1))
    ));
    let pool = MaxPool2dConfig::new([2, 2]);
    assert!(PoolOptions::of(&pool.init(), Layout::ChannelsLast).is_some());
    assert!(PoolOptions::of(&pool.with_ceil_mode(true).init(), Layout::ChannelsLast).is_none());
}

#[test]
fn linear_layers_after_gelu() {
    let (weight, bias) = (random([24, 16]), random([16]));
    for (gelu, relu) in [(true, false), (false, true)] {
        let options = LinearOptions {
            gelu,
            relu,
            bf16: false,
        };
        let plus = random([2, 5, 16]);
        assert_same(&random([2, 5, 24]), |_, x| {
            let (bias, plus) = (Some(bias.clone()), Some(plus.clone()));
            ops::linear(x, weight.clone(), bias, plus, options)
        });
    }
}

#[test]
fn normalizations() {
    let parameters = |count| [random([count]), random([count])];
    let of_row = parameters(24);
    assert_same(&random([2, 5, 24]), |_, x| {
        ops::layer_norm(x, of_row.clone(), 1e-6)
    });
    let of_channels = parameters(CHANNELS);
    let plus = images(CHANNELS);
    let then = |layout: Layout| ThenNorm {
        relu: true,
        drop: 0.0,
        plus: Some(layout.of_channels_first(plus.clone())),
    };
    assert_same_of_images(&images(CHANNELS), |layout, x| {
        ops::batch_norm_train(x, of_channels.clone(), 1e-5, layout, then(layout)).0
    });
    let moments = [random([CHANNELS]), random([CHANNELS]).square()];
    assert_same_of_images(&images(CHANNELS), |layout, x| {
        let moments = moments.clone().map(Tensor::detach);
        let parameters = of_channels.clone();
        ops::batch_norm(x, parameters, moments, 1e-5, layout, then(layout))
    });
}

#[test]
fn running_statistics() {
    let parameters = [random([CHANNELS]), random([CHANNELS])];
    let x = images(CHANNELS);
    let [by_kernels, by_burn] = [Choice::Auto, Choice::Burn].map(|choice| {
        scoped(choice, || {
            let (layout, then) = (Layout::ChannelsFirst, ThenNorm::default());
            let parameters = parameters.clone();
            let (_, moments) = ops::batch_norm_train(x.clone(), parameters, 1e-5, layout, then);
            let old = [
                Tensor::zeros([CHANNELS], &device()),
                Tensor::ones([CHANNELS], &device()),
            ];
            let [mean, variance] = moments.running(old, 0.1, 1.5);
            assert!(!mean.device().is_autodiff());
            let expected = moments.variance() * 0.15 + 0.9;
            assert!(
                (expected - variance.clone())
                    .abs()
                    .max()
                    .into_scalar::<f32>()
                    < 1e-6
            );
            Tensor::cat(vec![mean, variance, moments.mean()], 0)
        })
    });
    assert!((by_kernels - by_burn).abs().max().into_scalar::<f32>() < 1e-5);
}

#[test]
fn pooling() {
    let pool = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).init();
    assert_same_of_images(&images(CHANNELS), |layout, x| {
        ops::max_pool2d(x, PoolOptions::of(&pool, layout).unwrap())
    });
    for part in [[6, 8], [3, 5]] {
        assert_same(&images(CHANNELS), |layout, x| {
            ops::mean_of_pixels(layout.of_channels_first(x), part, layout)
        });
    }
    assert_same(&random([2, 5, 24]), |_, x| ops::mean_of_tokens(x));
}

#[test]
fn tokens_activations_and_losses() {
    assert_same(&random([2, 5, 3 * 24]), |_, x| ops::attention(x, 3, false));
    assert_same(&random([2, 5, 24]), |_, x| ops::gelu(x));
    let other = random([2, 5, 24]);
    assert_same(&random([2, 5, 24]), |_, x| ops::add_relu(x, other.clone()));
    assert_same(&random([2, 5, 24]), |_, x| {
        ops::relu(ops::add(x, other.clone()))
    });
    let (token, positions) = (random([1, 1, 24]), random([1, 6, 24]));
    assert_same(&random([2, 5, 24]), |_, x| {
        ops::embed(x, Some(token.clone()), positions.clone())
    });
    assert_same(&random([3, 4]), |_, x| {
        let classes = |values: [i32; 3]| Tensor::<1, Int>::from_ints(values, &device());
        let weights = Tensor::from_floats([0.25, 0.5, 1.0], &device());
        let other = Some((classes([1, 1, 0]), weights));
        ops::cross_entropy(x, classes([3, 0, 2]), other, 0.1)
    });
}

#[test]
fn dropout_keeps_the_mean_whoever_computes_it() {
    for (choice, who) in [(Choice::Auto, Engine::Cpu), (Choice::Burn, Engine::Burn)] {
        scoped(choice, || {
            let x = Tensor::<2>::ones([200, 200], &device());
            assert_eq!(engine(&x), who);
            assert_eq!(floats(ops::dropout(x.clone(), 0.0)), floats(x.clone()));
            let mean = ops::dropout(x, 0.25).mean().into_scalar::<f32>();
            assert!((mean - 1.0).abs() < 0.03, "{mean}");
        });
    }
}
