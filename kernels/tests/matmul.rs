//! Matrix products compared with references in f64 on all instruction sets and paths of bf16.

mod common;

use common::{assert_close, assert_same_bits, bf16, every_bf16_path, name, random};
use kernels::cpu::{Bf16Path, Epilogue, Input, Isa, Kernels, Matmul, Rows};
use proptest::prelude::*;

fn reference(shape: &Matmul, left: &[f32], right: &[f32], round: impl Fn(f32) -> f32) -> Vec<f64> {
    let Matmul {
        rows,
        columns,
        depth,
        ..
    } = *shape;
    let mut product = vec![0.0; rows * columns];
    for i in 0..rows {
        for k in 0..depth {
            let a = left[if shape.left_transposed {
                k * rows + i
            } else {
                i * depth + k
            }];
            for j in 0..columns {
                let b = right[if shape.right_transposed {
                    j * depth + k
                } else {
                    k * columns + j
                }];
                product[i * columns + j] += f64::from(round(a)) * f64::from(round(b));
            }
        }
    }
    product
}

fn check(kernels: &[Kernels], shape: &Matmul) {
    let left = random(shape.rows * shape.depth, 1);
    let right = random(shape.depth * shape.columns, 2);
    let exact = reference(shape, &left, &right, |value| value);
    let rounded = reference(shape, &left, &right, bf16);
    for kernels in kernels {
        let what = |part: &str| format!("{part} {} {shape:?}", name(kernels));
        for (precision, reference, what) in [
            (Precision::F32, &exact, what("f32")),
            (Precision::Bf16, &rounded, what("bf16")),
        ] {
            let mut product = vec![f32::NAN; shape.rows * shape.columns];
            precision.matmul(kernels, shape, (&left, &right), &mut product);
            assert_close(&product, reference, 1e-5, &what);
            check_linear(kernels, precision, shape, &left, &right, product);
        }
    }
}

/// The number format of a product's factors.
#[derive(Clone, Copy)]
enum Precision {
    F32,
    Bf16,
}

