//! Measures the speed of each kernel in GFLOP/s and as a share of the CPU's peak.
//!
//! `cargo run --release -p burn-dist-kernels --example gflops -- [threads] [filter]`; the variable
//! `BURN_DIST_KERNELS_ISA` selects another instruction set.

use std::time::Instant;

use kernels::cpu::{
    Attention, BatchNorm, BatchNormGradients, Bf16Path, Conv2d, ConvMethod, Epilogue, Kernels,
    Matmul, MaxPool2d, Moments, Rows,
};

/// Returns the median time of `run` in seconds.
fn seconds(mut run: impl FnMut()) -> f64 {
    run();
    let mut all = Vec::new();
    let start = Instant::now();
    while all.len() < 5 || start.elapsed().as_secs_f64() < 0.4 {
        let start = Instant::now();
        run();
        all.push(start.elapsed().as_secs_f64());
    }
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn random(length: usize) -> Vec<f32> {
    let mut source = fastrand::Rng::with_seed(length as u64);
    (0..length).map(|_| source.f32() * 2.0 - 1.0).collect()
}

/// Prints speeds.
struct Bench {
    filter: String,
    /// Floating-point operations per second of all threads, 0 if unknown.
    peak: f64,
}

impl Bench {
    /// Measures a function with `flops` floating-point operations per call.
    fn flops(&self, name: &str, flops: f64, run: impl FnMut()) {
        if name.contains(&self.filter) {
            let seconds = seconds(run);
            let share = match self.peak {
                0.0 => String::new(),
                peak => format!("{:5.0} % of peak", flops / seconds / peak * 100.0),
            };
            let (ms, speed) = (seconds * 1e3, flops / seconds / 1e9);
            println!("{name:55} {ms:9.3} ms {speed:8.0} GFLOP/s {share}");
        }
    }

    /// Measures a function that reads and writes `elements` numbers per call.
    fn bytes(&self, name: &str, elements: usize, run: impl FnMut()) {
        if name.contains(&self.filter) {
            let seconds = seconds(run);
            let speed = (elements * 4) as f64 / seconds / 1e9;
            println!("{name:55} {:9.3} ms {speed:8.1} GB/s", seconds * 1e3);
        }
    }
}

/// Returns the multiplications and additions per second of one thread that does nothing else.
#[cfg(target_arch = "x86_64")]
fn peak(isa: kernels::cpu::Isa) -> f64 {
    use std::arch::x86_64::*;
    const ROUNDS: usize = 200_000;
    /// Enough chains to hide the latency.
    const CHAINS: usize = 12;

    #[target_feature(enable = "avx512f")]
    fn wide() -> f32 {
        let factor = _mm512_set1_ps(0.999);
        let mut sums = [factor; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, factor);
            }
        }
        let mut total = 0.0;
        for sum in sums {
            total += _mm512_reduce_add_ps(sum);
        }
        total
    }
    #[target_feature(enable = "avx2,fma")]
    fn narrow() -> f32 {
        let factor = _mm256_set1_ps(0.999);
        let mut sums = [factor; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, factor);
            }
        }
        let mut total = 0.0;
        for sum in sums {
            total += _mm256_cvtss_f32(sum);
        }
        total
    }
    let operations = |lanes: usize| (2 * lanes * CHAINS * ROUNDS) as f64;
    let best = |run: fn() -> f32| {
        let time = || {
            let start = Instant::now();
            std::hint::black_box(run());
            start.elapsed().as_secs_f64()
        };
        (0..20).map(|_| time()).fold(f64::MAX, f64::min)
    };
    match isa {
        // SAFETY: the kernels have detected the instruction set.
        kernels::cpu::Isa::Avx512 => operations(16) / best(|| unsafe { wide() }),
        // SAFETY: as above.
        kernels::cpu::Isa::Avx2 => operations(8) / best(|| unsafe { narrow() }),
        _ => 0.0,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn peak(_: kernels::cpu::Isa) -> f64 {
    0.0
}

fn convolutions(bench: &Bench, kernels: &Kernels) {
    let wide = |size, channels: [usize; 2], stride| Conv2d {
        batch: 64,
        height: size,
        width: size,
        in_channels: channels[0],
        out_channels: channels[1],
        kernel: [3, 3],
        stride: [stride, stride],
        padding: [1, 1],
    };
    for shape in [
        wide(32, [3, 16], 1),
        wide(32, [16, 64], 1),
        wide(32, [64, 64], 1),
        wide(16, [128, 128], 1),
        wide(8, [256, 256], 1),
        wide(32, [64, 128], 2),
        wide(16, [128, 256], 2),
        Conv2d {
            padding: [0, 0],
            ..wide(28, [1, 32], 1)
        },
        Conv2d {
            padding: [0, 0],
            ..wide(26, [32, 64], 1)
        },
    ] {
        let [rows, columns] = shape.output_size().expect("a valid shape");
        let pixels = shape.batch * rows * columns;
        let flops = 2.0 * (pixels * 9 * shape.in_channels * shape.out_channels) as f64;
        let x = random(shape.batch * shape.height * shape.width * shape.in_channels);
        let w = random(9 * shape.in_channels * shape.out_channels);
        let dy = random(pixels * shape.out_channels);
        let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), w.clone());
        for method in [ConvMethod::Auto, ConvMethod::Direct] {
            let name = |part: &str| {
                format!(
                    "conv {part} {}²·{} → {} /{} {method:?}",
                    shape.height, shape.in_channels, shape.out_channels, shape.stride[0]
                )
            };
            bench.flops(&name("forward"), flops, || {
                kernels
                    .conv2d(&shape, method, &x, &w, &mut y)
                    .expect("valid");
            });
            bench.flops(&name("input gradient"), flops, || {
                kernels
                    .conv2d_input_gradient(&shape, method, &dy, &w, &mut dx)
                    .expect("valid");
            });
            bench.flops(&name("weight gradient"), flops, || {
                kernels
                    .conv2d_weight_gradient(&shape, method, &x, &dy, &mut dw)
                    .expect("valid");
            });
        }
    }
}

