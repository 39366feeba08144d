//! Operations that are written for GPUs against the same in f64. A GPU is wgpu's, in software where
//! there is no other, or what `BURN_DIST_TEST_DEVICE` names; docs/gpu.md.
#![cfg(own_gpu)]

use burn::tensor::{Device, FloatDType, Int, Tensor};
use burn_dist::device::DeviceChoice;
use burn_dist::world::World;
use kernels::burn::{Choice, scoped};
use kernels::gpu::{
    PoolOptions, attention, batch_norm, batch_norm_train, computes_on, cross_entropy, dropout,
    gelu, layer_norm, max_pool2d, mean_of_pixels, put_parts, softmax, sums_of_squares, take_parts,
};

const EPSILON: f64 = 1e-5;

/// The device that is asked for.
fn asked() -> Option<String> {
    std::env::var("BURN_DIST_TEST_DEVICE").ok()
}

/// The device, if there is one; says so if not.
fn device(test: &str) -> Option<Device> {
    let asked = asked();
    let choice = asked
        .as_deref()
        .map_or(DeviceChoice::Wgpu, |name| name.parse().unwrap());
    match World::single().choose_device(choice) {
        Ok(chosen) => Some(chosen.device),
        Err(error) if asked.is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("SKIPPED: {test}: {error}");
            None
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    shape: [usize; 4],
    /// Beside a deviation of about 1.
    mean: f64,
    relu: bool,
    dtype: FloatDType,
    /// Whether the images lie in memory with their channels last, as a convolution leaves them.
    channels_last: bool,
    /// Whether results are computed again in backward.
    recompute: bool,
}

const CASE: Case = Case {
    shape: [3, 8, 5, 7],
    mean: 0.0,
    relu: true,
    dtype: FloatDType::F32,
    channels_last: true,
    recompute: false,
};

/// What goes in, \[batch, channels, height, width\], and \[channels\].
struct Inputs {
    x: Vec<f32>,
    dy: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// What comes out.
struct Outputs {
    y: Vec<f64>,
    mean: Vec<f64>,
    variance: Vec<f64>,
    dx: Vec<f64>,
    dweight: Vec<f64>,
    dbias: Vec<f64>,
}

impl Case {
    fn inputs(&self) -> Inputs {
        let mut random = fastrand::Rng::with_seed(7);
        let mut draw = |count: usize, mean: f64| -> Vec<f32> {
            let mut sum = || (0..12).map(|_| random.f64() - 0.5).sum::<f64>();
            (0..count).map(|_| (mean + sum()) as f32).collect()
        };
        let (count, channels) = (self.shape.iter().product(), self.shape[1]);
        let rounded = |values: Vec<f32>| -> Vec<f32> {
            let tensor = Tensor::<1>::from_floats(values.as_slice(), &Device::flex());
            numbers(tensor.cast(self.dtype))
                .iter()
                .map(|v| *v as f32)
                .collect()
        };
        Inputs {
            x: rounded(draw(count, self.mean)),
            dy: rounded(draw(count, 0.3)),
            weight: draw(channels, 1.0),
            bias: draw(channels, 0.5),
        }
    }

    /// As Ioffe & Szegedy define it.
    fn expected(&self, inputs: &Inputs) -> Outputs {
        let [_, channels, height, width] = self.shape;
        let plane = height * width;
        let count = inputs.x.len();
        let mut out = Outputs {
            y: vec![0.0; count],
            mean: vec![0.0; channels],
            variance: vec![0.0; channels],
            dx: vec![0.0; count],
            dweight: vec![0.0; channels],
            dbias: vec![0.0; channels],
        };
        for channel in 0..channels {
            let places: Vec<usize> = (0..count)
                .filter(|at| at / plane % channels == channel)
                .collect();
            let values = places.len() as f64;
            let mean_of =
                |f: &dyn Fn(usize) -> f64| places.iter().map(|at| f(*at)).sum::<f64>() / values;
            let x = |at: usize| f64::from(inputs.x[at]);
            let mean = mean_of(&x);
            let variance = mean_of(&|at| (x(at) - mean).powi(2));
            let deviation = (variance + EPSILON).sqrt();
            let (weight, bias) = (
                f64::from(inputs.weight[channel]),
                f64::from(inputs.bias[channel]),
            );
            let normal = |at: usize| (x(at) - mean) / deviation;
            let line = |at: usize| weight * normal(at) + bias;
            let passes = |at: usize| !self.relu || line(at) > 0.0;
            let dy = |at: usize| {
                if passes(at) {
                    f64::from(inputs.dy[at])
                } else {
                    0.0
                }
            };
            let (slope, product) = (mean_of(&dy), mean_of(&|at| dy(at) * normal(at)));
            for &at in &places {
                out.y[at] = if passes(at) { line(at) } else { 0.0 };
                out.dx[at] = weight / deviation * (dy(at) - slope - normal(at) * product);
            }
            (out.mean[channel], out.variance[channel]) = (mean, variance);
            (out.dweight[channel], out.dbias[channel]) = (product * values, slope * values);
        }
        out
    }

    fn tensor(&self, values: &[f32], device: &Device) -> Tensor<4> {
        let [n, c, h, w] = self.shape;
        let flat = Tensor::<1>::from_floats(values, device);
        let images = flat.reshape(self.shape).cast(self.dtype);
        if !self.channels_last {
            return images;
        }
        // What is flattened lies in memory in its order.
        let flat = images.permute([0, 2, 3, 1]).reshape([n * h * w * c]);
        flat.reshape([n, h, w, c]).permute([0, 3, 1, 2])
    }

    fn computed(&self, inputs: &Inputs, device: &Device) -> Outputs {
        let tracked = match self.recompute {
            true => device.clone().autodiff().gradient_checkpointing(),
            false => device.clone().autodiff(),
        };
        let leaf = |values: &[f32]| {
            let inner = Tensor::<1>::from_floats(values, device);
            Tensor::from_inner(inner).to_device(&tracked).require_grad()
        };
        let x = Tensor::from_inner(self.tensor(&inputs.x, device));
        let x = x.to_device(&tracked).require_grad();
        let (weight, bias) = (leaf(&inputs.weight), leaf(&inputs.bias));
        let parameters = [weight.clone(), bias.clone()];
        // An operation before it, whose result a checkpoint may forget.
        let x_again = x.clone().mul_scalar(1.0);
        let (output, moments) = batch_norm_train(x_again, parameters, EPSILON, self.relu);
        assert_eq!(FloatDType::from(output.dtype()), self.dtype);
        let dy = Tensor::from_inner(self.tensor(&inputs.dy, device)).to_device(&tracked);
        let loss = (output.clone() * dy).cast(FloatDType::F32).sum();
        let mut gradients = loss.backward();
        Outputs {
            y: numbers(output),
            mean: numbers(moments.mean()),
            variance: numbers(moments.variance()),
            dx: numbers(x.grad_remove(&mut gradients).unwrap()),
            dweight: numbers(weight.grad_remove(&mut gradients).unwrap()),
            dbias: numbers(bias.grad_remove(&mut gradients).unwrap()),
        }
    }

    fn check(&self, device: &Device) {
        let inputs = self.inputs();
        let (expected, computed) = (self.expected(&inputs), self.computed(&inputs, device));
        // Sums are in f32 in any case; what is stored per value is rounded to its type.
        let stored = if self.dtype == FloatDType::F32 {
            2e-5
        } else {
            2e-3
        };
        for (name, tolerance, expected, computed) in [
            ("y", stored, expected.y, computed.y),
            ("mean", 1e-5, expected.mean, computed.mean),
            ("variance", 2e-5, expected.variance, computed.variance),
            ("dx", stored, expected.dx, computed.dx),
            ("dweight", 5e-5, expected.dweight, computed.dweight),
            ("dbias", 5e-5, expected.dbias, computed.dbias),
        ] {
            close(
                &format!("{name} of {self:?}"),
                &expected,
                &computed,
                tolerance,
            );
        }
    }
}

/// Compares with the largest expected value.
fn close(what: &str, expected: &[f64], computed: &[f64], tolerance: f64) {
    assert_eq!(expected.len(), computed.len(), "{what}");
    let largest = expected.iter().fold(1e-6f64, |most, v| most.max(v.abs()));
    for (place, (expected, computed)) in expected.iter().zip(computed).enumerate() {
        let error = (expected - computed).abs() / largest;
        // Also where it is no number.
        assert!(
            !(error > tolerance || error.is_nan()),
            "{what}, {place}: {computed}, not {expected}"
        );
    }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    let data = tensor.into_data().convert::<f64>();
    data.iter::<f64>().collect()
}

#[test]
fn gpu_batch_norm_is_that_of_the_definition() {
    let Some(device) = device("batch normalization on a GPU") else {
        return;
    };
    assert!(computes_on(&device) && computes_on(&device.clone().autodiff()));
    // One and many pixels and channels, rows that no vector and no cube divides, several parts.
    for shape in [
        [1, 1, 1, 5],
        [3, 8, 5, 7],
        [2, 3, 4, 4],
        [4, 20, 9, 9],
        [2, 6, 70, 70],
        [16, 64, 16, 16],
        [2, 1300, 2, 3],
    ] {
        for relu in [false, true] {
            Case {
                shape,
                relu,
                ..CASE
            }
            .check(&device);
        }
    }
    for channels_last in [false, true] {
        for recompute in [false, true] {
            Case {
                channels_last,
                recompute,
                ..CASE
            }
            .check(&device);
        }
    }
}

#[test]
fn gpu_batch_norm_by_given_moments_is_that_of_the_batch() {
    let Some(device) = device("batch normalization on a GPU") else {
        return;
    };
    for relu in [false, true] {
        let case = Case { relu, ..CASE };
        let inputs = case.inputs();
        let expected = case.expected(&inputs);
        let vector = |values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            Tensor::<1>::from_floats(values.as_slice(), &device)
        };
        let parameter = |values: &[f32]| Tensor::<1>::from_floats(values, &device);
        let computed = batch_norm(
            case.tensor(&inputs.x, &device),
            [parameter(&inputs.weight), parameter(&inputs.bias)],
            [vector(&expected.mean), vector(&expected.variance)],
            EPSILON,
            relu,
        );
        for (expected, computed) in expected.y.iter().zip(numbers(computed)) {
            assert!(
                (computed - expected).abs() < 1e-5,
                "{computed}, not {expected}"
            );
        }
    }
}

#[test]
fn gpu_batch_norm_does_not_cancel_beside_a_large_mean() {
    let Some(device) = device("batch normalization on a GPU") else {
        return;
    };
    let case = Case {
        shape: [8, 16, 9, 9],
        mean: 300.0,
        ..CASE
    };
    let inputs = case.inputs();
    let (expected, computed) = (case.expected(&inputs), case.computed(&inputs, &device));
    // E[x²] - E[x]² in f32 would be off by some percent.
    for (expected, computed) in expected.variance.iter().zip(&computed.variance) {
        assert!(
            (computed / expected - 1.0).abs() < 1e-4,
            "{computed}, not {expected}"
        );
    }
    for (expected, computed) in expected.y.iter().zip(&computed.y) {
        assert!(
            (computed - expected).abs() < 1e-3,
            "{computed}, not {expected}"
        );
    }
}

#[test]
fn gpu_batch_norm_of_half_precision_sums_in_full() {
    let Some(device) = device("batch normalization on a GPU") else {
        return;
    };
    if !device.supports_dtype(FloatDType::F16) {
        eprintln!("SKIPPED: batch normalization in f16: this device does not compute in it");
        return;
    }
    // Their squares' sum is beyond what f16 holds.
    let shape = [8, 16, 16, 16];
    Case {
        shape,
        mean: 8.0,
        dtype: FloatDType::F16,
        ..CASE
    }
    .check(&device);
}

#[test]
fn gpu_batch_norm_lets_no_overflow_pass() {
    let Some(device) = device("batch normalization on a GPU") else {
        return;
    };
    let mut inputs = CASE.inputs();
    inputs.x[3] = f32::INFINITY;
    let computed = CASE.computed(&inputs, &device);
    // The first channel's values are lost, and ReLU must not hide it; the others are as they were.
    assert!(computed.y[..35].iter().all(|value| value.is_nan()));
    assert!(computed.y[35..280].iter().all(|value| value.is_finite()));
    assert!(computed.dweight[0].is_nan() && computed.dweight[1].is_finite());
}

#[test]
fn gpu_operations_are_burns_if_asked_for() {
    let Some(device) = device("the choice of operations on a GPU") else {
        return;
    };
    assert!(!scoped(Choice::Burn, || computes_on(&device)));
    assert!(!computes_on(&Device::flex()));
}

/// Output and gradients of input, weight and bias of a layer normalization.
fn expected_layer_norm([rows, features]: [usize; 2], inputs: &Inputs) -> [Vec<f64>; 4] {
    let count = rows * features;
    let [mut y, mut dx] = [vec![0.0; count], vec![0.0; count]];
    let [mut dweight, mut dbias] = [vec![0.0; features], vec![0.0; features]];
    for row in 0..rows {
        let at = |feature: usize| row * features + feature;
        let mean_of =
            |f: &dyn Fn(usize) -> f64| (0..features).map(f).sum::<f64>() / features as f64;
        let x = |feature: usize| f64::from(inputs.x[at(feature)]);
        let mean = mean_of(&x);
        let deviation = (mean_of(&|feature| (x(feature) - mean).powi(2)) + EPSILON).sqrt();
        let normal = |feature: usize| (x(feature) - mean) / deviation;
        let dy = |feature: usize| f64::from(inputs.dy[at(feature)]);
        let scaled = |feature: usize| dy(feature) * f64::from(inputs.weight[feature]);
        let (offset, slope) = (mean_of(&scaled), mean_of(&|f| scaled(f) * normal(f)));
        for feature in 0..features {
            let (weight, bias) = (inputs.weight[feature], inputs.bias[feature]);
            y[at(feature)] = normal(feature) * f64::from(weight) + f64::from(bias);
            dx[at(feature)] = (scaled(feature) - offset - normal(feature) * slope) / deviation;
            dweight[feature] += dy(feature) * normal(feature);
            dbias[feature] += dy(feature);
        }
    }
    [y, dx, dweight, dbias]
}

#[test]
fn gpu_layer_norm_is_that_of_the_definition() {
    let Some(device) = device("layer normalization on a GPU") else {
        return;
    };
    let half = device.supports_dtype(FloatDType::F16);
    // One and many rows and features, and numbers of them that no vector and no cube divides.
    for size in [[1, 5], [3, 7], [70, 192], [300, 33], [9, 1030], [4000, 12]] {
        for (dtype, mean) in [
            (FloatDType::F32, 0.0),
            (FloatDType::F32, 30.0),
            (FloatDType::F16, 3.0),
        ] {
            if dtype == FloatDType::F16 && !half {
                eprintln!(
                    "SKIPPED: layer normalization in f16: this device does not compute in it"
                );
                continue;
            }
            // As many weights as features.
            let case = Case {
                shape: [1, size[1], size[0], 1],
                mean,
                dtype,
                ..CASE
            };
            let inputs = case.inputs();
            let expected = expected_layer_norm(size, &inputs);
            let tracked = device.clone().autodiff();
            let leaf = |values: &[f32]| {
                let inner = Tensor::<1>::from_floats(values, &device);
                Tensor::from_inner(inner).to_device(&tracked).require_grad()
            };
            let (weight, bias) = (leaf(&inputs.weight), leaf(&inputs.bias));
            let x = leaf(&inputs.x);
            let rows = x.clone().reshape([1, size[0], size[1]]).cast(dtype);
            let out = layer_norm(rows, [weight.clone(), bias.clone()], EPSILON);
            let dy = Tensor::<1>::from_floats(inputs.dy.as_slice(), &device);
            let dy = Tensor::from_inner(dy)
                .to_device(&tracked)
                .reshape([1, size[0], size[1]]);
            let loss = (out.clone().cast(FloatDType::F32) * dy).sum();
            let mut gradients = loss.backward();
            let computed = [
                numbers(out),
                numbers(x.grad_remove(&mut gradients).unwrap()),
                numbers(weight.grad_remove(&mut gradients).unwrap()),
                numbers(bias.grad_remove(&mut gradients).unwrap()),
            ];
            for (index, (expected, computed)) in expected.iter().zip(&computed).enumerate() {
                let stored = index < 2 && dtype == FloatDType::F16;
                let tolerance = if stored { 2e-3 } else { 5e-5 };
                close(
                    &format!("{index} of {size:?} in {dtype:?}"),
                    expected,
                    computed,
                    tolerance,
                );
            }
        }
    }
}

/// The softmax of each row, and the gradient of what goes in.
fn expected_softmax([rows, columns]: [usize; 2], inputs: &Inputs) -> [Vec<f64>; 2] {
    let [mut y, mut dx] = [vec![0.0; rows * columns], vec![0.0; rows * columns]];
    for row in 0..rows {
        let all = row * columns..(row + 1) * columns;
        let x = |at: usize| f64::from(inputs.x[at]);
        let most = all.clone().map(x).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = all.clone().map(|at| (x(at) - most).exp()).sum();
        let share = |at: usize| (x(at) - most).exp() / sum;
        let dy = |at: usize| f64::from(inputs.dy[at]);
        let mean: f64 = all.clone().map(|at| share(at) * dy(at)).sum();
        for at in all {
            y[at] = share(at);
            dx[at] = share(at) * (dy(at) - mean);
        }
    }
    [y, dx]
}

#[test]
fn gpu_softmax_is_that_of_the_definition() {
    let Some(device) = device("softmax on a GPU") else {
        return;
    };
    let half = device.supports_dtype(FloatDType::F16);
    for size in [[1, 1], [3, 7], [70, 65], [300, 196], [9, 1030], [4000, 12]] {
        for (dtype, mean, recompute) in [
            (FloatDType::F32, 0.0, false),
            (FloatDType::F32, 0.0, true),
            // Whose exponentials would overflow.
            (FloatDType::F32, 200.0, false),
            (FloatDType::F32, -200.0, false),
            (FloatDType::F16, 3.0, false),
        ] {
            if dtype == FloatDType::F16 && !half {
                eprintln!("SKIPPED: softmax in f16: this device does not compute in it");
                continue;
            }
            let shape = [1, 1, size[0], size[1]];
            let case = Case {
                shape,
                mean,
                dtype,
                ..CASE
            };
            let inputs = case.inputs();
            let expected = expected_softmax(size, &inputs);
            let tracked = match recompute {
                true => device.clone().autodiff().gradient_checkpointing(),
                false => device.clone().autodiff(),
            };
            let leaf = |values: &[f32]| {
                let inner = Tensor::<1>::from_floats(values, &device);
                Tensor::from_inner(inner).to_device(&tracked)
            };
            let x = leaf(&inputs.x).require_grad();
            let out = softmax(x.clone().reshape(size).cast(dtype));
            let dy = leaf(&inputs.dy).reshape(size);
            let mut gradients = (out.clone().cast(FloatDType::F32) * dy).sum().backward();
            let dx = x.grad_remove(&mut gradients).unwrap();
            let tolerance = if dtype == FloatDType::F16 { 2e-3 } else { 5e-6 };
            let what = format!("{size:?} in {dtype:?} around {mean}");
            close(&what, &expected[0], &numbers(out), tolerance);
            let exact = dtype != FloatDType::F16 && size[1] > 1;
            // What is left of one column is nothing but rounding errors, and f16 rounds the shares.
            if exact {
                close(
                    &format!("gradient of {what}"),
                    &expected[1],
                    &numbers(dx),
                    1e-5,
                );
            } else {
                close(
                    &format!("gradient of {what}"),
                    &expected[1],
                    &numbers(dx),
                    4e-3,
                );
            }
        }
    }
}

#[test]
fn gpu_running_statistics_are_blends() {
    let Some(device) = device("running statistics on a GPU") else {
        return;
    };
    // Whole vectors, and not.
    for channels in [1, 8, 13, 300] {
        let case = Case {
            shape: [3, channels, 5, 7],
            ..CASE
        };
        let inputs = case.inputs();
        let expected = case.expected(&inputs);
        let x = case.tensor(&inputs.x, &device);
        let parameter = || Tensor::<1>::ones([channels], &device);
        let (_, moments) = batch_norm_train(x, [parameter(), parameter()], EPSILON, false);
        let old = |from: f32| -> Vec<f32> { (0..channels).map(|i| from + i as f32).collect() };
        let (mean, variance) = (old(-2.0), old(3.0));
        let there = |values: &[f32]| Tensor::<1>::from_floats(values, &device);
        let before = [there(&mean), there(&variance)];
        let [new_mean, new_variance] = moments.running(before.clone(), 0.1, 1.25);
        let blend = |old: &[f32], seen: &[f64], weight: f64| -> Vec<f64> {
            let pairs = old.iter().zip(seen);
            pairs
                .map(|(old, seen)| f64::from(*old) * 0.9 + seen * weight)
                .collect()
        };
        let what = format!("{channels} channels");
        close(
            &what,
            &blend(&mean, &expected.mean, 0.1),
            &numbers(new_mean),
            1e-6,
        );
        let expected = blend(&variance, &expected.variance, 0.125);
        close(&what, &expected, &numbers(new_variance), 1e-6);
        let [held, _] = before;
        assert_eq!(held.into_data().try_to_vec::<f32>().unwrap(), mean);
    }
}

/// Attention of \[batch, tokens, 3 × heads × depth\] with Burn's operations.
fn burns_attention(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    let [batch, tokens, width] = qkv.dims();
    let depth = width / 3 / heads;
    let qkv = qkv.reshape([batch, tokens, 3, heads, depth]);
    let part = |index| {
        qkv.clone()
            .narrow(2, index, 1)
            .squeeze_dim::<4>(2)
            .swap_dims(1, 2)
    };
    let scores = part(0).matmul(part(1).transpose()) / (depth as f64).sqrt();
    let mixed = burn::tensor::activation::softmax(scores, 3).matmul(part(2));
    mixed.swap_dims(1, 2).reshape([batch, tokens, width / 3])
}

#[test]
fn gpu_attention_is_that_of_the_definition() {
    let Some(device) = device("attention on a GPU") else {
        return;
    };
    let half = device.supports_dtype(FloatDType::F16);
    for (batch, tokens, heads, depth) in
        [(1, 1, 1, 1), (2, 5, 3, 4), (3, 17, 2, 16), (1, 65, 3, 64)]
    {
        for (dtype, recompute) in [
            (FloatDType::F32, false),
            (FloatDType::F32, true),
            (FloatDType::F16, false),
            (FloatDType::F16, true),
        ] {
            if dtype == FloatDType::F16 && !half {
                eprintln!("SKIPPED: attention in f16: this device does not compute in it");
                continue;
            }
            let shape = [batch, tokens, 3 * heads * depth];
            let count: usize = shape.iter().product();
            let case = Case {
                shape: [1, 1, 1, count],
                dtype,
                ..CASE
            };
            let inputs = case.inputs();
            let dy = &inputs.dy[..count / 3];
            let run = |device: &Device, plain: &Device, dtype: FloatDType, own: bool| {
                let leaf = |values: &[f32], shape: [usize; 3]| {
                    let values = Tensor::<1>::from_data(values, plain)
                        .cast(dtype)
                        .reshape(shape);
                    Tensor::<3>::from_inner(values).to_device(device)
                };
                let x = leaf(&inputs.x, shape).require_grad();
                let out = match own {
                    true => attention(x.clone(), heads),
                    false => burns_attention(x.clone(), heads),
                };
                let loss = (out.clone() * leaf(dy, [batch, tokens, heads * depth])).sum();
                let dx = x.grad_remove(&mut loss.backward()).unwrap();
                [numbers(out), numbers(dx)]
            };
            let tracked = match recompute {
                true => device.clone().autodiff().gradient_checkpointing(),
                false => device.clone().autodiff(),
            };
            let processor = Device::flex();
            let exact = processor.clone().autodiff();
            let expected = run(&exact, &processor, FloatDType::F64, false);
            let found = run(&tracked, &device, dtype, true);
            let tolerance = match dtype {
                FloatDType::F16 => 1e-2,
                // Products on tensor cores are in TensorFloat-32.
                _ if asked().as_deref() == Some("cuda") => 2e-3,
                _ => 1e-5,
            };
            let what = format!("attention of {shape:?} in {dtype:?}");
            close(&what, &expected[0], &found[0], tolerance);
            close(
                &format!("gradient of {what}"),
                &expected[1],
                &found[1],
                tolerance,
            );
        }
    }
}

#[test]
fn gpu_gelu_is_that_of_the_definition() {
    let Some(device) = device("GELU on a GPU") else {
        return;
    };
    let half = device.supports_dtype(FloatDType::F16);
    for shape in [[1, 1, 1, 1], [2, 3, 5, 7], [1, 4, 9, 64]] {
        for (dtype, recompute) in [
            (FloatDType::F32, false),
            (FloatDType::F32, true),
            (FloatDType::F16, false),
        ] {
            if dtype == FloatDType::F16 && !half {
                eprintln!("SKIPPED: GELU in f16: this device does not compute in it");
                continue;
            }
            let case = Case {
                shape,
                dtype,
                ..CASE
            };
            let mut inputs = case.inputs();
            // Where nothing or all is below.
            inputs
                .x
                .iter_mut()
                .skip(1)
                .step_by(17)
                .for_each(|x| *x = x.signum() * 6.0);
            let tracked = match recompute {
                true => device.clone().autodiff().gradient_checkpointing(),
                false => device.clone().autodiff(),
            };
            let leaf = |values: &[f32]| {
                let values = Tensor::<1>::from_floats(values, &device).reshape(shape);
                Tensor::from_inner(values).to_device(&tracked)
            };
            let x: Tensor<4> = leaf(&inputs.x).require_grad();
            let out = gelu(x.clone().cast(dtype));
            let loss = (out.clone().cast(FloatDType::F32) * leaf(&inputs.dy)).sum();
            let dx = x.grad_remove(&mut loss.backward()).unwrap();
            let rounded = |v: f32| match dtype {
                FloatDType::F16 => f64::from(burn::tensor::f16::from_f32(v)),
                _ => f64::from(v),
            };
            let pairs = inputs.x.iter().zip(&inputs.dy);
            let (expected, gradient): (Vec<f64>, Vec<f64>) = pairs
                .map(|(x, dy)| {
                    let (x, dy) = (rounded(*x), rounded(*dy));
                    let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
                    (x * normal(x), dy * (normal(x) + x * density))
                })
                .unzip();
            let tolerance = if dtype == FloatDType::F16 { 2e-3 } else { 2e-6 };
            let what = format!("GELU of {shape:?} in {dtype:?}");
            close(&what, &expected, &numbers(out), tolerance);
            close(
                &format!("gradient of {what}"),
                &gradient,
                &numbers(dx),
                tolerance,
            );
        }
    }
}

/// The four numbers of Philox4x32-10 for a counter below 2³² and a key of 64 bits, as Salmon et al. 2011 have
/// it.
fn philox(counter: u32, mut key: [u32; 2]) -> [u32; 4] {
    let mut x = [counter, 0, 0, 0];
    for _ in 0..10 {
        let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
        let (first, second) = (product(0xD251_1F53, x[0]), product(0xCD9E_8D57, x[2]));
        let high = |product: u64| (product >> 32) as u32;
        x = [
            high(second) ^ x[1] ^ key[0],
            second as u32,
            high(first) ^ x[3] ^ key[1],
            first as u32,
        ];
        key[0] = key[0].wrapping_add(0x9E37_79B9);
        key[1] = key[1].wrapping_add(0xBB67_AE85);
    }
    x
}

#[test]
fn gpu_dropout_is_drawn_by_philox_in_the_order_of_memory() {
    let Some(device) = device("dropout on a GPU") else {
        return;
    };
    // The authors' known answer for zeros.
    assert_eq!(
        philox(0, [0; 2]),
        [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]
    );
    let rate = 0.3;
    for (shape, channels_last) in [
        ([2, 8, 5, 7], true),
        ([2, 8, 5, 7], false),
        ([3, 6, 5, 1], true),
        ([1, 3, 3, 3], true),
    ] {
        let [batch, channels, height, width] = shape;
        let tracked = device.clone().autodiff();
        let filled = |value: f32| match channels_last {
            true => Tensor::<4>::full([batch, height, width, channels], value, &tracked)
                .permute([0, 3, 1, 2]),
            false => Tensor::<4>::full(shape, value, &tracked),
        };
        let x = filled(2.0).require_grad();
        let drawn = |seed: u64| {
            device.seed(seed);
            dropout(x.clone(), rate)
        };
        let out = drawn(5);
        assert_eq!(numbers(out.clone()), numbers(drawn(5)), "another mask");
        assert_ne!(numbers(out.clone()), numbers(drawn(6)), "the same mask");
        device.seed(5);
        let uniform = burn::tensor::Distribution::Uniform(0.0, 1.0);
        let key = Tensor::<1>::random([2], uniform, &device).into_data();
        let key: Vec<u32> = key.iter::<f32>().map(f32::to_bits).collect();
        let below = (rate * f64::from(u32::MAX)) as u32;
        let share = 1.0 / (1.0 - rate as f32);
        let expected = |value: f32| -> Vec<f64> {
            let places = (0..batch * channels * height * width).map(|at| {
                // Images lie with their channels last, whatever they came as.
                let (pixel, plane) = (at % (height * width), at / (height * width));
                let (image, channel) = (plane / channels, plane % channels);
                (image * height * width + pixel) * channels + channel
            });
            let value_at = |place: usize| {
                let four = philox((place / 4) as u32, [key[0], key[1]]);
                match four[place % 4] < below {
                    true => 0.0,
                    false => f64::from(value * share),
                }
            };
            places.map(value_at).collect()
        };
        let dx = (out.clone() * filled(3.0)).sum().backward();
        let dx = x.grad(&dx).unwrap();
        close("dropout", &expected(2.0), &numbers(out), 1e-6);
        close("gradient of dropout", &expected(3.0), &numbers(dx), 1e-6);
    }
}

/// The largest numbers under a window and their places in `x`, the first where there are several.
fn largest(x: &[f64], shape: [usize; 4], options: PoolOptions) -> Vec<(f64, usize)> {
    let [batch, channels, height, width] = shape;
    let PoolOptions {
        window,
        stride,
        padding,
    } = options;
    let steps = |d: usize| (shape[2 + d] + 2 * padding[d] - window[d]) / stride[d] + 1;
    let mut out = Vec::new();
    for plane in 0..batch * channels {
        for step in 0..steps(0) * steps(1) {
            let corner = [step / steps(1) * stride[0], step % steps(1) * stride[1]];
            let mut most = (f64::NEG_INFINITY, usize::MAX);
            for tap in 0..window[0] * window[1] {
                let row = (corner[0] + tap / window[1]).wrapping_sub(padding[0]);
                let column = (corner[1] + tap % window[1]).wrapping_sub(padding[1]);
                if row >= height || column >= width {
                    continue;
                }
                let at = (plane * height + row) * width + column;
                if x[at] > most.0 {
                    most = (x[at], at);
                }
            }
            out.push(most);
        }
    }
    out
}

#[test]
fn gpu_max_pooling_is_the_first_maximum_of_each_window() {
    let Some(device) = device("max-pooling on a GPU") else {
        return;
    };
    let options = |window, stride, padding| PoolOptions {
        window,
        stride,
        padding,
    };
    for (shape, options) in [
        ([2, 8, 6, 8], options([2, 2], [2, 2], [0, 0])),
        ([2, 6, 7, 5], options([2, 2], [2, 2], [0, 0])),
        ([1, 5, 9, 8], options([3, 3], [2, 2], [1, 1])),
        ([2, 4, 7, 6], options([3, 2], [1, 3], [1, 0])),
        ([1, 3, 1, 4], options([1, 1], [1, 2], [0, 0])),
    ] {
        for recompute in [false, true] {
            let mut random = fastrand::Rng::with_seed(2);
            let count = shape.iter().product();
            // Few numbers, so that many are the same.
            let values: Vec<f64> = (0..count).map(|_| f64::from(random.i8(-2..3))).collect();
            let expected = largest(&values, shape, options);
            let mut dx = vec![0.0; count];
            for (at, (_, place)) in expected.iter().enumerate() {
                dx[*place] += at as f64 + 1.0;
            }
            let tracked = match recompute {
                true => device.clone().autodiff().gradient_checkpointing(),
                false => device.clone().autodiff(),
            };
            let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
            let x = Tensor::<1>::from_floats(values.as_slice(), &tracked).reshape(shape);
            let x = x.require_grad();
            let out = max_pool2d(x.clone(), options).unwrap();
            let dy: Vec<f32> = (0..expected.len()).map(|at| at as f32 + 1.0).collect();
            let dy = Tensor::<1>::from_floats(dy.as_slice(), &tracked).reshape(out.dims());
            let gradients = (out.clone() * dy).sum().backward();
            let what = format!("{shape:?} {options:?}");
            let expected: Vec<f64> = expected.iter().map(|(value, _)| *value).collect();
            close(&what, &expected, &numbers(out), 0.0);
            close(&what, &dx, &numbers(x.grad(&gradients).unwrap()), 1e-6);
        }
    }
    let odd = Tensor::<1>::from_floats([1.0, f32::NAN, 2.0, 0.0], &device).reshape([1, 1, 2, 2]);
    let out = max_pool2d(odd, options([2, 2], [2, 2], [0, 0])).unwrap();
    assert!(numbers(out)[0].is_nan());
}

#[test]
fn gpu_means_are_over_the_first_rows_and_columns() {
    let Some(device) = device("means on a GPU") else {
        return;
    };
    for (shape, part) in [
        ([3, 8, 5, 4], [5, 4]),
        ([2, 6, 8, 8], [7, 7]),
        ([2, 5, 3, 6], [1, 6]),
    ] {
        let [batch, channels, rows, columns] = shape;
        let mut random = fastrand::Rng::with_seed(4);
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| random.f32() - 0.5).collect();
        let share = 1.0 / (part[0] * part[1]) as f64;
        let mut expected = vec![0.0; batch * channels];
        let mut dx = vec![0.0; count];
        for (at, value) in values.iter().enumerate() {
            let (plane, row, column) = (at / columns / rows, at / columns % rows, at % columns);
            if row < part[0] && column < part[1] {
                expected[plane] += f64::from(*value) * share;
                dx[at] = (plane as f64 + 1.0) * share;
            }
        }
        let tracked = device.clone().autodiff();
        let x = Tensor::<1>::from_floats(values.as_slice(), &tracked).reshape(shape);
        let x = x.require_grad();
        let out = mean_of_pixels(x.clone(), part).unwrap();
        assert_eq!(out.dims(), [batch, channels]);
        let dy: Vec<f32> = (0..expected.len())
            .map(|plane| plane as f32 + 1.0)
            .collect();
        let dy = Tensor::<1>::from_floats(dy.as_slice(), &tracked).reshape(out.dims());
        let gradients = (out.clone() * dy).sum().backward();
        let what = format!("the mean over {part:?} of {shape:?}");
        close(&what, &expected, &numbers(out), 1e-6);
        close(&what, &dx, &numbers(x.grad(&gradients).unwrap()), 1e-6);
        for outside in [[rows + 1, 1], [1, columns + 1], [0, 1]] {
            assert!(mean_of_pixels(x.clone(), outside).is_none());
        }
    }
}

