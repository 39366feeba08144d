//! Compares with the definition in f64, if `BURN_DIST_TEST_DEVICE` is `cuda`, for example on CUDA
//! in software (docs/internals/soft-cuda.md).

use burn::backend::Cube;
use burn::tensor::{Device, FloatDType, Tensor};

use super::super::matrix::primitive;
use super::super::operation::{BackwardInput, Operation, ToFirst};
use super::super::test_device::device;
use super::FlashAttention;

#[derive(Clone, Copy, Debug)]
struct Case {
    images: usize,
    tokens: usize,
    heads: usize,
    depth: usize,
}

/// The result, and the gradient of queries, keys and values.
type Results = [Vec<f64>; 2];

impl Case {
    fn width(&self) -> usize {
        self.heads * self.depth
    }

    /// The index of a number of a token's query, key or value.
    fn at(&self, image: usize, token: usize, part: usize, head: usize) -> usize {
        (((image * self.tokens + token) * 3 + part) * self.heads + head) * self.depth
    }

    fn at_result(&self, image: usize, token: usize, head: usize) -> usize {
        ((image * self.tokens + token) * self.heads + head) * self.depth
    }

    /// Draws queries, keys and values, and the result's gradient, with numbers that the type can
    /// represent.
    fn draw(&self, dtype: FloatDType) -> [Tensor<3>; 2] {
        let mut random = fastrand::Rng::with_seed(5);
        [3 * self.width(), self.width()].map(|width| {
            let count = self.images * self.tokens * width;
            let values: Vec<f32> = (0..count).map(|_| 4.0 * random.f32() - 2.0).collect();
            let values = Tensor::<1>::from_floats(values.as_slice(), &Device::flex());
            let values = values.cast(dtype);
            values.reshape([self.images, self.tokens, width])
        })
    }

    fn expected(&self, [qkv, dy]: &[Vec<f64>; 2]) -> Results {
        let mut out = [vec![0.0; dy.len()], vec![0.0; qkv.len()]];
        for image in 0..self.images {
            for head in 0..self.heads {
                for token in 0..self.tokens {
                    self.add_token([qkv, dy], (image, head, token), &mut out);
                }
            }
        }
        out
    }

    /// Adds the result of one query, and its part of all gradients.
    fn add_token(
        &self,
        [qkv, dy]: [&Vec<f64>; 2],
        (image, head, token): (usize, usize, usize),
        [result, gradient]: &mut Results,
    ) {
        let scale = (self.depth as f64).powf(-0.5);
        let of = |part, other| self.at(image, other, part, head);
        let query = of(0, token);
        let to = self.at_result(image, token, head);
        let dot = |a: &[f64], at: usize, b: &[f64], bt: usize| -> f64 {
            (0..self.depth).map(|i| a[at + i] * b[bt + i]).sum()
        };
        let scores = (0..self.tokens).map(|other| dot(qkv, query, qkv, of(1, other)) * scale);
        let shares: Vec<f64> = scores.map(f64::exp).collect();
        let sum: f64 = shares.iter().sum();
        let slopes = (0..self.tokens).map(|other| dot(dy, to, qkv, of(2, other)));
        let slopes: Vec<f64> = slopes.collect();
        let shared: Vec<f64> = shares.iter().map(|share| share / sum).collect();
        let mean: f64 = shared.iter().zip(&slopes).map(|(a, b)| a * b).sum();
        for (other, (share, slope)) in shared.iter().zip(&slopes).enumerate() {
            let slope = share * (slope - mean) * scale;
            for i in 0..self.depth {
                result[to + i] += share * qkv[of(2, other) + i];
                gradient[query + i] += slope * qkv[of(1, other) + i];
                gradient[of(1, other) + i] += slope * qkv[query + i];
                gradient[of(2, other) + i] += share * dy[to + i];
            }
        }
    }
}

fn numbers(tensor: Tensor<3>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().iter().collect()
}

fn compute(device: &Device, case: Case, given: &[Tensor<3>; 2], dtype: FloatDType) -> Results {
    let on = |tensor: &Tensor<3>| {
        primitive(Tensor::<3>::from_data(
            tensor.clone().into_data(),
            (device, dtype.into()),
        ))
    };
    let [qkv, dy] = given.each_ref().map(on);
    let flash = FlashAttention::new(&qkv, case.heads).unwrap();
    let result = flash.forward([qkv.clone()]);
    let given = BackwardInput {
        x: flash.reads_input().then_some(qkv),
        dy,
        to_first: ToFirst {
            is_wanted: true,
            plus: None,
        },
    };
    let [gradient] = flash.backward(given);
    [result, gradient.unwrap()].map(|found| numbers(Tensor::from_primitive::<Cube>(found)))
}

#[test]
fn attention_on_tensor_cores_is_that_of_the_definition() {
    let Some(device) = device("attention on tensor cores") else {
        return;
    };
    let sizes = [
        (1, 1, 1, 16),
        (2, 15, 3, 16),
        (2, 32, 2, 48),
        (1, 65, 3, 64),
        (1, 197, 1, 64),
        (1, 40, 2, 128),
    ];
    for (images, tokens, heads, depth) in sizes {
        let case = Case {
            images,
            tokens,
            heads,
            depth,
        };
        // Weights, slopes and results are rounded to the type, or weights and slopes to two halves.
        for (dtype, rounding) in [
            (FloatDType::BF16, 2e-2),
            (FloatDType::F16, 3e-3),
            (FloatDType::F32, 3e-5),
        ] {
            if dtype == FloatDType::F32 && depth > 64 {
                continue;
            }
            let given = case.draw(dtype);
            let expected = case.expected(&given.each_ref().map(|g| numbers(g.clone())));
            let results = compute(&device, case, &given, dtype);
            for (what, (found, expected)) in results.iter().zip(&expected).enumerate() {
                let most = expected.iter().fold(0.0f64, |most, v| most.max(v.abs()));
                for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
                    assert!(
                        (found - expected).abs() <= rounding * most,
                        "{} at {at}: {found} instead of {expected}, {case:?} in {dtype:?}",
                        ["result", "gradient"][what]
                    );
                }
            }
            let again = compute(&device, case, &given, dtype);
            assert!(results == again, "other bits in a second run, {case:?}");
        }
    }
}

#[test]
fn heads_that_tensor_cores_lack_are_left_on_tensor_cores() {
    let Some(device) = device("heads that are left") else {
        return;
    };
    let takes = |width: usize, heads: usize, dtype: FloatDType| {
        let qkv = Tensor::<3>::zeros([2, 5, width], (&device, dtype.into()));
        FlashAttention::new(&primitive(qkv), heads).is_some()
    };
    assert!(takes(96, 2, FloatDType::F16));
    assert!(takes(96, 2, FloatDType::F32));
    assert!(!takes(3 * 128, 1, FloatDType::F32));
    assert!(!takes(48, 2, FloatDType::F16));
    assert!(!takes(3 * 256, 1, FloatDType::F16));
}
