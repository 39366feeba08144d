//! Memory of a rank under each stage of ZeRO, in bytes: the formulas of docs/sharding.md.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};
use burn_dist::parallel::{BucketSizes, Parallel, ParallelOptions, Strategy};
use burn_dist::{GroupOptions, ProcessGroup, TransportKind};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

const RANKS: usize = 4;
const LAYERS: usize = 64;
const WIDTH: usize = 256;
const PARAMETERS: usize = LAYERS * WIDTH * WIDTH;
/// Bytes per parameter allowed for connections, activations and messages in flight in a step.
const BESIDE: f64 = 0.4;
const ON_ITS_WAY: f64 = 0.5;
const LIMIT: Duration = Duration::from_secs(120);

/// Layers of equal size, with small activations.
#[derive(Module, Debug)]
struct Deep {
    layers: Vec<Linear>,
}

impl Deep {
    fn new(layers: usize) -> Self {
        let device = Device::flex().autodiff();
        let layer = || {
            LinearConfig::new(WIDTH, WIDTH)
                .with_bias(false)
                .init(&device)
        };
        Self {
            layers: (0..layers).map(|_| layer()).collect(),
        }
    }

    fn loss(&self) -> Tensor<1> {
        let device = Device::flex().autodiff();
        let input = Tensor::random([2, WIDTH], Distribution::Default, &device);
        let mut x: Tensor<2> = input;
        for layer in &self.layers {
            x = burn_dist::autograd::boundary(x);
            x = relu(layer.forward(x));
        }
        x.mean()
    }
}

/// Returns the bytes per parameter and rank between two steps, and at most during one.
fn measure(strategy: Strategy) -> [f64; 2] {
    let options = GroupOptions {
        // Shared memory is not counted by the allocator.
        transport: TransportKind::Tcp,
        ..GroupOptions::default()
    };
    let groups = ProcessGroup::in_process(RANKS, &options).unwrap();
    let results: Vec<[f64; 2]> = thread::scope(|scope| {
        let spawn = |group: ProcessGroup| scope.spawn(move || rank(&group, strategy));
        let ranks: Vec<_> = groups.into_iter().map(spawn).collect();
        let join = |rank: thread::ScopedJoinHandle<'_, _>| rank.join().unwrap();
        ranks.into_iter().map(join).collect()
    });
    results[0]
}

fn rank(group: &ProcessGroup, strategy: Strategy) -> [f64; 2] {
    // A thread's first matrix product allocates a buffer of the size of the CPU's cache, and keeps
    // it.
    let _ = Deep::new(1).loss().backward();
    group.barrier().unwrap();
    let before = ALLOCATED.current_usage();
    group.barrier().unwrap();
    let options = ParallelOptions {
        strategy,
        buckets: BucketSizes {
            first: WIDTH * WIDTH,
            others: WIDTH * WIDTH,
        },
        ..ParallelOptions::default()
    };
    let mut parallel =
        Parallel::new(Deep::new(LAYERS), AdamWConfig::new(), options, group).unwrap();
    let mut step = || {
        let loss = parallel.model().loss();
        parallel.backward(loss).unwrap();
        parallel.step(1e-4).unwrap();
    };
    // The first step allocates the optimizer's state.
    step();
    step();
    group.barrier().unwrap();
    let held = ALLOCATED.current_usage();
    if group.rank() == 0 {
        ALLOCATED.reset_peak_usage();
    }
    group.barrier().unwrap();
    step();
    step();
    group.barrier().unwrap();
    let measured = [held, ALLOCATED.peak_usage()];
    group.barrier().unwrap();
    measured.map(|bytes| (bytes - before) as f64 / (RANKS * PARAMETERS) as f64)
}

/// In `f32` with AdamW: 4 bytes of parameter, 4 of gradient, 8 of state.
#[test]
fn a_rank_holds_what_its_stage_says() {
    let (done, waiting) = mpsc::channel();
    let measuring = thread::spawn(move || {
        let shard = |bytes: f64| bytes / RANKS as f64;
        for (strategy, expected) in [
            (Strategy::Ddp, 16.0),
            (Strategy::Zero1, 8.0 + shard(8.0)),
            (Strategy::Zero2, 4.0 + shard(12.0)),
            (Strategy::Zero3, shard(16.0)),
        ] {
            let [held, peak] = measure(strategy);
            let told = format!("{strategy:?}: {held:.2}, at most {peak:.2}, expected {expected}");
            assert!((0.0..BESIDE).contains(&(held - expected)), "{told}");
            assert!(peak - held < ON_ITS_WAY, "{told}");
        }
        let _ = done.send(());
    });
    if waiting.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
        eprintln!("the ranks hung for {LIMIT:?}");
        std::process::abort();
    }
    measuring.join().unwrap();
}