/// The share of the normal distribution below `x`, by its density's integral (Simpson's rule).
fn normal(x: f64) -> f64 {
    let x = x.clamp(-9.0, 9.0);
    let steps = 2000;
    let width = x / f64::from(steps);
    let density = |i: i32| (-(f64::from(i) * width).powi(2) / 2.0).exp();
    let inner: f64 = (1..steps)
        .map(|i| density(i) * if i % 2 == 1 { 4.0 } else { 2.0 })
        .sum();
    let integral = (density(0) + inner + density(steps)) * width / 3.0;
    0.5 + integral / (2.0 * std::f64::consts::PI).sqrt()
}

#[test]
fn gpu_sums_of_squares_are_those_of_the_definition_wherever_the_numbers_lie() {
    let Some(device) = device("norms on a GPU") else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(3);
    let values: Vec<f32> = (0..200_003).map(|_| random.f32() - 0.5).collect();
    let all = Tensor::<1>::from_floats(values.as_slice(), &device);
    for (place, parts) in [
        (1..2, 1),
        (0..257, 1),
        (3..65_539, 1),
        (0..65_537, 2),
        (1..200_002, 4),
    ] {
        let found = numbers(sums_of_squares([all.clone().slice(place.clone())]).unwrap());
        assert_eq!(found.len(), parts);
        let expected: f64 = values[place.clone()]
            .iter()
            .map(|v| f64::from(*v).powi(2))
            .sum();
        let sum: f64 = found.iter().sum();
        assert!(
            (sum / expected - 1.0).abs() < 1e-5,
            "{place:?}: {sum} is not {expected}"
        );
        let alone = Tensor::<1>::from_floats(&values[place.clone()], &device);
        assert_eq!(
            numbers(sums_of_squares([alone]).unwrap()),
            found,
            "{place:?}"
        );
    }
    // More tensors than a kernel takes, some without numbers.
    let lengths = [0, 1, 65_536, 70_000, 3, 257];
    let tensors = || (0..30).map(|i| all.clone().slice(i..i + lengths[i % lengths.len()]));
    let found = numbers(sums_of_squares(tensors()).unwrap());
    let alone = tensors().flat_map(|tensor| sums_of_squares([tensor]).map(numbers));
    assert_eq!(found, alone.flatten().collect::<Vec<f64>>());
    assert!(sums_of_squares([]).is_none());
}

