//! Operations on Burn's tensors: results and gradients equal those of Burn's own operations, with
//! and without recomputation, on tensors in any memory order.

use std::cell::Cell;

use burn::tensor::activation::{gelu, log_softmax, relu, softmax};
use burn::tensor::module::{conv2d, layer_norm, linear, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Int, Tensor, TensorData};
use kernels::cpu::ConvMethod;
use kernels::cpu::flex as own;

/// Returns all devices on which the operations have a backward pass.
fn devices() -> [Device; 2] {
    let device = Device::flex().autodiff();
    [device.clone(), device.gradient_checkpointing()]
}

thread_local! {
    // Not Burn's generator, which all tests of the process would share.
    static SEED: Cell<u64> = const { Cell::new(1) };
}

/// Returns numbers from -2 to 2 with gradients, different ones for every call.
fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    SEED.set(SEED.get() + 1);
    let mut source = fastrand::Rng::with_seed(SEED.get());
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|_| source.f32() * 4.0 - 2.0).collect();
    Tensor::from_data(TensorData::new(values, shape), device).require_grad()
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// A tensor of any rank with a gradient.
trait Leaf {
    fn gradient(&self, gradients: &burn::tensor::Gradients) -> Vec<f32>;
}

impl<const D: usize> Leaf for Tensor<D> {
    fn gradient(&self, gradients: &burn::tensor::Gradients) -> Vec<f32> {
        floats(self.grad(gradients).expect("a gradient"))
    }
}

