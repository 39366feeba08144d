//! Max-pooling, and the gradient among several largest numbers.

use burn::tensor::Tensor;
use kernels::gpu::{PoolOptions, max_pool2d};

use crate::check::{close, device, numbers};

/// Returns the largest numbers of each window and their places in `x`, the first if several are
/// equal.
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
            // Few distinct numbers, so that many are equal.
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
