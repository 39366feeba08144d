//! ReLU, alone and of a sum, including zeros and NaN.

use burn::tensor::{Device, FloatDType, Tensor};
use kernels::gpu::{add_relu, relu};

use crate::check::{close, device, numbers};

/// Creates values on an autodiff device, in the order of images or channels-last in memory.
fn leaf(values: &[f64], shape: [usize; 4], channels_last: bool, device: &Device) -> Tensor<4> {
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    let x = Tensor::<1>::from_floats(values.as_slice(), device).reshape(shape);
    match channels_last {
        // The same numbers at the same places, in another memory layout.
        true => (x.permute([0, 2, 3, 1]) * 1.0).permute([0, 3, 1, 2]),
        false => x,
    }
}

#[test]
fn gpu_relu_is_that_of_the_definition_alone_and_of_a_sum() {
    let Some(device) = device("ReLU on a GPU") else {
        return;
    };
    let half = device.supports_dtype(FloatDType::F16);
    for (shape, last) in [
        ([2, 8, 5, 7], [true, true]),
        ([2, 8, 5, 7], [true, false]),
        ([2, 8, 5, 7], [false, false]),
        ([3, 6, 5, 1], [true, true]),
        ([1, 3, 3, 3], [false, true]),
        ([1, 1, 1, 1], [true, true]),
    ] {
        for (dtype, recompute) in [
            (FloatDType::F32, false),
            (FloatDType::F32, true),
            (FloatDType::F16, false),
        ] {
            if dtype == FloatDType::F16 && !half {
                eprintln!("SKIPPED: ReLU in f16: this device does not compute in it");
                continue;
            }
            let count = shape.iter().product();
            let mut random = fastrand::Rng::with_seed(3);
            // Few distinct numbers, so that many are zero, alone and in the sum.
            let mut draw = || -> Vec<f64> {
                let value = |_| f64::from(random.i8(-4..5)) / 4.0;
                (0..count).map(value).collect()
            };
            let (x, y, dy) = (draw(), draw(), draw());
            let tracked = match recompute {
                true => device.clone().autodiff().gradient_checkpointing(),
                false => device.clone().autodiff(),
            };
            let [of_x, of_y] = [(&x, last[0]), (&y, last[1])]
                .map(|(values, last)| leaf(values, shape, last, &tracked).require_grad());
            let weight = leaf(&dy, shape, false, &tracked);
            for sums in [false, true] {
                let inputs = [of_x.clone(), of_y.clone()].map(|values| values.cast(dtype));
                let [a, b] = inputs;
                let out = if sums { add_relu(a, b) } else { relu(a) };
                assert_eq!(FloatDType::from(out.dtype()), dtype);
                let loss = (out.clone().cast(FloatDType::F32) * weight.clone()).sum();
                let gradients = loss.backward();
                let what = format!("ReLU of {shape:?} {last:?} in {dtype:?}, of a sum: {sums}");
                let before = x.iter().zip(&y).map(|(x, y)| if sums { x + y } else { *x });
                let (expected, gradient): (Vec<f64>, Vec<f64>) = before
                    .zip(&dy)
                    .map(|(value, dy)| (value.max(0.0), if value > 0.0 { *dy } else { 0.0 }))
                    .unzip();
                close(&what, &expected, &numbers(out), 0.0);
                let dx = of_x.grad(&gradients).unwrap();
                close(&what, &gradient, &numbers(dx), 0.0);
                assert_eq!(of_y.grad(&gradients).is_some(), sums, "{what}");
                if let Some(dy) = of_y.grad(&gradients) {
                    close(&what, &gradient, &numbers(dy), 0.0);
                }
            }
        }
    }
}

#[test]
fn gpu_relu_hides_nothing_that_is_no_number() {
    let Some(device) = device("ReLU of no numbers on a GPU") else {
        return;
    };
    let tracked = device.autodiff();
    let x = Tensor::<2>::from_floats([[f32::NAN, -1.0], [2.0, f32::INFINITY]], &tracked);
    let x = x.require_grad();
    for out in [
        relu(x.clone()),
        add_relu(x.clone(), Tensor::zeros([2, 2], &tracked)),
    ] {
        let found = numbers(out.clone());
        assert!(found[0].is_nan(), "{found:?}");
        assert_eq!(found[1..], [0.0, 2.0, f64::INFINITY]);
        let dx = x.grad(&(out * 3.0).sum().backward()).unwrap();
        assert_eq!(numbers(dx), [3.0, 0.0, 3.0, 3.0]);
    }
}
