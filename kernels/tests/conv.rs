//! Convolutions compared with a reference in f64: random shapes, all methods, all instruction sets.

mod common;

use common::{assert_close, assert_same_bits, every_isa, random, wide};
use kernels::KernelError;
use kernels::cpu::{Conv2d, ConvMethod, Kernels};
use proptest::prelude::*;

/// Calls `visit` with the offsets of input, weight and output of every product.
fn products(shape: &Conv2d, mut visit: impl FnMut(usize, usize, usize)) {
    let [rows, columns] = shape.output_size().unwrap();
    let [kernel_rows, kernel_columns] = shape.kernel;
    for n in 0..shape.batch {
        for (y, x) in (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x))) {
            for (i, j) in (0..kernel_rows).flat_map(|i| (0..kernel_columns).map(move |j| (i, j))) {
                let row = (y * shape.stride[0] + i).wrapping_sub(shape.padding[0]);
                let column = (x * shape.stride[1] + j).wrapping_sub(shape.padding[1]);
                if row >= shape.height || column >= shape.width {
                    continue;
                }
                let input = ((n * shape.height + row) * shape.width + column) * shape.in_channels;
                let output = ((n * rows + y) * columns + x) * shape.out_channels;
                for o in 0..shape.out_channels {
                    for c in 0..shape.in_channels {
                        let tap = i * kernel_columns + j;
                        let weight =
                            (o * shape.in_channels + c) * kernel_rows * kernel_columns + tap;
                        visit(input + c, weight, output + o);
                    }
                }
            }
        }
    }
}

fn sizes(shape: &Conv2d) -> [usize; 3] {
    let [rows, columns] = shape.output_size().unwrap();
    [
        shape.batch * shape.height * shape.width * shape.in_channels,
        shape.out_channels * shape.in_channels * shape.kernel[0] * shape.kernel[1],
        shape.batch * rows * columns * shape.out_channels,
    ]
}

fn check(kernels: &[Kernels], shape: &Conv2d, method: ConvMethod, tolerance: f64) {
    let [input, weight, output] = sizes(shape);
    let (x, w, dy) = (random(input, 1), random(weight, 2), random(output, 3));
    let (x64, w64, dy64) = (wide(&x), wide(&w), wide(&dy));
    let (mut y, mut dx, mut dw) = (vec![0.0; output], vec![0.0; input], vec![0.0; weight]);
    products(shape, |i, k, o| {
        y[o] += x64[i] * w64[k];
        dx[i] += dy64[o] * w64[k];
        dw[k] += dy64[o] * x64[i];
    });
    for kernels in kernels {
        let what = |part: &str| format!("{part} {} {method:?} {shape:?}", kernels.isa().name());
        // Filled with NaN, which must be overwritten.
        let (mut a, mut b) = (vec![f32::NAN; output], vec![f32::NAN; input]);
        let mut c = vec![f32::NAN; weight];
        kernels.conv2d(shape, method, &x, &w, &mut a).unwrap();
        assert_close(&a, &y, tolerance, &what("forward"));
        kernels
            .conv2d_input_gradient(shape, method, &dy, &w, &mut b)
            .unwrap();
        assert_close(&b, &dx, tolerance, &what("input gradient"));
        kernels
            .conv2d_weight_gradient(shape, method, &x, &dy, &mut c)
            .unwrap();
        assert_close(&c, &dw, tolerance, &what("weight gradient"));
    }
}

fn shape(batch: usize, size: [usize; 2], channels: [usize; 2]) -> Conv2d {
    Conv2d {
        batch,
        height: size[0],
        width: size[1],
        in_channels: channels[0],
        out_channels: channels[1],
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
    }
}

