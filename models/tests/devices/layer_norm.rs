//! Layer normalization compared with its definition.

use burn::tensor::{FloatDType, Tensor};
use kernels::gpu::layer_norm;

use crate::EPSILON;
use crate::check::{close, device, numbers};
use crate::inputs::{CASE, Case, Inputs};

/// Returns output and gradients of input, weight and bias of a layer normalization.
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
    // One and many rows and features, and sizes that neither vectors nor cubes divide; many parts.
    for size in [
        [1, 5],
        [3, 7],
        [70, 192],
        [300, 33],
        [9, 1030],
        [4000, 12],
        [2100, 255],
    ] {
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
