//! Dropout: the zeros are compared with a plain Philox from the device's seed.

use std::sync::{Mutex, PoisonError};

use burn::tensor::{Device, FloatDType, Tensor};
use kernels::gpu::{ThenNorm, batch_norm_train, dropout};

use crate::EPSILON;
use crate::check::{close, device, numbers};

/// Held from the seed to the draws, because tests run in parallel and share the process's
/// generator.
static GENERATOR: Mutex<()> = Mutex::new(());

/// Returns the four numbers of Philox4x32-10 for a counter below 2³² and a key of 64 bits, by
/// Salmon et al. 2011.
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
    // The authors' test vector for zeros.
    assert_eq!(
        philox(0, [0; 2]),
        [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]
    );
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
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
        let below = (rate * 65_536.0f64).round() as u32;
        let share = (65_536.0 / (65_536.0 - f64::from(below))) as f32;
        let expected = |value: f32| -> Vec<f64> {
            let places = (0..batch * channels * height * width).map(|at| {
                // Images are channels-last in memory, in any input layout.
                let (pixel, plane) = (at % (height * width), at / (height * width));
                let (image, channel) = (plane / channels, plane % channels);
                (image * height * width + pixel) * channels + channel
            });
            let value_at = |place: usize| {
                let four = philox((place / 8) as u32, [key[0], key[1]]);
                let drawn = four[place / 2 % 4] >> (16 * (place % 2)) & 0xffff;
                match drawn < below {
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

/// Returns result and gradients of a normalization followed by dropout, in one operation or in two.
fn normalised(
    device: &Device,
    dtype: FloatDType,
    shape: [usize; 4],
    together: bool,
) -> Vec<Vec<f64>> {
    let tracked = device.clone().autodiff();
    let [_, channels, _, _] = shape;
    let filled = |count: usize, modulus: usize| {
        let values: Vec<f32> = (0..count)
            .map(|at| (at * 7 % modulus) as f32 / 4.0 - 1.0)
            .collect();
        Tensor::<1>::from_floats(values.as_slice(), &tracked)
    };
    let count = shape.iter().product();
    let x = filled(count, 23).reshape(shape).cast(dtype);
    let dy = filled(count, 11).reshape(shape).cast(dtype);
    let x = x.detach().require_grad();
    let [weight, bias] = [13, 5].map(|modulus| filled(channels, modulus).require_grad());
    let parameters = [weight.clone(), bias.clone()];
    device.seed(7);
    let then = ThenNorm {
        relu: true,
        drop: if together { RATE } else { 0.0 },
        plus: None,
    };
    let (out, _) = batch_norm_train(x.clone(), parameters, EPSILON, then);
    let out = match together {
        true => out,
        false => dropout(out, RATE),
    };
    let loss = (out.clone() * dy).cast(FloatDType::F32).sum();
    let mut gradients = loss.backward();
    let dx = numbers(x.grad_remove(&mut gradients).unwrap());
    let parameters = [weight, bias].map(|p| numbers(p.grad_remove(&mut gradients).unwrap()));
    [vec![numbers(out), dx], parameters.to_vec()].concat()
}

const RATE: f64 = 0.3;

#[test]
fn gpu_dropout_behind_a_normalization_drops_the_same() {
    let Some(device) = device("dropout behind a normalization on a GPU") else {
        return;
    };
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    for (dtype, tolerance) in [(FloatDType::F32, 1e-5), (FloatDType::F16, 4e-3)] {
        for shape in [[2, 16, 5, 7], [3, 6, 5, 1], [1, 3, 3, 3]] {
            let [together, apart] = [true, false].map(|t| normalised(&device, dtype, shape, t));
            for (found, expected) in together.iter().zip(&apart) {
                close(&format!("{dtype:?} {shape:?}"), expected, found, tolerance);
            }
        }
    }
}