#[test]
fn layers_of_real_networks() {
    let kernels = every_isa();
    let first = shape(2, [32, 32], [3, 16]);
    check(&kernels, &first, ConvMethod::Auto, 1e-5);
    for padding in [0, 1] {
        let cnn = Conv2d {
            padding: [padding; 2],
            ..shape(3, [26, 26], [32, 64])
        };
        check(&kernels, &cnn, ConvMethod::Auto, 2e-5);
        check(&kernels, &cnn, ConvMethod::Direct, 1e-5);
    }
    check(
        &kernels,
        &shape(5, [8, 8], [160, 144]),
        ConvMethod::Auto,
        2e-5,
    );
    let strided = Conv2d {
        stride: [2, 2],
        ..shape(2, [16, 16], [64, 128])
    };
    check(&kernels, &strided, ConvMethod::Auto, 1e-5);
    let shortcut = Conv2d {
        kernel: [1, 1],
        padding: [0, 0],
        ..strided
    };
    check(&kernels, &shortcut, ConvMethod::Auto, 1e-5);
    let pointwise = Conv2d {
        stride: [1, 1],
        ..shortcut
    };
    check(&kernels, &pointwise, ConvMethod::Auto, 1e-5);
    let stem = Conv2d {
        kernel: [7, 7],
        stride: [2, 2],
        padding: [3, 3],
        ..shape(1, [32, 30], [3, 24])
    };
    check(&kernels, &stem, ConvMethod::Auto, 1e-5);
    let patches = Conv2d {
        kernel: [4, 4],
        stride: [4, 4],
        padding: [0, 0],
        ..shape(2, [16, 16], [3, 40])
    };
    check(&kernels, &patches, ConvMethod::Auto, 1e-5);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_shape_direct(
        batch in 1usize..4, size in [1usize..12, 1usize..12], channels in [1usize..36, 1usize..36],
        kernel in [1usize..5, 1usize..5], stride in [1usize..4, 1usize..4],
        padding in [0usize..4, 0usize..4],
    ) {
        let shape = Conv2d { kernel, stride, padding, ..shape(batch, size, channels) };
        if shape.output_size().is_ok() {
            check(&every_isa(), &shape, ConvMethod::Direct, 1e-5);
            check(&every_isa(), &shape, ConvMethod::Auto, 2e-5);
        }
    }

    #[test]
    fn any_shape_winograd(
        batch in 1usize..4, size in [1usize..14, 1usize..14], channels in [1usize..40, 1usize..40],
        padding in [0usize..3, 0usize..3],
    ) {
        let shape = Conv2d { padding, ..shape(batch, size, channels) };
        if shape.output_size().is_ok() {
            check(&every_isa(), &shape, ConvMethod::Winograd, 2e-5);
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for kernels in every_isa() {
        for (shape, method) in [
            (shape(9, [12, 12], [48, 40]), ConvMethod::Winograd),
            (shape(9, [12, 12], [48, 40]), ConvMethod::Direct),
            (
                Conv2d {
                    stride: [2, 2],
                    ..shape(7, [15, 15], [20, 36])
                },
                ConvMethod::Direct,
            ),
            (
                Conv2d {
                    kernel: [1, 1],
                    padding: [0, 0],
                    ..shape(7, [15, 15], [64, 96])
                },
                ConvMethod::Auto,
            ),
        ] {
            let [input, weight, output] = sizes(&shape);
            let (x, w, dy) = (random(input, 1), random(weight, 2), random(output, 3));
            assert_same_bits(&format!("{shape:?} {method:?}"), || {
                let (mut y, mut dx) = (vec![0.0; output], vec![0.0; input]);
                let mut dw = vec![0.0; weight];
                kernels.conv2d(&shape, method, &x, &w, &mut y).unwrap();
                kernels
                    .conv2d_input_gradient(&shape, method, &dy, &w, &mut dx)
                    .unwrap();
                kernels
                    .conv2d_weight_gradient(&shape, method, &x, &dy, &mut dw)
                    .unwrap();
                [y, dx, dw].concat()
            });
        }
    }
}

#[test]
fn wrong_lengths_are_errors() {
    let kernels = Kernels::new().unwrap();
    let shape = shape(1, [4, 4], [2, 2]);
    let [input, weight, output] = sizes(&shape);
    let (x, w, mut y) = (vec![0.0; input], vec![0.0; weight + 1], vec![0.0; output]);
    let error = kernels
        .conv2d(&shape, ConvMethod::Auto, &x, &w, &mut y)
        .unwrap_err();
    let expected = KernelError::Length {
        op: "conv2d",
        what: "weight",
        expected: weight,
        found: weight + 1,
    };
    assert_eq!(error, expected);
}
