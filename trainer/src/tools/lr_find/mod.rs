//! `trainer lr-find`: a learning rate range test on the real data.
//!
//! Trains one step at each rate, from small to large, and suggests rates (Smith 2017,
//! <https://arxiv.org/abs/1506.01186>).

mod curve;
mod plot;

use burn::tensor::Device;
use burn_dist::ProcessGroup;
use burn_dist::parallel::{Parallel, ParallelOptions, ShardWithin};
use burn_dist::world::World;
use models::weights::PyTorchKeys;

use crate::config::{Batching, Config, Loaded};
use crate::error::TrainError;
use crate::eval::loss;
use crate::system::{compute, device};
use crate::task::open::{Data, Opening, WithTask};
use crate::task::{Loss, Task};
use crate::train::model::parameters;
use crate::train::parallel_options;
use crate::train::{freeze, initial, misfit, optimizer, seed};

pub use curve::{LossCurve, Suggestion, Trial, Unclear};
pub use plot::svg;

/// Range of learning rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sweep {
    /// Number of steps with one rate each, at least 2.
    pub steps: u64,
    /// The rate of the first step, above 0.
    pub min: f64,
    /// The rate of the last step, above `min`.
    pub max: f64,
}

impl Sweep {
    /// The rate of step `index`, from 0. Rates grow by a constant factor.
    pub fn lr(&self, index: u64) -> f64 {
        let share = index as f64 / (self.steps.max(2) - 1) as f64;
        // The ratio of the two may overflow.
        let (low, high) = (self.min.ln(), self.max.ln());
        (low + share * (high - low)).exp()
    }
}

/// Trains at rising rates until the loss diverges.
///
/// Passes the index of each step to `each`, the step, and the mean loss around it, as soon as the
/// next steps of that mean are known. Writes nothing. Runs in one process with the global batch of
/// the configuration.
///
/// # Errors
/// Fails if the data cannot be read or the model cannot be built.
pub fn sweep(
    loaded: &Loaded,
    sweep: Sweep,
    each: impl FnMut(usize, &Trial, f64),
) -> Result<LossCurve, TrainError> {
    try_sweep(loaded, sweep, each).map_err(|error| misfit::locate(loaded, error))
}

fn try_sweep(
    loaded: &Loaded,
    sweep: Sweep,
    each: impl FnMut(usize, &Trial, f64),
) -> Result<LossCurve, TrainError> {
    let config = &loaded.config;
    let batching = loaded.batching(1)?;
    let data = Data::open(&Opening::to_train(config, batching, (0, 1)))?;
    let chosen = device::choose(config, &World::single())?;
    let device = device::autodiff(&chosen.device, config);
    compute::choose_kernels(config, &device)?;
    device.seed(seed::of_parameters(config.train.seed));
    let run = Run {
        config,
        batching,
        sweep,
        device: &device,
        each,
    };
    data.build(config, &device, run)
        .map_err(|error| misfit::of_model(loaded, &error))?
}

struct Run<'a, F> {
    config: &'a Config,
    batching: Batching,
    sweep: Sweep,
    device: &'a Device,
    each: F,
}

impl<F: FnMut(usize, &Trial, f64)> WithTask for Run<'_, F> {
    type Output = Result<LossCurve, TrainError>;

    fn call<T: Task>(mut self, task: T, model: T::Model) -> Self::Output
    where
        T::Model: PyTorchKeys,
    {
        task.check(&model)?;
        let (model, _) = initial::load(model, self.config)?;
        let model = freeze::apply(model, self.config)?;
        let group = ProcessGroup::single();
        let options = ParallelOptions {
            // Nothing is evaluated.
            ema: None,
            swa: None,
            // One rank has everything.
            shard_within: ShardWithin::All,
            ..parallel_options(self.config, self.batching.accumulate)
        };
        let optimizer = optimizer::build(&self.config.optimizer, &parameters(&model));
        let mut parallel = Parallel::new(model, optimizer, options, &group)?;
        let mut data = Endless {
            epoch: 0,
            batches: task.train_batches(0, 0),
            task: &task,
        };
        let mut curve = LossCurve::of_steps(self.sweep.steps as usize);
        for index in 0..self.sweep.steps {
            let lr = self.sweep.lr(index);
            let loss = self.gradients(index, &mut data, &mut parallel)?;
            if !curve.push(lr, loss) {
                break;
            }
            if let Some((index, trial, mean)) = curve.newest() {
                (self.each)(index, &trial, mean);
            }
            let report = parallel.step(lr)?;
            if !report.applied && report.loss_scale.is_none() {
                break;
            }
        }
        Ok(curve)
    }
}

impl<F> Run<'_, F> {
    /// Computes the gradients of a global batch, and returns its loss.
    fn gradients<T: Task>(
        &mut self,
        index: u64,
        data: &mut Endless<'_, T>,
        parallel: &mut Parallel<T::Model>,
    ) -> Result<f64, TrainError> {
        let seed = self.config.train.seed;
        self.device.seed(seed::of_step(seed, 0, index + 1));
        let (mut sum, mut weights) = (0.0, 0.0);
        for _ in 0..parallel.micro_batches() {
            let Some(batch) = data.next()? else {
                break;
            };
            let batch = data.task.to_device(batch, self.device)?;
            let dtype = parallel.compute_dtype();
            let Loss { value, weight } = data.task.loss(parallel.model(), batch, dtype);
            sum += loss::read(value.clone(), index + 1)?;
            weights += weight;
            match data.task.is_weighted() {
                true => parallel.backward_weighted(value, weight)?,
                false => parallel.backward(value)?,
            }
        }
        Ok(sum / weights)
    }
}

/// Micro-batches of one epoch after another.
struct Endless<'a, T: Task> {
    task: &'a T,
    epoch: usize,
    batches: T::Batches,
}

impl<T: Task> Endless<'_, T> {
    /// The next batch. An epoch has at least one.
    fn next(&mut self) -> Result<Option<T::HostBatch>, TrainError> {
        if let Some(batch) = self.batches.next() {
            return batch.map(Some);
        }
        self.epoch += 1;
        self.batches = self.task.train_batches(self.epoch, 0);
        self.batches.next().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_rise_by_one_factor_from_the_first_to_the_last() {
        let sweep = Sweep {
            steps: 5,
            min: 1e-6,
            max: 1e-2,
        };
        let rates: Vec<f64> = (0..5).map(|index| sweep.lr(index)).collect();
        for (rate, expected) in rates.iter().zip([1e-6, 1e-5, 1e-4, 1e-3, 1e-2]) {
            assert!((rate / expected - 1.0).abs() < 1e-9, "{rates:?}");
        }
        let whole = Sweep {
            min: f64::MIN_POSITIVE,
            max: f64::MAX,
            ..sweep
        };
        assert!((0..5).all(|index| whole.lr(index).is_normal()), "{whole:?}");
    }
}
