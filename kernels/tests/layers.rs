//! All operations except convolutions and products, compared with references in f64 on all
//! instruction sets.

mod common;

use common::{
    assert_close, assert_same_bits, bf16, every_bf16_path, every_isa, mean_error, name, random,
    wide,
};
use kernels::KernelError;
use kernels::cpu::{
    Attention, BatchNorm, BatchNormGradients, Bf16Path, Epilogue, Isa, Kernels, MaxPool2d, Moments,
    Rows,
};
use proptest::prelude::*;

const TOLERANCE: f64 = 1e-5;

/// Computes the error function by its Taylor series or its continued fraction.
fn erfc(z: f64) -> f64 {
    let pi = std::f64::consts::PI;
    if z < 0.0 {
        return 2.0 - erfc(-z);
    }
    if z < 2.5 {
        let (mut term, mut sum) = (z, z);
        for n in 1..200 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - 2.0 / pi.sqrt() * sum;
    }
    let fraction = (1..200)
        .rev()
        .fold(z, |tail, n| z + f64::from(n) / 2.0 / tail);
    (-z * z).exp() / pi.sqrt() / fraction
}

#[test]
fn gelu_and_its_slope() {
    let x: Vec<f32> = (-1203..1203)
        .map(|step| step as f32 * 0.01)
        .chain([50.0, -50.0])
        .collect();
    let dy = random(x.len(), 1);
    let phi = |x: f64| 0.5 * erfc(-x / 2f64.sqrt());
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let y64: Vec<_> = wide(&x).iter().map(|&x| x * phi(x)).collect();
    let slopes = wide(&x).into_iter().map(|x| phi(x) + x * density(x));
    let dx64: Vec<_> = slopes
        .zip(wide(&dy))
        .map(|(slope, dy)| slope * dy)
        .collect();
    for kernels in every_isa() {
        let (mut y, mut dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        kernels.gelu(&x, &mut y).unwrap();
        kernels.gelu_gradient(&x, &dy, &mut dx).unwrap();
        assert_close(&y, &y64, TOLERANCE, "gelu");
        assert_close(&dx, &dx64, TOLERANCE, "gelu gradient");
        // The tail too, not only the largest values; AVX-512 has the error of `1 + erf` there.
        let least = if kernels.isa() == Isa::Avx512 {
            2e-7
        } else {
            0.0
        };
        for (index, &x) in x
            .iter()
            .enumerate()
            .filter(|(_, x)| (-6.0..6.0).contains(*x))
        {
            let off = (f64::from(y[index]) - y64[index]).abs();
            assert!(
                off <= least + 3e-6 * y64[index].abs(),
                "{} {x}: {off:.1e}",
                kernels.isa().name()
            );
        }
        let mut y = [0.0];
        kernels.gelu(&[f32::NAN], &mut y).unwrap();
        assert!(y[0].is_nan(), "what is not a number must not vanish");
    }
}

/// Returns the tolerance for numbers from 1 to 5 that are divided by `deviation` after the mean is
/// subtracted. A small deviation magnifies their rounding.
fn tolerance_by(deviation: f64) -> f64 {
    let rounding = 5.0 * f64::from(f32::EPSILON);
    TOLERANCE.max(2.0 * rounding / deviation)
}

fn check_layer_norm(kernels: &[Kernels], shape: Rows) {
    let (rows, columns) = (shape.rows, shape.columns);
    let epsilon = 1e-6;
    let x: Vec<_> = random(rows * columns, 1)
        .iter()
        .map(|x| x * 2.0 + 3.0)
        .collect();
    let (weight, bias) = (random(columns, 2), random(columns, 3));
    let dy = random(rows * columns, 4);
    let (mut y64, mut dx64) = (Vec::new(), Vec::new());
    let (mut dw64, mut db64) = (vec![0.0; columns], vec![0.0; columns]);
    let mut least = f64::MAX;
    for (x, dy) in wide(&x).chunks(columns).zip(wide(&dy).chunks(columns)) {
        let n = columns as f64;
        let mean = x.iter().sum::<f64>() / n;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let deviation = (variance + f64::from(epsilon)).sqrt();
        least = least.min(deviation);
        let z: Vec<_> = x.iter().map(|x| (x - mean) / deviation).collect();
        let inner: Vec<_> = dy
            .iter()
            .zip(&weight)
            .map(|(dy, w)| dy * f64::from(*w))
            .collect();
        let plain = inner.iter().sum::<f64>() / n;
        let along = inner.iter().zip(&z).map(|(d, z)| d * z).sum::<f64>() / n;
        for c in 0..columns {
            y64.push(z[c] * f64::from(weight[c]) + f64::from(bias[c]));
            dx64.push((inner[c] - plain - z[c] * along) / deviation);
            dw64[c] += dy[c] * z[c];
            db64[c] += dy[c];
        }
    }
    for kernels in kernels {
        let what = |part: &str| format!("layer norm {part} {} {shape:?}", kernels.isa().name());
        let (mut y, mut dx) = (x.clone(), vec![f32::NAN; x.len()]);
        let (mut dw, mut db) = (vec![f32::NAN; columns], vec![f32::NAN; columns]);
        kernels
            .layer_norm(shape, epsilon, &x, [&weight, &bias], &mut y)
            .unwrap();
        let result = [&mut dx[..], &mut dw, &mut db];
        kernels
            .layer_norm_gradient(shape, epsilon, &x, &weight, &dy, result)
            .unwrap();
        let tolerance = tolerance_by(least);
        assert_close(&y, &y64, tolerance, &what("forward"));
        // With rows of one or two columns the gradient is nearly zero, the difference of large
        // terms.
        if columns > 2 {
            assert_close(&dx, &dx64, tolerance, &what("input"));
            assert_close(&dw, &dw64, tolerance, &what("weight"));
        }
        assert_close(&db, &db64, TOLERANCE, &what("bias"));
    }
}

fn check_batch_norm(kernels: &[Kernels], shape: Rows, relu: bool, of_batch: bool) {
    let (rows, columns) = (shape.rows, shape.columns);
    let norm = BatchNorm {
        shape,
        epsilon: 1e-5,
        relu,
    };
    let x: Vec<_> = random(rows * columns, 1)
        .iter()
        .map(|x| x * 2.0 + 3.0)
        .collect();
    let (weight, bias) = (random(columns, 2), random(columns, 3));
    let (dy, more) = (random(rows * columns, 4), random(rows * columns, 5));
    let given = [
        random(columns, 6),
        random(columns, 7).iter().map(|v| v.abs() + 0.1).collect(),
    ];
    let (x64, dy64, n) = (wide(&x), wide(&dy), rows as f64);
    for kernels in kernels {
        let what = |part: &str| {
            format!(
                "batch norm {part} {} {shape:?} {relu} {of_batch}",
                kernels.isa().name()
            )
        };
        let [mut mean, mut variance] = given.clone();
        let (mut y64, mut dx64) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        let (mut dw64, mut db64) = (vec![0.0; columns], vec![0.0; columns]);
        let mut least = f64::MAX;
        if of_batch {
            kernels
                .batch_norm_moments(shape, &x, &mut mean, &mut variance)
                .unwrap();
        }
        for c in 0..columns {
            let column = || x64.iter().skip(c).step_by(columns);
            let (mut centre, mut square) = (f64::from(mean[c]), f64::from(variance[c]));
            if of_batch {
                centre = column().sum::<f64>() / n;
                square = column().map(|x| (x - centre).powi(2)).sum::<f64>() / n;
                assert!((f64::from(mean[c]) - centre).abs() <= 1e-6 * centre.abs().max(1.0));
                assert!((f64::from(variance[c]) - square).abs() <= 1e-5 * square.max(1e-3));
            }
            let deviation = (square + 1e-5).sqrt();
            least = least.min(deviation);
            let (w, b) = (f64::from(weight[c]), f64::from(bias[c]));
            let z: Vec<_> = column().map(|x| (x - centre) / deviation).collect();
            let cut = |row: usize| relu && z[row] * w + b <= 0.0;
            let d: Vec<_> = (0..rows)
                .map(|row| {
                    if cut(row) {
                        0.0
                    } else {
                        dy64[row * columns + c]
                    }
                })
                .collect();
            db64[c] = d.iter().sum();
            dw64[c] = d.iter().zip(&z).map(|(d, z)| d * z).sum();
            for row in 0..rows {
                let place = row * columns + c;
                y64[place] = if cut(row) { 0.0 } else { z[row] * w + b };
                let through = if of_batch {
                    (db64[c] + z[row] * dw64[c]) / n
                } else {
                    0.0
                };
                dx64[place] = w / deviation * (d[row] - through) + f64::from(more[place]);
            }
        }
        let moments = Moments {
            mean: &mean,
            variance: &variance,
            of_batch,
        };
        let (mut y, mut dx) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
        let (mut dw, mut db) = (vec![f32::NAN; columns], vec![f32::NAN; columns]);
        kernels
            .batch_norm(&norm, &x, [&weight, &bias], &moments, &mut y)
            .unwrap();
        let result = BatchNormGradients {
            input: &mut dx,
            more: Some(&more),
            weight: &mut dw,
            bias: &mut db,
        };
        kernels
            .batch_norm_gradient(&norm, &x, [&weight, &bias], &moments, &dy, result)
            .unwrap();
        let tolerance = tolerance_by(least);
        assert_close(&y, &y64, tolerance, &what("forward"));
        // A value within rounding of ReLU's corner may fall on either side.
        let corner = relu && (0..rows * columns).any(|i| y64[i] != 0.0 && y64[i].abs() < 1e-5);
        if rows > 2 && !corner {
            assert_close(&dx, &dx64, tolerance, &what("input"));
            assert_close(&dw, &dw64, tolerance, &what("weight"));
            assert_close(&db, &db64, TOLERANCE, &what("bias"));
        }
    }
}

fn check_attention(kernels: &[Kernels], shape: &Attention) {
    let Attention {
        batch,
        tokens,
        heads,
        depth,
        scale,
        bf16: low,
    } = *shape;
    let elements = batch * tokens * heads * depth;
    let (qkv, dy) = (random(3 * elements, 1), random(elements, 2));
    let factor = |value: f64| match low {
        true => f64::from(bf16(value as f32)),
        false => value,
    };
    let factors = |values: &[f32]| wide(values).into_iter().map(factor).collect::<Vec<_>>();
    let (x, d, scale) = (factors(&qkv), factors(&dy), f64::from(scale));
    let (mut y64, mut dx64) = (vec![0.0; elements], vec![0.0; 3 * elements]);
    for n in 0..batch {
        for h in 0..heads {
            let out = |t: usize, e: usize| ((n * tokens + t) * heads + h) * depth + e;
            let place = |part: usize, t: usize, e: usize| {
                (((n * tokens + t) * 3 + part) * heads + h) * depth + e
            };
            for i in 0..tokens {
                let scores: Vec<_> = (0..tokens)
                    .map(|j| {
                        (0..depth)
                            .map(|e| x[place(0, i, e)] * x[place(1, j, e)])
                            .sum::<f64>()
                            * scale
                    })
                    .map(f64::exp)
                    .collect();
                let total: f64 = scores.iter().sum();
                let p: Vec<_> = scores.iter().map(|score| score / total).collect();
                let dp: Vec<_> = (0..tokens)
                    .map(|j| {
                        (0..depth)
                            .map(|e| d[out(i, e)] * x[place(2, j, e)])
                            .sum::<f64>()
                    })
                    .collect();
                let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
                for j in 0..tokens {
                    let ds = factor(p[j] * (dp[j] - mean) * scale);
                    let p = factor(p[j]);
                    for e in 0..depth {
                        y64[out(i, e)] += p * x[place(2, j, e)];
                        dx64[place(0, i, e)] += ds * x[place(1, j, e)];
                        dx64[place(1, j, e)] += ds * x[place(0, i, e)];
                        dx64[place(2, j, e)] += p * d[out(i, e)];
                    }
                }
            }
        }
    }
    // Elsewhere nothing is rounded, which needs another reference.
    for kernels in kernels
        .iter()
        .filter(|kernels| !low || kernels.bf16_path() != Bf16Path::F32)
    {
        let what = |part: &str| format!("attention {part} {} {shape:?}", name(kernels));
        let (mut y, mut dx) = (vec![f32::NAN; elements], vec![f32::NAN; 3 * elements]);
        kernels.attention(shape, &qkv, &mut y).unwrap();
        kernels
            .attention_gradient(shape, &qkv, &dy, &mut dx)
            .unwrap();
        // Intermediate values may round to another bf16 in f64.
        let tolerance = if low { 1e-2 } else { TOLERANCE };
        assert_close(&y, &y64, tolerance, &what("forward"));
        assert_close(&dx, &dx64, tolerance, &what("gradient"));
        assert!(
            mean_error(&y, &y64) < tolerance / 10.0,
            "{}",
            what("forward")
        );
        assert!(
            mean_error(&dx, &dx64) < tolerance / 10.0,
            "{}",
            what("gradient")
        );
    }
}

fn check_cross_entropy(kernels: &[Kernels], shape: Rows, smoothing: f32) {
    let (rows, classes) = (shape.rows, shape.columns);
    let logits: Vec<_> = random(rows * classes, 1).iter().map(|x| x * 20.0).collect();
    let targets: Vec<_> = (0..rows).map(|row| (row * 7 % classes) as u32).collect();
    let (mut losses64, mut gradient64) = (Vec::new(), Vec::new());
    let s = f64::from(smoothing);
    for (x, &target) in wide(&logits).chunks(classes).zip(&targets) {
        let top = x.iter().copied().fold(f64::MIN, f64::max);
        let total: f64 = x.iter().map(|x| (x - top).exp()).sum();
        let mut loss = 0.0;
        for (class, x) in x.iter().enumerate() {
            let log = x - top - total.ln();
            let wanted = s / classes as f64
                + if class == target as usize {
                    1.0 - s
                } else {
                    0.0
                };
            loss -= wanted * log;
            gradient64.push(log.exp() - wanted);
        }
        losses64.push(loss);
    }
    for kernels in kernels {
        let (mut losses, mut gradient) = (vec![0.0; rows], vec![0.0; rows * classes]);
        kernels
            .cross_entropy(
                shape,
                smoothing,
                &logits,
                &targets,
                &mut losses,
                &mut gradient,
            )
            .unwrap();
        if classes > 1 {
            // A loss far below 1 is the difference of larger logits, and has their rounding error.
            let least = [&losses64[..], &[1.0]].concat();
            assert_close(&[&losses[..], &[1.0]].concat(), &least, TOLERANCE, "losses");
            assert_close(&gradient, &gradient64, TOLERANCE, "gradient of the loss");
        }
    }
}

fn check_bias(kernels: &[Kernels], shape: Rows, relu: bool) {
    let (rows, columns) = (shape.rows, shape.columns);
    let (x, more, bias) = (
        random(rows * columns, 1),
        random(rows * columns, 2),
        random(columns, 3),
    );
    let expected: Vec<_> = (0..rows * columns)
        .map(|place| x[place] + bias[place % columns] + more[place])
        .map(|value| if relu { value.max(0.0) } else { value })
        .collect();
    let mut sums64 = vec![0.0; columns];
    for (place, value) in wide(&x).into_iter().enumerate() {
        sums64[place % columns] += value;
    }
    for kernels in kernels {
        let epilogue = Epilogue {
            bias: Some(&bias),
            residual: Some(&more),
            relu,
            ..Epilogue::default()
        };
        let (mut y, mut sums) = (x.clone(), vec![f32::NAN; columns]);
        kernels.finish(shape, &mut y, &epilogue).unwrap();
        assert_eq!(y, expected);
        let mut copy = vec![f32::NAN; x.len()];
        kernels
            .finish_copy(shape, &x, &mut copy, &epilogue)
            .unwrap();
        assert_eq!(copy, expected);
        let shorter = kernels.finish_copy(shape, &x[1..], &mut copy, &epilogue);
        shorter.unwrap_err();
        let shorter = kernels.finish_copy(shape, &x, &mut copy[1..], &epilogue);
        shorter.unwrap_err();
        kernels.bias_gradient(shape, &x, &mut sums).unwrap();
        assert_close(&sums, &sums64, TOLERANCE, "bias gradient");
        let mut d = more.clone();
        kernels.relu_gradient(&y, &mut d).unwrap();
        let cut = more
            .iter()
            .zip(&y)
            .map(|(&d, &y)| if y > 0.0 { d } else { 0.0 });
        assert_eq!(d, cut.collect::<Vec<_>>());
    }
}

fn check_max_pool(kernels: &[Kernels], shape: &MaxPool2d) {
    let [rows, columns] = shape.output_size().unwrap();
    let outputs = shape.batch * rows * columns * shape.channels;
    let inputs = shape.batch * shape.height * shape.width * shape.channels;
    // Few distinct values, so that windows have several largest ones.
    let x: Vec<_> = random(inputs, 1)
        .iter()
        .map(|x| (x * 4.0).round())
        .collect();
    let dy = random(outputs, 2);
    let (mut y, mut dx64) = (vec![f32::MIN; outputs], vec![0.0; inputs]);
    for place in 0..outputs {
        let (pixel, c) = (place / shape.channels, place % shape.channels);
        let (n, row, column) = (
            pixel / columns / rows,
            pixel / columns % rows,
            pixel % columns,
        );
        let mut winner = None;
        for i in 0..shape.kernel[0] {
            for j in 0..shape.kernel[1] {
                let r = (row * shape.stride[0] + i).wrapping_sub(shape.padding[0]);
                let s = (column * shape.stride[1] + j).wrapping_sub(shape.padding[1]);
                if r >= shape.height || s >= shape.width {
                    continue;
                }
                let from = ((n * shape.height + r) * shape.width + s) * shape.channels + c;
                if x[from] > y[place] {
                    (y[place], winner) = (x[from], Some(from));
                }
            }
        }
        dx64[winner.unwrap()] += f64::from(dy[place]);
    }
    for kernels in kernels {
        let (mut found, mut dx) = (vec![0.0; outputs], vec![f32::NAN; inputs]);
        kernels.max_pool2d(shape, &x, &mut found).unwrap();
        assert_eq!(found, y, "{} {shape:?}", kernels.isa().name());
        kernels
            .max_pool2d_gradient(shape, &x, &y, &dy, &mut dx)
            .unwrap();
        assert_close(&dx, &dx64, TOLERANCE, &format!("max-pool {shape:?}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn rows_of_any_size(rows in 1usize..70, columns in 1usize..150, flag: bool, other: bool) {
        let (kernels, shape) = (every_isa(), Rows { rows, columns });
        check_layer_norm(&kernels, shape);
        check_batch_norm(&kernels, shape, flag, other);
        check_cross_entropy(&kernels, shape, if flag { 0.1 } else { 0.0 });
        check_bias(&kernels, shape, flag);
    }

    #[test]
    fn attention_of_any_size(
        batch in 1usize..3, tokens in 1usize..40, heads in 1usize..4, depth in 1usize..40,
        scale in 0.1f32..1.0,
    ) {
        check_attention(&every_isa(), &Attention { batch, tokens, heads, depth, scale, bf16: false });
    }

    #[test]
    fn pooling_of_any_size(
        batch in 1usize..3, size in [3usize..12, 3usize..12], channels in 1usize..40,
        kernel in [1usize..4, 1usize..4], stride in [1usize..4, 1usize..4], pad: bool,
    ) {
        let padding = kernel.map(|side| if pad { side / 2 } else { 0 });
        let [height, width] = size;
        let shape = MaxPool2d { batch, height, width, channels, kernel, stride, padding };
        check_max_pool(&every_isa(), &shape);
    }
}

/// Always the same shapes: in short sums, one number that rounds differently in bf16 exceeds any
/// tolerance that could find an error.
#[test]
fn attention_in_bf16_of_odd_sizes() {
    for tokens in [1, 2, 7, 16, 17, 33, 40] {
        for (heads, depth) in [(1, 1), (2, 3), (1, 16), (3, 17), (1, 40)] {
            let (batch, scale) = (2, 0.4);
            check_attention(
                &every_bf16_path(),
                &Attention {
                    batch,
                    tokens,
                    heads,
                    depth,
                    scale,
                    bf16: true,
                },
            );
        }
    }
}

#[test]
fn layers_of_real_networks() {
    let kernels = every_isa();
    for bf16 in [false, true] {
        check_attention(
            &every_bf16_path(),
            &Attention {
                batch: 1,
                tokens: 65,
                heads: 3,
                depth: 64,
                scale: 0.125,
                bf16,
            },
        );
    }
    check_layer_norm(
        &kernels,
        Rows {
            rows: 4160,
            columns: 192,
        },
    );
    check_batch_norm(
        &kernels,
        Rows {
            rows: 4096,
            columns: 64,
        },
        true,
        true,
    );
    check_batch_norm(
        &kernels,
        Rows {
            rows: 512,
            columns: 256,
        },
        true,
        true,
    );
}

#[test]
fn what_is_not_a_number_is_kept_by_pooling_and_relu() {
    let shape = MaxPool2d {
        batch: 1,
        height: 2,
        width: 2,
        channels: 1,
        kernel: [2, 2],
        stride: [2, 2],
        padding: [0, 0],
    };
    for kernels in every_isa() {
        for place in 0..4 {
            let (mut x, mut y) = ([1.0; 4], [0.0]);
            x[place] = f32::NAN;
            kernels.max_pool2d(&shape, &x, &mut y).unwrap();
            assert!(y[0].is_nan());
        }
        let mut values = [f32::NAN];
        let one = Rows {
            rows: 1,
            columns: 1,
        };
        kernels
            .finish(
                one,
                &mut values,
                &Epilogue {
                    relu: true,
                    ..Epilogue::default()
                },
            )
            .unwrap();
        assert!(values[0].is_nan());
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let shape = Rows {
        rows: 3001,
        columns: 96,
    };
    let elements = shape.rows * shape.columns;
    let (x, dy) = (random(elements, 1), random(elements, 2));
    let (w, b) = (random(96, 3), random(96, 4));
    for kernels in every_isa() {
        assert_same_bits("sums over rows", || {
            let (mut dx, mut dw, mut db) = (x.clone(), w.clone(), b.clone());
            let result = [&mut dx[..], &mut dw, &mut db];
            kernels
                .layer_norm_gradient(shape, 1e-6, &x, &w, &dy, result)
                .unwrap();
            let (mut mean, mut variance) = (w.clone(), b.clone());
            kernels
                .batch_norm_moments(shape, &x, &mut mean, &mut variance)
                .unwrap();
            let norm = BatchNorm {
                shape,
                epsilon: 1e-5,
                relu: true,
            };
            let moments = Moments {
                mean: &mean,
                variance: &variance,
                of_batch: true,
            };
            let (mut ex, mut ew, mut eb) = (x.clone(), w.clone(), b.clone());
            let result = BatchNormGradients {
                input: &mut ex,
                more: None,
                weight: &mut ew,
                bias: &mut eb,
            };
            kernels
                .batch_norm_gradient(&norm, &x, [&w, &b], &moments, &dy, result)
                .unwrap();
            let mut sums = b.clone();
            kernels.bias_gradient(shape, &x, &mut sums).unwrap();
            [dx, dw, db, ex, ew, eb, sums].concat()
        });
    }
}

#[test]
fn wrong_calls_are_errors() {
    let kernels = Kernels::new().unwrap();
    let shape = Rows {
        rows: 2,
        columns: 3,
    };
    let (mut losses, mut gradient) = ([0.0; 2], [0.0; 6]);
    let error = kernels
        .cross_entropy(shape, 0.0, &[0.0; 6], &[1, 3], &mut losses, &mut gradient)
        .unwrap_err();
    assert_eq!(
        error,
        KernelError::Class {
            row: 1,
            class: 3,
            classes: 3
        }
    );
    let error = kernels
        .cross_entropy(
            shape,
            f32::NAN,
            &[0.0; 6],
            &[1, 2],
            &mut losses,
            &mut gradient,
        )
        .unwrap_err();
    assert!(matches!(error, KernelError::Range { .. }));
    let empty = Rows {
        rows: 0,
        columns: 3,
    };
    let error = kernels
        .bias_gradient(empty, &[], &mut [0.0; 3])
        .unwrap_err();
    assert!(matches!(error, KernelError::Zero { what: "rows", .. }));
    assert!(kernels.gelu(&[0.0; 2], &mut [0.0; 3]).is_err());
    let shape = Attention {
        batch: 1,
        tokens: 2,
        heads: 1,
        depth: 2,
        scale: 0.0,
        bf16: false,
    };
    assert!(
        kernels
            .attention(&shape, &[0.0; 12], &mut [0.0; 4])
            .is_err()
    );
}

#[test]
fn dropout_is_the_same_everywhere_and_keeps_the_mean() {
    let x = vec![1.0; 100_003];
    let mut all = Vec::new();
    for kernels in every_isa() {
        let compute = |rate, seed| {
            let mut y = vec![0.0; x.len()];
            kernels.dropout(rate, seed, &x, &mut y).unwrap();
            y
        };
        assert_same_bits("dropout", || compute(0.3, 5));
        let y = compute(0.3, 5);
        let mean = wide(&y).iter().sum::<f64>() / y.len() as f64;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        let kept = 1.0f32 / 0.7;
        assert!(y.iter().all(|&y| y == 0.0 || (y - kept).abs() < 1e-6));
        // Neighbours, and pieces of the work, are drawn independently.
        for distance in [1, 16, 32 * 1024] {
            let both = y
                .iter()
                .zip(&y[distance..])
                .filter(|(a, b)| **a > 0.0 && **b > 0.0);
            let share = both.count() as f64 / (y.len() - distance) as f64;
            assert!((share - 0.49).abs() < 0.01, "{distance}: {share}");
        }
        assert_ne!(y, compute(0.3, 6));
        assert_eq!(compute(0.0, 5), x);
        all.push(y);
    }
    assert!(all.iter().all(|y| *y == all[0]));
}

#[test]
fn rates_that_leave_nothing_are_errors() {
    let kernels = Kernels::new().unwrap();
    for rate in [1.0, -0.1, f64::NAN] {
        let result = kernels.dropout(rate, 0, &[1.0], &mut [0.0]);
        assert!(matches!(result, Err(KernelError::Range { .. })), "{rate}");
    }
}

proptest! {
    #[test]
    fn matrices_turn(batch in 1usize..4, rows in 1usize..40, columns in 1usize..40) {
        let x = random(batch * rows * columns, 1);
        for kernels in every_isa() {
            let mut y = vec![0.0; x.len()];
            kernels.transpose(batch, Rows { rows, columns }, &x, &mut y).unwrap();
            for (from, to) in x.chunks(rows * columns).zip(y.chunks(rows * columns)) {
                for (index, value) in from.iter().enumerate() {
                    let (row, column) = (index / columns, index % columns);
                    prop_assert_eq!(*value, to[column * rows + row]);
                }
            }
        }
    }
}