#[test]
fn gpu_parts_of_a_flat_tensor_are_put_and_found_where_they_were_asked_for() {
    let Some(device) = device("flat tensors on a GPU") else {
        return;
    };
    // Lengths and places with whole vectors and without, and more parts than a kernel takes.
    let lengths = [1, 512, 3, 4, 1000, 128, 257];
    let (mut end, mut parts, mut expected) = (0, Vec::new(), Vec::new());
    for part in 0..40 {
        let start = end + [0, 1, 2, 128, 5][part % 5];
        let values: Vec<f32> = (0..lengths[part % lengths.len()])
            .map(|i| (part * 1000 + i) as f32)
            .collect();
        end = start + values.len();
        expected.resize(start, -1.0);
        expected.extend(values.iter().map(|value| f64::from(*value)));
        parts.push((start, Tensor::<1>::from_floats(values.as_slice(), &device)));
    }
    expected.resize(end + 7, -1.0);
    let flat = Tensor::<1>::full([end + 7], -1.0, &device);
    let held = flat.clone();
    let flat = put_parts(flat, parts);
    assert_eq!(numbers(flat.clone()), expected);
    assert!(numbers(held).iter().all(|value| *value == -1.0));
    let ranges = [
        0..1,
        0..end,
        128..256,
        4..8,
        5..5,
        128..131,
        1..1000,
        512..end + 7,
        3..4,
    ];
    let taken = take_parts(flat.clone(), &ranges);
    assert_eq!(taken.len(), ranges.len());
    for (range, part) in ranges.into_iter().zip(taken) {
        assert_eq!(part.dims(), [range.len()]);
        if !range.is_empty() {
            assert_eq!(numbers(part), expected[range]);
        }
    }
}