impl Precision {
    fn linear(
        self,
        kernels: &Kernels,
        shape: &Matmul,
        (left, right): (Input<'_>, &[f32]),
        epilogue: &Epilogue<'_>,
        out: &mut [f32],
    ) {
        let linear = match self {
            Self::F32 => Kernels::linear,
            Self::Bf16 => Kernels::linear_bf16,
        };
        linear(kernels, shape, left, right, epilogue, out).unwrap();
    }

    fn matmul(
        self,
        kernels: &Kernels,
        shape: &Matmul,
        (left, right): (&[f32], &[f32]),
        out: &mut [f32],
    ) {
        let matmul = match self {
            Self::F32 => Kernels::matmul,
            Self::Bf16 => Kernels::matmul_bf16,
        };
        matmul(kernels, shape, left, right, out).unwrap();
    }

    fn gradients(
        self,
        kernels: &Kernels,
        size: [usize; 3],
        (x, dy): (Input<'_>, &[f32]),
        [dw, db]: [&mut [f32]; 2],
    ) {
        let gradients = match self {
            Self::F32 => Kernels::linear_gradients,
            Self::Bf16 => Kernels::linear_gradients_bf16,
        };
        gradients(kernels, size, x, dy, dw, db).unwrap();
    }
}

/// Checks that a linear layer is bitwise equal to the product followed by the epilogue; so are its
/// gradients.
fn check_linear(
    kernels: &Kernels,
    precision: Precision,
    shape: &Matmul,
    left: &[f32],
    right: &[f32],
    product: Vec<f32>,
) {
    let Matmul {
        rows,
        columns,
        depth,
        ..
    } = *shape;
    let (bias, residual) = (random(columns, 3), random(rows * columns, 4));
    let (plain, gelu) = (Input::Plain(left), Input::Gelu(left));
    let (mut activated, mut after_gelu) = (left.to_vec(), product.clone());
    kernels.gelu(left, &mut activated).unwrap();
    precision.matmul(kernels, shape, (&activated, right), &mut after_gelu);
    if shape.left_transposed && !shape.right_transposed {
        let (mut dw, mut db) = (product.clone(), bias.clone());
        dw.fill(f32::NAN);
        db.fill(f32::NAN);
        let size = [depth, rows, columns];
        precision.gradients(kernels, size, (plain, right), [&mut dw, &mut db]);
        assert_eq!(dw, product, "{shape:?}");
        precision.gradients(kernels, size, (gelu, right), [&mut dw, &mut db]);
        assert_eq!(dw, after_gelu, "{shape:?}");
        let mut sums = vec![0.0; columns];
        for (place, value) in right.iter().enumerate() {
            sums[place % columns] += f64::from(*value);
        }
        assert_close(&db, &sums, 1e-5, "bias gradient");
    }
    for epilogue in [
        Epilogue {
            bias: Some(&bias),
            residual: None,
            relu: true,
            ..Epilogue::default()
        },
        Epilogue {
            bias: Some(&bias),
            residual: Some(&residual),
            relu: false,
            ..Epilogue::default()
        },
        Epilogue {
            gelu_input: Some(&residual),
            ..Epilogue::default()
        },
    ] {
        for (input, product) in [(plain, &product), (gelu, &after_gelu)] {
            let mut layer = vec![f32::NAN; rows * columns];
            precision.linear(kernels, shape, (input, right), &epilogue, &mut layer);
            let mut expected = product.clone();
            kernels
                .finish(Rows { rows, columns }, &mut expected, &epilogue)
                .unwrap();
            assert_eq!(layer, expected, "{shape:?}");
        }
    }
    let (mut slopes, mut expected) = (product.clone(), product.clone());
    let epilogue = Epilogue {
        gelu_input: Some(&residual),
        ..Epilogue::default()
    };
    kernels
        .finish(Rows { rows, columns }, &mut slopes, &epilogue)
        .unwrap();
    kernels
        .gelu_gradient(&residual, &product, &mut expected)
        .unwrap();
    assert_eq!(slopes, expected, "{shape:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_shape(
        rows in 1usize..90, columns in 1usize..90, depth in 1usize..120, left_transposed: bool,
        right_transposed: bool,
    ) {
        let shape = Matmul { rows, columns, depth, left_transposed, right_transposed };
        check(&every_bf16_path(), &shape);
    }
}

#[test]
fn many_blocks_in_every_direction() {
    let kernels = every_bf16_path();
    for (left_transposed, right_transposed) in [(false, false), (false, true), (true, false)] {
        let shape = |rows, columns, depth| Matmul {
            rows,
            columns,
            depth,
            left_transposed,
            right_transposed,
        };
        check(&kernels, &shape(500, 70, 33));
        check(&kernels, &shape(50, 300, 1700));
        check(&kernels, &shape(60, 50, 3000));
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    // Divided by rows and columns, by columns, and by depth and rows.
    let sizes = [[391, 260, 1100], [30, 900, 700], [280, 90, 2500]];
    for kernels in every_bf16_path() {
        for [rows, columns, depth] in sizes {
            for (left_transposed, right_transposed) in
                [(false, false), (false, true), (true, false)]
            {
                let shape = Matmul {
                    rows,
                    columns,
                    depth,
                    left_transposed,
                    right_transposed,
                };
                let (left, right) = (random(rows * depth, 1), random(depth * columns, 2));
                let bias = random(columns, 3);
                let epilogue = Epilogue {
                    bias: Some(&bias),
                    ..Epilogue::default()
                };
                assert_same_bits(&format!("{shape:?}"), || {
                    let mut all = Vec::new();
                    for precision in [Precision::F32, Precision::Bf16] {
                        let mut out = vec![0.0; rows * columns];
                        let factors = (Input::Gelu(&left), &right[..]);
                        precision.linear(&kernels, &shape, factors, &epilogue, &mut out);
                        all.extend(out);
                    }
                    all
                });
            }
        }
    }
}

/// Makes numbers by length and seed.
type Numbers<'a> = &'a dyn Fn(usize, u64) -> Vec<f32>;

/// Returns numbers near `2^exponent`, among them zeros, and subnormal ones near the smallest normal.
fn near(exponent: i32) -> impl Fn(usize, u64) -> Vec<f32> {
    move |length, seed| {
        let mut source = fastrand::Rng::with_seed(seed);
        let mut value = || match source.u32(0..20) {
            0 => 0.0,
            _ => (source.f64() - 0.5) * 2f64.powi(exponent + source.i32(0..4)),
        };
        (0..length).map(|_| value() as f32).collect()
    }
}

/// Returns numbers, some of them infinite.
fn infinite(length: usize, seed: u64) -> Vec<f32> {
    let mut numbers = random(length, seed);
    for number in numbers.iter_mut().step_by(97) {
        *number = f32::INFINITY;
    }
    numbers
}

/// Such a right matrix is copied first, as its columns share a set of the cache.
#[test]
fn a_right_matrix_with_rows_of_whole_pages_multiplies_as_its_transpose() {
    let kernels = Kernels::new().unwrap();
    for (rows, columns, depth) in [(70, 130, 1024), (130, 64, 3072), (64, 65, 4096)] {
        let (left, right) = (random(rows * depth, 1), random(depth * columns, 2));
        let mut turned = vec![0.0; depth * columns];
        for (place, value) in right.iter().enumerate() {
            turned[place % depth * columns + place / depth] = *value;
        }
        let shape = |right_transposed| Matmul {
            rows,
            columns,
            depth,
            left_transposed: false,
            right_transposed,
        };
        let mut products = [vec![0.0; rows * columns], vec![0.0; rows * columns]];
        let [as_is, plain] = &mut products;
        kernels.matmul(&shape(true), &left, &right, as_is).unwrap();
        kernels
            .matmul(&shape(false), &left, &turned, plain)
            .unwrap();
        let [as_is, plain] = products.map(|all| all.into_iter().map(f32::to_bits));
        assert!(as_is.eq(plain), "{rows} × {columns} × {depth}");
    }
}

#[test]
fn amx_computes_what_its_emulation_does() {
    let paths = [Bf16Path::Amx, Bf16Path::AmxEmulated].map(|path| {
        let kernels = Kernels::with_isa(Isa::best()).unwrap();
        kernels.set_bf16_path(path).map(|()| kernels)
    });
    let [Ok(amx), Ok(emulated)] = paths else {
        eprintln!("SKIPPED: this machine lacks AMX");
        return;
    };
    let sizes = [
        [1, 1, 1],
        [16, 16, 32],
        [32, 32, 64],
        [65, 65, 65],
        [130, 70, 900],
        [47, 33, 1700],
    ];
    for (seed, [rows, columns, depth]) in sizes.into_iter().enumerate() {
        for (left_transposed, right_transposed) in [(false, false), (false, true), (true, false)] {
            let shape = Matmul {
                rows,
                columns,
                depth,
                left_transposed,
                right_transposed,
            };
            let both: [[Numbers<'_>; 2]; 5] = [
                [&random, &random],
                [&near(-128), &near(60)],
                [&near(-64), &near(-64)],
                [&near(64), &near(62)],
                [&infinite, &infinite],
            ];
            for [left, right] in both {
                let left = left(rows * depth, seed as u64);
                let right = right(depth * columns, seed as u64 + 9);
                let [hardware, software] = [&amx, &emulated].map(|kernels| {
                    let mut product = vec![0.0; rows * columns];
                    kernels
                        .matmul_bf16(&shape, &left, &right, &mut product)
                        .unwrap();
                    product
                });
                for (place, (hardware, software)) in hardware.iter().zip(&software).enumerate() {
                    let same = hardware.to_bits() == software.to_bits();
                    let nan = hardware.is_nan() && software.is_nan();
                    assert!(same || nan, "{shape:?} {place}: {hardware:e} {software:e}");
                }
            }
        }
    }
}

#[test]
fn wrong_lengths_are_errors() {
    let kernels = Kernels::new().unwrap();
    let shape = Matmul {
        rows: 2,
        columns: 3,
        depth: 4,
        left_transposed: false,
        right_transposed: false,
    };
    let error = kernels
        .matmul(&shape, &[0.0; 7], &[0.0; 12], &mut [0.0; 6])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "matmul: `left` has 7 elements, but the shape needs 8"
    );
    assert!(
        kernels
            .matmul_bf16(&shape, &[0.0; 8], &[0.0; 12], &mut [0.0; 5])
            .is_err()
    );
    let x = Input::Plain(&[0.0; 8]);
    let short = Epilogue {
        bias: Some(&[0.0; 2]),
        ..Epilogue::default()
    };
    let error = kernels
        .linear_bf16(&shape, x, &[0.0; 12], &short, &mut [0.0; 6])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "bias: `bias` has 2 elements, but the shape needs 3"
    );
    let (dw, db) = (&mut [0.0; 6], &mut [0.0; 2]);
    let error = kernels.linear_gradients_bf16([4, 2, 3], x, &[0.0; 12], dw, db);
    assert!(error.is_err());
}
