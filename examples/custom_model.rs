//! Trains a model that is written with plain Burn modules, with its parameters, gradients and
//! optimizer state sharded over the ranks (ZeRO stage 3).
//!
//!   cargo run --release -p burn-dist --example custom_model     # one rank
//!
//! As many as wanted with the variables that torchrun sets, for example two:
//!
//!   export BURN_DIST_SECRET=$(openssl rand -hex 16) WORLD_SIZE=2 MASTER_ADDR=127.0.0.1
//!   MASTER_PORT=29500 for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank
//!   target/release/examples/custom_model zero-3 & done; wait
//!
//! Arguments: strategy (zero-3), width (64), depth (4), micro-batch (8), steps (10). A width of 768
//! and a depth of 12 is a transformer of 85 million parameters.

use std::process::ExitCode;
use std::time::Instant;

use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use burn_dist::autograd::boundary;
use burn_dist::parallel::{BucketSizes, Parallel, ParallelOptions, Strategy};
use burn_dist::world::World;
use burn_dist::{ProcessGroup, ReduceOp};

const TOKENS: usize = 64;
const FEATURES: usize = 48;

/// One layer of the transformer; it knows nothing about other ranks.
#[derive(Module, Debug)]
struct Layer {
    norm_1: LayerNorm,
    attention: MultiHeadAttention,
    norm_2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn new(width: usize, device: &Device) -> Self {
        let heads = (width / 64).max(1);
        Self {
            norm_1: LayerNormConfig::new(width).init(device),
            attention: MultiHeadAttentionConfig::new(width, heads)
                .with_dropout(0.0)
                .init(device),
            norm_2: LayerNormConfig::new(width).init(device),
            up: LinearConfig::new(width, 4 * width).init(device),
            down: LinearConfig::new(4 * width, width).init(device),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let input = MhaInput::self_attn(self.norm_1.forward(x.clone()));
        let x = x + self.attention.forward(input).context;
        let hidden = gelu(self.up.forward(self.norm_2.forward(x.clone())));
        x + self.down.forward(hidden)
    }
}

/// Predicts one number per sequence.
#[derive(Module, Debug)]
struct Model {
    embed: Linear,
    layers: Vec<Layer>,
    head: Linear,
}

impl Model {
    fn new(width: usize, depth: usize, device: &Device) -> Self {
        Self {
            embed: LinearConfig::new(FEATURES, width).init(device),
            layers: (0..depth).map(|_| Layer::new(width, device)).collect(),
            head: LinearConfig::new(width, 1).init(device),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let mut x = self.embed.forward(x);
        for layer in &self.layers {
            // The only line for several ranks: gradients of a layer are sent, and its parameters
            // released, as soon as backward leaves it. Without this line all of that happens at the
            // end of backward.
            x = layer.forward(boundary(x));
        }
        self.head.forward(boundary(x).mean_dim(1).squeeze_dim(1))
    }
}

fn argument<T: std::str::FromStr>(index: usize, default: T) -> Result<T, String> {
    match std::env::args().nth(index) {
        Some(text) => text.parse().map_err(|_| format!("what is {text:?}?")),
        None => Ok(default),
    }
}

/// Returns the peak resident memory of this process in MiB, if the system reports it.
fn peak_mib() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? / 1024)
}

fn main() -> ExitCode {
    match train() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn train() -> Result<(), Box<dyn std::error::Error>> {
    let strategy = argument(1, Strategy::Zero3)?;
    let (width, depth) = (argument(2, 64)?, argument(3, 4)?);
    let (batch, steps) = (argument(4, 8)?, argument(5, 10)?);

    let world = World::from_env()?;
    let group = ProcessGroup::connect(&world)?;
    // For inputs with more than two dimensions, Burn's linear layers create a view of their weights
    // and keep it for backward. With checkpointing they recreate the view, after another gather of
    // the weights.
    let device = world.device()?.autodiff().gradient_checkpointing();
    let baseline = peak_mib().unwrap_or(0);
    let options = ParallelOptions {
        strategy,
        buckets: BucketSizes::from_mib(argument(6, 8)?),
        ..ParallelOptions::default()
    };
    device.seed(1);
    let model = Model::new(width, depth, &device);
    let mut parallel = Parallel::new(model, AdamWConfig::new(), options, &group)?;
    if world.is_main() {
        println!("{strategy}: {} parameters", parallel.num_parameters());
    }

    let mut times = Vec::new();
    for step in 0..steps {
        device.seed((step * group.size() + group.rank()) as u64);
        let shape = [batch, TOKENS, FEATURES];
        let x = Tensor::<3>::random(shape, Distribution::Default, &device);
        let target = x.clone().mean_dim(1).sum_dim(2).squeeze_dim(1) / FEATURES as f32;
        let begin = Instant::now();
        let loss = (parallel.model().forward(x) - target).square().mean();
        let mut mean = [loss.clone().into_scalar::<f32>()];
        parallel.backward(loss)?;
        parallel.step(1e-4)?;
        times.push(begin.elapsed().as_secs_f64());
        group.all_reduce(&mut mean, ReduceOp::Mean)?;
        if world.is_main() {
            println!("step {step}: loss {:.6}", mean[0]);
        }
    }
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let peak = peak_mib().unwrap_or(0);
    println!(
        "rank {}: {median:.3} s per step (median), peak {peak} MiB, {} MiB above the start",
        group.rank(),
        peak.saturating_sub(baseline)
    );
    parallel.verify_replicas()?;
    Ok(())
}