/// Rows, columns and depth of products.
const PRODUCTS: [[usize; 3]; 10] = [
    // ViT-Tiny with 65 tokens.
    [4160, 768, 192],
    [4160, 192, 768],
    [4160, 576, 192],
    [4160, 192, 192],
    // ViT-B with 197 tokens.
    [1576, 3072, 768],
    [1576, 768, 3072],
    // Convolutions of 1×1 of WRN-16-4.
    [16384, 128, 64],
    [4096, 256, 128],
    // Classifiers.
    [64, 128, 9216],
    [64, 100, 192],
];

fn products(bench: &Bench, kernels: &Kernels) {
    let paths = Bf16Path::available(kernels.isa()).into_iter();
    let paths: Vec<_> = paths
        .filter(|path| *path != Bf16Path::AmxEmulated)
        .collect();
    for [rows, columns, depth] in PRODUCTS {
        for (left_transposed, right_transposed) in [(false, false), (false, true), (true, false)] {
            // The first is the forward pass, then the gradients of input and weight.
            let [rows, columns, depth] = match (left_transposed, right_transposed) {
                (true, _) => [depth, columns, rows],
                (_, true) => [rows, depth, columns],
                _ => [rows, columns, depth],
            };
            let shape = Matmul {
                rows,
                columns,
                depth,
                left_transposed,
                right_transposed,
            };
            let (left, right) = (random(rows * depth), random(depth * columns));
            let mut product = vec![0.0; rows * columns];
            let flops = 2.0 * (rows * columns * depth) as f64;
            let transposed = match (left_transposed, right_transposed) {
                (true, _) => "left transposed",
                (_, true) => "right transposed",
                _ => "",
            };
            let name = |kind: &str| format!("matmul {kind} {rows}×{depth}×{columns} {transposed}");
            bench.flops(&name("f32"), flops, || {
                kernels
                    .matmul(&shape, &left, &right, &mut product)
                    .expect("valid");
            });
            for &path in &paths {
                kernels.set_bf16_path(path).expect("available");
                bench.flops(&name(&format!("bf16/{}", path.name())), flops, || {
                    kernels
                        .matmul_bf16(&shape, &left, &right, &mut product)
                        .expect("valid");
                });
            }
        }
    }
    kernels
        .set_bf16_path(Bf16Path::fastest(kernels.isa()))
        .expect("available");
}

