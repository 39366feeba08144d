//! The softmax of rows, also of numbers whose exponentials overflow.

use burn::tensor::{FloatDType, Tensor};
use kernels::gpu::softmax;

use crate::check::{close, device, numbers};
use crate::inputs::{CASE, Case, Inputs};

/// Returns the softmax of each row, and the gradient of the input.
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
            // Their exponentials would overflow.
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
            // With one column only rounding errors remain, and f16 rounds the shares.
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