/// The mean loss of rows of `logits`, and its gradient, in double precision.
fn expected_cross_entropy(
    logits: &[f64],
    classes: &[usize],
    other: Option<(&[usize], &[f32])>,
    smoothing: f64,
) -> (f64, Vec<f64>) {
    let rows = classes.len();
    let columns = logits.len() / rows;
    let (mut loss, mut gradient) = (0.0, Vec::new());
    for (row, logits) in logits.chunks(columns).enumerate() {
        let mut target = vec![smoothing / columns as f64; columns];
        let weight = other.map_or(1.0, |(_, weights)| f64::from(weights[row]));
        target[classes[row]] += (1.0 - smoothing) * weight;
        if let Some((others, _)) = other {
            target[others[row]] += (1.0 - smoothing) * (1.0 - weight);
        }
        let most = logits.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = logits.iter().map(|x| (x - most).exp()).sum();
        for (x, target) in logits.iter().zip(target) {
            let log_probability = x - most - sum.ln();
            loss -= target * log_probability / rows as f64;
            gradient.push((log_probability.exp() - target) / rows as f64);
        }
    }
    (loss, gradient)
}

#[test]
fn gpu_cross_entropy_is_that_of_the_definition() {
    let Some(device) = device("cross-entropy on a GPU") else {
        return;
    };
    let half = device.supports_dtype(FloatDType::F16);
    for (rows, columns) in [(1, 1), (3, 10), (257, 100), (5, 7), (2, 1003)] {
        for (dtype, mixed, smoothing) in [
            (FloatDType::F32, false, 0.0),
            (FloatDType::F32, true, 0.1),
            (FloatDType::F16, false, 0.1),
            (FloatDType::F16, true, 0.0),
        ] {
            if dtype == FloatDType::F16 && !half {
                eprintln!("SKIPPED: cross-entropy in f16: this device does not compute in it");
                continue;
            }
            let mut random = fastrand::Rng::with_seed(5);
            // Numbers that half precision has, some of whose exponentials f32 has not.
            let logits: Vec<f32> = (0..rows * columns)
                .map(|at| random.i32(-40..40) as f32 / 8.0 * if at % 50 == 0 { 25.0 } else { 1.0 })
                .collect();
            let mut draw = || (0..rows).map(|_| random.usize(0..columns)).collect();
            let (classes, others): (Vec<usize>, Vec<usize>) = (draw(), draw());
            let weights: Vec<f32> = (0..rows).map(|row| row as f32 / rows as f32).collect();
            let exact: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
            let other = mixed.then_some((others.as_slice(), weights.as_slice()));
            let (loss, gradient) = expected_cross_entropy(&exact, &classes, other, smoothing);

            let tracked = device.clone().autodiff();
            let there = |classes: &[usize]| {
                let classes: Vec<i32> = classes.iter().map(|class| *class as i32).collect();
                Tensor::<1, Int>::from_ints(classes.as_slice(), &tracked)
            };
            let x = Tensor::<1>::from_floats(logits.as_slice(), &tracked);
            let x = x.reshape([rows, columns]).require_grad();
            let other = mixed.then(|| {
                let weights = Tensor::<1>::from_floats(weights.as_slice(), &tracked);
                (there(&others), weights)
            });
            let found = cross_entropy(x.clone().cast(dtype), there(&classes), other, smoothing);
            assert_eq!(found.dims(), [1]);
            assert_eq!(FloatDType::from(found.dtype()), FloatDType::F32);
            // As a scaled loss has it.
            let dx = x
                .grad_remove(&mut (found.clone() * 64.0).backward())
                .unwrap();
            let what = format!("cross-entropy of {rows} × {columns} in {dtype:?}, mixed: {mixed}");
            close(&what, &[loss], &numbers(found), 2e-6);
            let gradient: Vec<f64> = gradient.iter().map(|dx| dx * 64.0).collect();
            let tolerance = if dtype == FloatDType::F16 { 1e-3 } else { 2e-6 };
            close(
                &format!("gradient of {what}"),
                &gradient,
                &numbers(dx),
                tolerance,
            );
        }
    }
}

#[test]
fn gpu_cross_entropy_of_a_class_that_does_not_exist_reads_nothing_else() {
    let Some(device) = device("cross-entropy of impossible classes") else {
        return;
    };
    let tracked = device.autodiff();
    let x = Tensor::<2>::from_floats([[1.0, 3.0], [0.0, 0.0]], &tracked).require_grad();
    let classes = Tensor::<1, Int>::from_ints([-1, i32::MAX], &tracked);
    let loss = cross_entropy(x.clone(), classes, None, 0.0);
    let dx = numbers(x.grad_remove(&mut loss.backward()).unwrap());
    assert!(numbers(loss)[0].is_finite());
    assert!((dx.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{dx:?}");
}