fn layers(bench: &Bench, kernels: &Kernels) {
    let shape = |bf16| Attention {
        batch: 64,
        tokens: 65,
        heads: 3,
        depth: 64,
        scale: 0.125,
        bf16,
    };
    let elements = 64 * 65 * 192;
    let (qkv, dy) = (random(3 * elements), random(elements));
    let (mut y, mut dx) = (dy.clone(), qkv.clone());
    let flops = 2.0 * (64 * 3 * 65 * 65 * 64) as f64;
    for (shape, kind) in [(shape(false), "attention"), (shape(true), "attention bf16")] {
        bench.flops(&format!("{kind} forward"), 2.0 * flops, || {
            kernels.attention(&shape, &qkv, &mut y).expect("valid");
        });
        bench.flops(&format!("{kind} gradient"), 5.0 * flops, || {
            kernels
                .attention_gradient(&shape, &qkv, &dy, &mut dx)
                .expect("valid");
        });
    }

    let shape = Rows {
        rows: 64 * 65,
        columns: 192,
    };
    let (w, b) = (random(192), random(192));
    let (mut dw, mut db) = (w.clone(), b.clone());
    let x = random(elements);
    let mut dx = x.clone();
    bench.bytes("layer norm forward", 2 * elements, || {
        kernels
            .layer_norm(shape, 1e-6, &x, [&w, &b], &mut y)
            .expect("valid");
    });
    bench.bytes("layer norm gradient", 3 * elements, || {
        let result = [&mut dx[..], &mut dw, &mut db];
        kernels
            .layer_norm_gradient(shape, 1e-6, &x, &w, &dy, result)
            .expect("valid");
    });
    bench.bytes("gelu forward", 2 * elements, || {
        kernels.gelu(&x, &mut y).expect("valid")
    });
    bench.bytes("gelu gradient", 3 * elements, || {
        kernels.gelu_gradient(&x, &dy, &mut dx).expect("valid");
    });
    bench.bytes("bias + residual", 3 * elements, || {
        kernels
            .finish(
                shape,
                &mut y,
                &Epilogue {
                    bias: Some(&b),
                    residual: Some(&x),
                    ..Epilogue::default()
                },
            )
            .expect("valid");
    });
    bench.bytes("bias gradient", elements, || {
        kernels.bias_gradient(shape, &x, &mut db).expect("valid");
    });

    let shape = Rows {
        rows: 64 * 32 * 32,
        columns: 64,
    };
    let elements = shape.rows * shape.columns;
    let (x, dy, w, b) = (random(elements), random(elements), random(64), random(64));
    let (mut y, mut dx, mut dw, mut db) = (x.clone(), x.clone(), w.clone(), b.clone());
    let (mut mean, mut variance) = (w.clone(), w.clone());
    bench.bytes("batch norm moments", elements, || {
        kernels
            .batch_norm_moments(shape, &x, &mut mean, &mut variance)
            .expect("valid");
    });
    let norm = BatchNorm {
        shape,
        epsilon: 1e-5,
        relu: true,
    };
    let variance: Vec<_> = variance.iter().map(|value| value.abs() + 1.0).collect();
    let moments = Moments {
        mean: &mean,
        variance: &variance,
        of_batch: true,
    };
    bench.bytes("batch norm + ReLU forward", 2 * elements, || {
        kernels
            .batch_norm(&norm, &x, [&w, &b], &moments, &mut y)
            .expect("valid");
    });
    bench.bytes("batch norm + ReLU gradient", 5 * elements, || {
        let result = BatchNormGradients {
            input: &mut dx,
            more: None,
            weight: &mut dw,
            bias: &mut db,
        };
        kernels
            .batch_norm_gradient(&norm, &x, [&w, &b], &moments, &dy, result)
            .expect("valid");
    });

    let shape = MaxPool2d {
        batch: 64,
        height: 32,
        width: 32,
        channels: 64,
        kernel: [2, 2],
        stride: [2, 2],
        padding: [0, 0],
    };
    let mut y = vec![0.0; elements / 4];
    bench.bytes("max-pool forward", elements / 4 * 5, || {
        kernels.max_pool2d(&shape, &x, &mut y).expect("valid");
    });
    bench.bytes("max-pool gradient", elements / 2 * 5, || {
        let dy = &dy[..elements / 4];
        kernels
            .max_pool2d_gradient(&shape, &x, &y, dy, &mut dx)
            .expect("valid");
    });
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let threads: usize = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let filter = arguments.next().unwrap_or_default();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    // As in training: another thread would hand each operation to the pool and wait.
    match threads {
        1 => pool,
        _ => pool.use_current_thread(),
    }
    .build_global()?;
    let kernels = Kernels::new()?;
    let peak = peak(kernels.isa()) * threads as f64;
    println!(
        "{} on {threads} threads, peak {:.0} GFLOP/s in f32",
        kernels.isa().name(),
        peak / 1e9
    );
    for (path, time) in Bf16Path::measured(kernels.isa()) {
        println!("bf16 path {}: {time:.0?} per product of 256³", path.name());
    }
    let bench = Bench { filter, peak };
    convolutions(&bench, &kernels);
    products(&bench, &kernels);
    layers(&bench, &kernels);
    Ok(())
}
