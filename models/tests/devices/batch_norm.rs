//! Batch normalization, of a batch and by given moments, compared with its definition.

use burn::tensor::{Device, FloatDType, Tensor};
use kernels::gpu::{ThenNorm, batch_norm, batch_norm_train, relu};
use kernels::policy::on_gpu as computes_on;

use crate::EPSILON;
use crate::check::{close, device, numbers};
use crate::inputs::{CASE, Case, Inputs};

/// Results and gradients.
pub(crate) struct Outputs {
    y: Vec<f64>,
    pub(crate) mean: Vec<f64>,
    pub(crate) variance: Vec<f64>,
    dx: Vec<f64>,
    dweight: Vec<f64>,
    dbias: Vec<f64>,
}

impl Case {
    /// Computes the definition of Ioffe & Szegedy.
    pub(crate) fn expected(&self, inputs: &Inputs) -> Outputs {
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

    pub(crate) fn tensor(&self, values: &[f32], device: &Device) -> Tensor<4> {
        let [n, c, h, w] = self.shape;
        let flat = Tensor::<1>::from_floats(values, device);
        let images = flat.reshape(self.shape).cast(self.dtype);
        if !self.channels_last {
            return images;
        }
        // A flattened tensor is contiguous in its order.
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
        // An operation before it, whose result a checkpoint may drop.
        let x_again = x.clone().mul_scalar(1.0);
        let then = ThenNorm {
            relu: self.relu,
            ..ThenNorm::default()
        };
        let (output, moments) = batch_norm_train(x_again, parameters, EPSILON, then);
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
        // Sums are always in f32; stored values are rounded to their type.
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

#[test]
fn gpu_batch_norm_is_that_of_the_definition() {
    let Some(device) = device("batch normalization on a GPU") else {
        return;
    };
    assert!(computes_on(&device) && computes_on(&device.clone().autodiff()));
    // One and many pixels and channels, row lengths that neither vectors nor cubes divide, several
    // parts.
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
            ThenNorm {
                relu,
                ..ThenNorm::default()
            },
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
    // The first sum of squares exceeds the range of f16; channels in whole vectors of eight, of
    // four, and of neither.
    for (shape, mean) in [
        ([8, 16, 16, 16], 8.0),
        ([3, 20, 7, 9], 0.5),
        ([2, 7, 9, 11], 0.5),
    ] {
        for relu in [false, true] {
            Case {
                shape,
                mean,
                relu,
                dtype: FloatDType::F16,
                ..CASE
            }
            .check(&device);
        }
    }
}

#[test]
fn gpu_batch_norm_lets_no_overflow_pass() {
    let Some(device) = device("batch normalization on a GPU") else {
        return;
    };
    let mut inputs = CASE.inputs();
    inputs.x[3] = f32::INFINITY;
    let computed = CASE.computed(&inputs, &device);
    // The first channel's values are lost, and ReLU must not hide it; the others are unchanged.
    assert!(computed.y[..35].iter().all(|value| value.is_nan()));
    assert!(computed.y[35..280].iter().all(|value| value.is_finite()));
    assert!(computed.dweight[0].is_nan() && computed.dweight[1].is_finite());
}

/// The normalization's input has other uses too: it is added to the result, and passes through a
/// ReLU before or after that. All gradients are added.
#[test]
fn gpu_batch_norm_adds_up_what_goes_several_ways() {
    let Some(device) = device("batch normalization on a GPU") else {
        return;
    };
    let halves = device.supports_dtype(FloatDType::F16);
    // More vectors than units with one vector each, and no multiple of their vectors.
    let large = |batch: usize| [batch, 64, 33, 63];
    for (shape, dtype, recompute) in [
        ([3, 8, 5, 7], FloatDType::F32, false),
        ([3, 8, 5, 7], FloatDType::F32, true),
        ([2, 6, 9, 4], FloatDType::F16, false),
        (large(33), FloatDType::F32, false),
        (large(65), FloatDType::F16, false),
    ] {
        if dtype == FloatDType::F16 && !halves {
            continue;
        }
        let case = Case {
            shape,
            dtype,
            recompute,
            ..CASE
        };
        let inputs = case.inputs();
        let expected = case.expected(&inputs);
        case.check_ways(&inputs, &expected, &device, true);
        if shape[0] < 33 {
            case.check_ways(&inputs, &expected, &device, false);
        }
    }
}

impl Case {
    /// Checks `relu(norm(x)) + x`, and the ReLU of `x`, which is computed before that if it is the
    /// `first`.
    fn check_ways(&self, inputs: &Inputs, expected: &Outputs, device: &Device, first: bool) {
        let tracked = match self.recompute {
            true => device.clone().autodiff().gradient_checkpointing(),
            false => device.clone().autodiff(),
        };
        let parameter = |values: &[f32]| {
            Tensor::from_inner(Tensor::<1>::from_floats(values, device)).to_device(&tracked)
        };
        let parameters = || [parameter(&inputs.weight), parameter(&inputs.bias)];
        let x = Tensor::from_inner(self.tensor(&inputs.x, device));
        let x = x.to_device(&tracked).require_grad();
        let x_again = x.clone().mul_scalar(1.0);
        let before = first.then(|| relu(x_again.clone()));
        let then = ThenNorm {
            relu: true,
            plus: Some(x_again.clone()),
            ..ThenNorm::default()
        };
        let (output, _) = batch_norm_train(x_again.clone(), parameters(), EPSILON, then);
        let rectified = before.unwrap_or_else(|| relu(x_again));
        let dy = || Tensor::from_inner(self.tensor(&inputs.dy, device)).to_device(&tracked);
        let loss = output.clone() * dy() + rectified * dy();
        let mut gradients = loss.cast(FloatDType::F32).sum().backward();
        let dx = numbers(x.grad_remove(&mut gradients).unwrap());
        let tolerance = match self.dtype {
            FloatDType::F32 => 3e-5,
            _ => 3e-3,
        };
        let values =
            |sum: &dyn Fn(usize) -> f64| -> Vec<f64> { (0..inputs.x.len()).map(sum).collect() };
        let [x, dy] = [&inputs.x, &inputs.dy].map(|values| move |at: usize| f64::from(values[at]));
        let expected_y = values(&|at| expected.y[at] + x(at));
        let expected_dx = values(&|at| {
            let rectified = if x(at) > 0.0 { dy(at) } else { 0.0 };
            expected.dx[at] + dy(at) + rectified
        });
        let name = |what: &str| format!("{what} of {self:?}, first {first}");
        close(&name("y"), &expected_y, &numbers(output), tolerance);
        close(&name("dx"), &expected_dx, &dx, tolerance);
        // The same without a graph, with the batch's moments.
        let vector = |values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            Tensor::<1>::from_floats(values.as_slice(), device)
        };
        let x = self.tensor(&inputs.x, device);
        let then = ThenNorm {
            relu: true,
            plus: Some(x.clone()),
            ..ThenNorm::default()
        };
        let parameters = [&inputs.weight, &inputs.bias]
            .map(|values| Tensor::<1>::from_floats(values.as_slice(), device));
        let moments = [vector(&expected.mean), vector(&expected.variance)];
        let output = batch_norm(x, parameters, moments, EPSILON, then);
        close(
            &name("y in evaluation"),
            &expected_y,
            &numbers(output),
            tolerance,
        );
    }
}
