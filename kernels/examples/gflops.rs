//! Speed of each kernel in GFLOP/s and as share of the processor's peak.
//!
//! `cargo run --release -p kernels --example gflops -- [threads] [filter]`; the variable
//! `BURN_DIST_KERNELS_ISA` chooses another instruction set.

use std::time::Instant;

use kernels::{Conv2d, ConvMethod, Kernels};

/// The median of the seconds that `run` takes.
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

/// Prints the speed of something that computes `flops` floating-point operations per call.
struct Bench {
    filter: String,
}

impl Bench {
    fn flops(&self, name: &str, flops: f64, run: impl FnMut()) {
        if name.contains(&self.filter) {
            let seconds = seconds(run);
            println!(
                "{name:55} {:9.3} ms {:8.0} GFLOP/s",
                seconds * 1e3,
                flops / seconds / 1e9
            );
        }
    }
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let bench = Bench {
        filter: arguments.next().unwrap_or_default(),
    };
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()?;
    let kernels = Kernels::new()?;
    println!("{} on {threads} threads", kernels.isa().name());
    convolutions(&bench, &kernels);
    Ok(())
}
