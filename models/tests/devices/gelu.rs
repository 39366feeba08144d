//! GELU compared with its definition, with the normal distribution integrated from its density.

use burn::tensor::{FloatDType, Tensor};
use kernels::gpu::gelu;

use crate::check::{close, device, numbers};
use crate::inputs::{CASE, Case};

/// Returns Φ(x) as the integral of the density (Simpson's rule).
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
            // Values where Φ is 0 or 1.
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
