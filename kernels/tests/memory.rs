//! Every kernel once on small, ragged shapes, between guard values: what the memory checkers run.
//!
//! `MIRIFLAGS="-Zmiri-tree-borrows -Zmiri-ignore-leaks" cargo +nightly miri test -p
//! burn-dist-kernels --test memory` (portable path only; the crate `gemm` uses inline assembly, so
//! products stay out).

mod common;

use common::{every_isa, random};
use kernels::cpu::{
    Attention, BatchNorm, BatchNormGradients, Conv2d, ConvMethod, Epilogue, MaxPool2d, Moments,
    Rows,
};

/// Numbers between guard values, which reveal a write beyond the slice.
struct Guarded(Vec<f32>);

impl Guarded {
    const GUARD: usize = 32;

    fn new(length: usize) -> Self {
        Self(vec![12345.0; length + 2 * Self::GUARD])
    }

    fn slice(&mut self) -> &mut [f32] {
        let end = self.0.len() - Self::GUARD;
        &mut self.0[Self::GUARD..end]
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let end = self.0.len() - Self::GUARD;
        let guards = self.0[..Self::GUARD].iter().chain(&self.0[end..]);
        if !std::thread::panicking() {
            assert!(
                guards.copied().all(|value| value == 12345.0),
                "written beyond the slice"
            );
        }
    }
}

#[test]
fn convolutions() {
    for kernels in every_isa() {
        for (kernel, stride, padding, method) in [
            ([3, 3], [1, 1], [1, 1], ConvMethod::Winograd),
            ([3, 3], [1, 1], [0, 2], ConvMethod::Winograd),
            ([3, 3], [1, 1], [1, 1], ConvMethod::Direct),
            ([3, 2], [2, 1], [1, 0], ConvMethod::Direct),
            ([2, 2], [3, 3], [0, 0], ConvMethod::Direct),
        ] {
            let shape = Conv2d {
                batch: 2,
                height: 5,
                width: 6,
                in_channels: 5,
                out_channels: 9,
                kernel,
                stride,
                padding,
            };
            let [rows, columns] = shape.output_size().unwrap();
            let sizes = [
                2 * 5 * 6 * 5,
                9 * 5 * kernel[0] * kernel[1],
                2 * rows * columns * 9,
            ];
            let [x, w, dy] = sizes.map(|size| random(size, 1));
            let [mut dx, mut dw, mut y] = sizes.map(Guarded::new);
            kernels.conv2d(&shape, method, &x, &w, y.slice()).unwrap();
            kernels
                .conv2d_input_gradient(&shape, method, &dy, &w, dx.slice())
                .unwrap();
            kernels
                .conv2d_weight_gradient(&shape, method, &x, &dy, dw.slice())
                .unwrap();
        }
    }
}

#[test]
fn layers() {
    let shape = Rows {
        rows: 3,
        columns: 19,
    };
    let [x, dy] = [1, 2].map(|seed| random(57, seed));
    let [w, b] = [3, 4].map(|seed| random(19, seed));
    for kernels in every_isa() {
        let [mut large, mut more] = [57, 57].map(Guarded::new);
        let [mut small, mut other] = [19, 19].map(Guarded::new);
        let parameters = [&w[..], &b[..]];
        kernels.gelu(&x, large.slice()).unwrap();
        kernels.gelu_gradient(&x, &dy, large.slice()).unwrap();
        kernels.relu_gradient(&x, large.slice()).unwrap();
        kernels
            .finish(
                shape,
                large.slice(),
                &Epilogue {
                    bias: Some(&b),
                    residual: Some(&x),
                    relu: true,
                    ..Epilogue::default()
                },
            )
            .unwrap();
        kernels.bias_gradient(shape, &x, small.slice()).unwrap();
        kernels
            .layer_norm(shape, 1e-6, &x, parameters, large.slice())
            .unwrap();
        let result = [large.slice(), small.slice(), other.slice()];
        kernels
            .layer_norm_gradient(shape, 1e-6, &x, &w, &dy, result)
            .unwrap();
        let (mut mean, mut variance) = (w.clone(), w.clone());
        kernels
            .batch_norm_moments(shape, &x, &mut mean, &mut variance)
            .unwrap();
        let moments = Moments {
            mean: &mean,
            variance: &variance,
            of_batch: true,
        };
        let norm = BatchNorm {
            shape,
            epsilon: 1e-5,
            relu: true,
        };
        kernels
            .batch_norm(&norm, &x, parameters, &moments, large.slice())
            .unwrap();
        let result = BatchNormGradients {
            input: large.slice(),
            more: Some(&dy),
            weight: small.slice(),
            bias: other.slice(),
        };
        kernels
            .batch_norm_gradient(&norm, &x, parameters, &moments, &dy, result)
            .unwrap();
        let mut losses = Guarded::new(3);
        let (losses, gradient) = (losses.slice(), more.slice());
        kernels
            .cross_entropy(shape, 0.1, &x, &[0, 7, 18], losses, gradient)
            .unwrap();
    }
}

#[test]
fn attention() {
    let shape = |bf16| Attention {
        batch: 2,
        tokens: 5,
        heads: 2,
        depth: 3,
        scale: 0.5,
        bf16,
    };
    let (qkv, dy) = (random(180, 1), random(60, 2));
    for kernels in every_isa() {
        for shape in [shape(false), shape(true)] {
            let (mut y, mut dx) = (Guarded::new(60), Guarded::new(180));
            kernels.attention(&shape, &qkv, y.slice()).unwrap();
            kernels
                .attention_gradient(&shape, &qkv, &dy, dx.slice())
                .unwrap();
        }
    }
}

#[test]
fn max_pool() {
    let shape = MaxPool2d {
        batch: 2,
        height: 5,
        width: 4,
        channels: 5,
        kernel: [3, 3],
        stride: [2, 2],
        padding: [1, 1],
    };
    let x = random(200, 1);
    for kernels in every_isa() {
        let (mut y, mut dx) = (Guarded::new(60), Guarded::new(200));
        kernels.max_pool2d(&shape, &x, y.slice()).unwrap();
        let dy = random(60, 2);
        kernels
            .max_pool2d_gradient(&shape, &x, y.slice(), &dy, dx.slice())
            .unwrap();
    }
}

#[test]
fn dropout_and_transposition() {
    let x = random(2 * 19 * 7, 1);
    let shape = Rows {
        rows: 19,
        columns: 7,
    };
    for kernels in every_isa() {
        let mut y = Guarded::new(x.len());
        kernels.dropout(0.5, 3, &x, y.slice()).unwrap();
        kernels.transpose(2, shape, &x, y.slice()).unwrap();
    }
}