/// Compares results and gradients of two computations. Each is called once, because Burn traverses
/// a graph only once.
#[track_caller]
fn assert_same<const D: usize>(
    own: impl FnOnce() -> Tensor<D>,
    theirs: impl FnOnce() -> Tensor<D>,
    leaves: &[&dyn Leaf],
) {
    let all = |out: Tensor<D>| {
        let mut values = vec![floats(out.clone())];
        // A different factor for every element, so that errors do not cancel.
        let (device, dims) = (out.device(), out.dims());
        let count = out.shape().num_elements() as i64;
        let factors = Tensor::<1, Int>::arange(0..count, &device).float().sin();
        let gradients = (out * factors.reshape(dims)).sum().backward();
        values.extend(leaves.iter().map(|leaf| leaf.gradient(&gradients)));
        values
    };
    for (index, (found, expected)) in all(own()).iter().zip(all(theirs())).enumerate() {
        assert_eq!(found.len(), expected.len(), "{index}");
        let largest = expected
            .iter()
            .fold(1e-3f32, |most, value| most.max(value.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            let difference = (found - expected).abs();
            assert!(
                difference <= 2e-5 * largest,
                "{index}: {found} for {expected}"
            );
        }
    }
}

fn channels_first(x: Tensor<4>) -> Tensor<4> {
    x.permute([0, 3, 1, 2])
}

fn channels_last(x: Tensor<4>) -> Tensor<4> {
    x.permute([0, 2, 3, 1])
}

#[test]
fn convolutions() {
    for device in devices() {
        for (stride, padding, kernel, relued) in [
            ([1, 1], [1, 1], [3, 3], true),
            ([2, 1], [0, 1], [2, 3], false),
            ([1, 1], [0, 0], [1, 1], true),
        ] {
            let x = random([2, 8, 8, 17], &device);
            let weight = random([19, 17, kernel[0], kernel[1]], &device);
            let bias = random([19], &device);
            let side = |axis: usize| (8 + 2 * padding[axis] - kernel[axis]) / stride[axis] + 1;
            let residual = random([2, side(0), side(1), 19], &device);
            let theirs = || {
                let options = ConvOptions::new(stride, padding, [1, 1], 1);
                let (x, bias) = (channels_first(x.clone()), Some(bias.clone()));
                let sum = conv2d(x, weight.clone(), bias, options);
                let sum = channels_last(sum) + residual.clone();
                if relued { relu(sum) } else { sum }
            };
            for method in [ConvMethod::Auto, ConvMethod::Direct] {
                let options = own::ConvOptions {
                    stride,
                    padding,
                    method,
                    relu: relued,
                };
                let found = || {
                    let (bias, residual) = (Some(bias.clone()), Some(residual.clone()));
                    own::conv2d(x.clone(), weight.clone(), bias, residual, options)
                };
                assert_same(found, theirs, &[&x, &weight, &bias, &residual]);
            }
        }
    }
}

#[test]
fn images_in_another_memory_order_are_read_as_their_shape_says() {
    for device in devices() {
        let x = random([2, 5, 6, 7], &device);
        let weight = random([4, 5, 3, 3], &device);
        let theirs = || {
            let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
            channels_last(conv2d(x.clone(), weight.clone(), None, options))
        };
        let found = || {
            let options = own::ConvOptions {
                stride: [1, 1],
                padding: [1, 1],
                ..own::ConvOptions::default()
            };
            own::conv2d(
                channels_last(x.clone()),
                weight.clone(),
                None,
                None,
                options,
            )
        };
        assert_same(found, theirs, &[&x, &weight]);
        // A view that begins within another tensor.
        let rows = random([9, 5], &device);
        let part = || rows.clone().narrow(0, 2, 4);
        assert_same(|| own::gelu(part()), || gelu(part()), &[&rows]);
    }
}

#[test]
fn linear_layers() {
    for device in devices() {
        let (x, weight) = (random([3, 5, 7], &device), random([7, 11], &device));
        let (bias, residual) = (random([11], &device), random([3, 5, 11], &device));
        let leaves: [&dyn Leaf; 4] = [&x, &weight, &bias, &residual];
        let theirs = || linear(x.clone(), weight.clone(), Some(bias.clone())) + residual.clone();
        let found = |relu, bf16| {
            let options = own::LinearOptions {
                relu,
                bf16,
                gelu: false,
            };
            let (bias, residual) = (Some(bias.clone()), Some(residual.clone()));
            own::linear(x.clone(), weight.clone(), bias, residual, options)
        };
        assert_same(|| found(false, false), theirs, &leaves);
        assert_same(|| found(true, false), || relu(theirs()), &leaves);
        let plain = own::LinearOptions::default();
        assert_same(
            || own::linear(x.clone(), weight.clone(), None, None, plain),
            || linear(x.clone(), weight.clone(), None),
            &[&x, &weight],
        );
        for bf16 in [false, true] {
            let apart = own::LinearOptions { bf16, ..plain };
            let together = own::LinearOptions {
                gelu: true,
                ..apart
            };
            for bias in [None, Some(bias.clone())] {
                let layer =
                    |x, options| own::linear(x, weight.clone(), bias.clone(), None, options);
                let leaves = &leaves[..2 + usize::from(bias.is_some())];
                assert_same(
                    || layer(x.clone(), together),
                    || layer(own::gelu(x.clone()), apart),
                    leaves,
                );
            }
        }
        let (found, theirs) = (floats(found(false, true)), floats(theirs()));
        assert_ne!(found, theirs);
        for (found, theirs) in found.iter().zip(theirs) {
            assert!((found - theirs).abs() < 0.1, "{found} for {theirs}");
        }
    }
}

#[test]
fn layer_normalization() {
    for device in devices() {
        let (weight, bias) = (random([9], &device), random([9], &device));
        let x = random([3, 4, 9], &device);
        assert_same(
            || own::layer_norm(x.clone(), weight.clone(), bias.clone(), 1e-6),
            || layer_norm(x.clone(), weight.clone(), Some(bias.clone()), 1e-6),
            &[&x, &weight, &bias],
        );
    }
}

/// Returns variance and mean of each channel of `x`, \[1, channels\].
fn moments(x: Tensor<4>) -> [Tensor<2>; 2] {
    let channels = x.dims()[3];
    let flat = x.flatten::<1>(0, 3).reshape([-1, channels as i32]);
    let mean = flat.clone().mean_dim(0);
    [(flat - mean.clone()).square().mean_dim(0), mean]
}

#[test]
fn batch_normalization() {
    for device in devices() {
        let (weight, bias) = (random([9], &device), random([9], &device));
        let x = random([3, 4, 5, 9], &device);
        let leaves: [&dyn Leaf; 3] = [&x, &weight, &bias];
        let parameters = || [weight.clone(), bias.clone()];
        let normal = |[variance, mean]: [Tensor<2>; 2], relued| {
            let shaped = |values: Tensor<2>| values.reshape([1, 1, 1, 9]);
            let row = |values: &Tensor<1>| values.clone().reshape([1, 1, 1, 9]);
            let out = (x.clone() - shaped(mean)) / (shaped(variance) + 1e-5).sqrt();
            let out = out * row(&weight) + row(&bias);
            if relued { relu(out) } else { out }
        };
        for relued in [false, true] {
            let (_, found) = own::batch_norm_train(x.clone(), parameters(), 1e-5, relued);
            let theirs = moments(x.clone()).map(floats);
            for (found, theirs) in [&found.variance, &found.mean].into_iter().zip(theirs) {
                for (found, theirs) in found.iter().zip(theirs) {
                    assert!((found - theirs).abs() < 1e-5, "{found} for {theirs}");
                }
            }
            assert_same(
                || own::batch_norm_train(x.clone(), parameters(), 1e-5, relued).0,
                || normal(moments(x.clone()), relued),
                &leaves,
            );
            // With given moments no gradient flows through them.
            assert_same(
                || own::batch_norm(x.clone(), parameters(), found.clone(), 1e-5, relued),
                || normal(moments(x.clone()).map(Tensor::detach), relued),
                &leaves,
            );
        }
    }
}

#[test]
fn attention() {
    for device in devices() {
        let qkv = random([2, 5, 3 * 12], &device);
        let theirs = || {
            let parts = qkv.clone().reshape([2, 5, 3, 4, 3]);
            let parts = parts.permute([2, 0, 3, 1, 4]);
            let part = |index| parts.clone().narrow(0, index, 1).squeeze_dim::<4>(0);
            let scores = part(0).matmul(part(1).transpose()) / 3f32.sqrt();
            let mixed = softmax(scores, 3).matmul(part(2));
            mixed.swap_dims(1, 2).reshape([2, 5, 12])
        };
        assert_same(|| own::attention(qkv.clone(), 4, false), theirs, &[&qkv]);
    }
}

#[test]
fn pooling_means_and_sums() {
    for device in devices() {
        let x = random([2, 7, 8, 5], &device);
        let options = own::PoolOptions {
            kernel: [3, 2],
            stride: [2, 2],
            padding: [1, 0],
        };
        let theirs = || {
            let windows = MaxPoolOptions {
                stride: [2, 2],
                padding: [(1, 1), (0, 0)],
                ..MaxPoolOptions::new([3, 2])
            };
            channels_last(max_pool2d(channels_first(x.clone()), windows))
        };
        assert_same(|| own::max_pool2d(x.clone(), options), theirs, &[&x]);

        let theirs = || x.clone().mean_dim(1).mean_dim(2).reshape([2, 5]);
        assert_same(|| own::mean_of_pixels(x.clone()), theirs, &[&x]);

        let y = random([2, 7, 8, 5], &device);
        let found = |relu| own::add(x.clone(), y.clone(), relu);
        let theirs = || x.clone() + y.clone();
        assert_same(|| found(false), theirs, &[&x, &y]);
        assert_same(|| found(true), || relu(theirs()), &[&x, &y]);
    }
}

#[test]
fn cross_entropy() {
    for device in devices() {
        let logits = random([4, 6], &device);
        let index = TensorData::from([[5], [0], [2], [2]]);
        let index = Tensor::<2, Int>::from_data(index, &device);
        for smoothing in [0.0, 0.2] {
            let theirs = || {
                let all = log_softmax(logits.clone(), 1);
                let picked = all.clone().gather(1, index.clone()).mean();
                -(picked * (1.0 - smoothing) + all.mean() * smoothing)
            };
            let found = || own::cross_entropy(logits.clone(), vec![5, 0, 2, 2], smoothing);
            assert_same(found, theirs, &[&logits]);
        }
    }
}

#[test]
fn images_turn_and_turn_back() {
    for device in devices() {
        for shape in [[2, 19, 5, 7], [3, 1, 4, 6]] {
            let x = random(shape, &device);
            let found = || own::channels_last(x.clone());
            assert_same(found, || channels_last(x.clone()), &[&x]);
            assert_same(
                || own::channels_first(found()) * 2.0,
                || x.clone() * 2.0,
                &[&x],
            );
        }
    }
}

#[test]
fn dropout_keeps_the_mean_and_its_mask_in_backward() {
    for device in devices() {
        device.seed(4);
        let x = Tensor::<2>::ones([200, 300], &device).require_grad();
        let out = own::dropout(x.clone(), 0.25);
        let values = floats(out.clone());
        let kept = values.iter().filter(|value| **value != 0.0).count();
        assert!((44_500..45_500).contains(&kept), "{kept}");
        let (first, rest) = values.split_at(30_000);
        assert_ne!(first, rest, "the same mask again");
        let exact = |value: &f32| *value == 0.0 || (value - 4.0 / 3.0).abs() < 1e-6;
        assert!(values.iter().all(exact));
        let gradients = out.sum().backward();
        assert_eq!(x.gradient(&gradients), values);
        // The generator advances, and the seed resets it.
        assert_ne!(floats(own::dropout(x.clone(), 0.25)), values);
        device.seed(4);
        assert_eq!(floats(own::dropout(x, 0.25)), values);
    }
}

#[test]
fn plain_devices_compute_too() {
    let device = Device::flex();
    let x = Tensor::<2>::from_floats([[-1.0, 0.0, 2.0]], &device);
    let (found, theirs) = (floats(own::gelu(x.clone())), floats(gelu(x)));
    for (found, theirs) in found.iter().zip(theirs) {
        assert!((found - theirs).abs() < 1e-6);
    }
}

#[test]
#[should_panic(expected = "conv2d: `weight` has")]
fn shapes_that_do_not_fit_are_named() {
    let [device, _] = devices();
    let (x, weight) = (random([1, 4, 4, 3], &device), random([2, 5, 3, 3], &device));
    let options = own::ConvOptions {
        stride: [1, 1],
        ..own::ConvOptions::default()
    };
    own::conv2d(x, weight, None, None, options);
}

/// A block like a transformer's: the input passes through a normalization, a layer and others, and
/// also around them.
fn ways(x: Tensor<2>, weight: Tensor<2>, norm: [Tensor<1>; 2], ours: bool) -> Tensor<2> {
    let x = x * 2.0;
    let [gamma, beta] = norm;
    let beside = x.clone();
    match ours {
        true => {
            let y = own::layer_norm(x.clone(), gamma, beta, 1e-5);
            let options = own::LinearOptions::default();
            let y = own::linear(y, weight.clone(), None, Some(x.clone()), options);
            let other = own::linear(x.clone(), weight, None, None, options);
            own::add(own::add(y, own::gelu(other), false), x + beside, false)
        }
        false => {
            let y = layer_norm(x.clone(), gamma, Some(beta), 1e-5);
            let y = linear(y, weight.clone(), None) + x.clone();
            y + gelu(linear(x.clone(), weight, None)) + (x + beside)
        }
    }
}

#[test]
fn gradients_of_what_goes_several_ways_add_up() {
    for device in devices() {
        let (x, weight) = (random([33, 24], &device), random([24, 24], &device));
        let norm = || [random([24], &device), random([24], &device)];
        let [gamma, beta] = norm();
        let all = |ours| {
            ways(
                x.clone(),
                weight.clone(),
                [gamma.clone(), beta.clone()],
                ours,
            )
        };
        assert_same(|| all(true), || all(false), &[&x, &weight, &gamma, &beta]);
    }
}

#[test]
fn what_one_backward_pass_has_registered_is_not_looked_for_in_another() {
    let device = Device::flex().autodiff();
    let (x, weight) = (random([5, 8], &device), random([8, 8], &device));
    let expected = |factor: f32| {
        let loss = linear(x.clone(), weight.clone(), None) * factor + x.clone();
        floats(x.grad(&loss.sum().backward()).unwrap())
    };
    // Every container has a new gradient of a leaf, and another pass may run beside it.
    for factor in [1.0, -3.0] {
        let options = own::LinearOptions::default();
        let product = own::linear(x.clone(), weight.clone(), None, None, options);
        let loss = own::add(product * factor, x.clone(), false).sum();
        let other = own::add(x.clone() * 2.0, x.clone(), false).sum();
        let (gradients, others) = (loss.backward(), other.backward());
        let found = floats(x.grad(&gradients).unwrap());
        for (found, expected) in found.iter().zip(expected(factor)) {
            assert!((found - expected).abs() < 1e-4, "{found} {expected}");
        }
        assert!(
            floats(x.grad(&others).unwrap())
                .iter()
                .all(|one| *one == 3.0)
        );
    }
}
