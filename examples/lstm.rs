//! Trains an LSTM on sequences of unequal length: regression of the next value.
//!
//!   cargo run --release -p burn-dist --example lstm -- --nproc 2
//!
//! Every batch has another length, so ranks have unequal numbers of values per step. The loss is a
//! sum, weighted by the number of values. Started again, it continues from its last checkpoint.

use std::f64::consts::TAU;
use std::process::ExitCode;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Distribution, Tensor};
use burn_dist::WeightedMean;
use burn_dist::checkpoint::Checkpoints;
use burn_dist::parallel::{Parallel, Strategy};

const BATCH: usize = 16;

#[derive(Module, Debug)]
struct Forecast {
    lstm: Lstm,
    output: Linear,
}

impl Forecast {
    fn new(device: &Device) -> Self {
        Self {
            lstm: LstmConfig::new(1, 32, true).init(device),
            output: LinearConfig::new(32, 1).init(device),
        }
    }

    /// Maps values \[samples, time, 1\] to the next ones.
    fn forward(&self, values: Tensor<3>) -> Tensor<3> {
        self.output.forward(self.lstm.forward(values, None).0)
    }
}

/// Sines with random phases, \[samples, time, 1\].
fn waves(time: usize, device: &Device) -> Tensor<3> {
    let phases = Tensor::<3>::random([BATCH, 1, 1], Distribution::Uniform(0.0, TAU), device);
    let times: Vec<f32> = (0..time).map(|time| 0.3 * time as f32).collect();
    let times = Tensor::<1>::from_floats(times.as_slice(), device);
    (phases + times.reshape([1, time, 1])).sin()
}

fn main() -> ExitCode {
    burn_dist::run(|world, group| {
        let device = world.device()?.autodiff();
        let model = Forecast::new(&device);
        let mut parallel = Parallel::new(model, AdamConfig::new(), Strategy::Ddp, group)?;
        let mut checkpoints = Checkpoints::open("runs/lstm", group)?;
        let begin = checkpoints.resume(&mut parallel)?.map_or(0, |at| at.step);
        let mut mean = WeightedMean::default();
        for step in begin..150 {
            let own = step * world.size() as u64 + world.rank() as u64;
            device.seed(own);
            let time = 8 + (own * 7 % 12) as usize;
            let values = waves(time + 1, &device);
            let inputs = values.clone().narrow(1, 0, time);
            let wanted = values.narrow(1, 1, time);
            let loss = (parallel.model().forward(inputs) - wanted).square().sum();
            let weight = (BATCH * time) as f64;
            mean.add_sum(loss.clone().into_scalar::<f32>().into(), weight);
            parallel.backward_weighted(loss, weight)?;
            parallel.step(1e-2)?;
            if (step + 1) % 50 == 0 {
                let mean = std::mem::take(&mut mean).reduce(group)?.mean();
                if world.is_main() {
                    println!("step {}: loss {:.5}", step + 1, mean.unwrap_or_default());
                }
                checkpoints.save(step + 1, &parallel, mean.into())?;
            }
        }
        checkpoints.finish()?;
        Ok(())
    })
}
