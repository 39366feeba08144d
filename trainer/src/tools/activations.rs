//! Measures the activation memory of a micro-batch by computing one.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use burn_dist::ProcessGroup;
use burn_dist::parallel::{Parallel, ShardWithin, Strategy};

use crate::config::{Batching, Config};
use crate::error::TrainError;
use crate::system::device::autodiff;
use crate::system::memory::{peak_bytes, reset_peak, resident_bytes};
use crate::task::open::{Data, Opening, WithTask};
use crate::task::{Loss, Task};
use crate::train::freeze;
use crate::train::model::parameters;
use crate::train::optimizer;
use crate::train::parallel_options;

/// Largest number of floating-point operations for this, a few seconds on a CPU. For larger
/// micro-batches a part is computed and scaled up.
const MOST_FLOPS: u64 = 500_000_000_000;

/// Two passes, since the second cannot always reuse the memory that the first freed.
const PASSES: usize = 2;

/// Measures the peak bytes of forward and backward for a micro-batch of `items` items, such as
/// images.
///
/// Excludes parameters, gradients and optimizer state. Measured in host memory with the number
/// format and recomputation of `config`. Under `zero-3`, includes the gathered buckets and those in
/// flight. `None` if the system does not tell resident memory.
///
/// # Errors
/// Fails if the data cannot be opened, or the model cannot be built or computed.
pub fn measure(config: &Config, items: usize) -> Result<Option<u64>, TrainError> {
    let device = Device::flex();
    let batching = Batching {
        global: items,
        micro: items,
        accumulate: 1,
    };
    let mut read_only = config.clone();
    read_only.data.read_only();
    let opening = Opening {
        only_evaluates: true,
        ..Opening::to_train(&read_only, batching, (0, 1))
    };
    let measure = Measure {
        config,
        items,
        device: &device,
    };
    Data::open(&opening)?.build(config, &autodiff(&device, config), measure)?
}

struct Measure<'a> {
    config: &'a Config,
    items: usize,
    device: &'a Device,
}

impl WithTask for Measure<'_> {
    type Output = Result<Option<u64>, TrainError>;

    fn call<T: Task>(self, task: T, model: T::Model) -> Self::Output {
        let model = freeze::apply(model, self.config)?;
        let items = self.affordable(&task, &model);
        let mut config = self.config.clone();
        config.parallel.shard_within = ShardWithin::All;
        config.parallel.virtual_ranks = None;
        if config.parallel.strategy != Strategy::Zero3 {
            config.parallel.strategy = Strategy::Ddp;
            // Lazy parameters are created at their first use.
            model.visit(&mut Touch);
        }
        let optimizer = optimizer::build(&config.optimizer, &parameters(&model));
        let mut parallel = Parallel::new(
            model,
            optimizer,
            parallel_options(&config, PASSES),
            &ProcessGroup::single(),
        )?;
        let Some(before) = resident_bytes().filter(|_| reset_peak()) else {
            return Ok(None);
        };
        for _ in 0..PASSES {
            let batch = task.to_device(task.blank(items), self.device)?;
            let dtype = parallel.compute_dtype();
            let Loss { value, weight } = task.loss(parallel.model(), batch, dtype);
            match task.is_weighted() {
                true => parallel.backward_weighted(value, weight)?,
                false => parallel.backward(value)?,
            }
        }
        let taken = peak_bytes().map(|peak| peak.saturating_sub(before));
        Ok(taken.map(|bytes| bytes / items as u64 * self.items as u64))
    }
}

impl Measure<'_> {
    /// Number of items whose computation is affordable, at least one.
    fn affordable<T: Task>(&self, task: &T, model: &T::Model) -> usize {
        let forward = task.flops(model);
        let each = forward.map_or(0, |flops| flops.saturating_mul(models::flops::TRAINING));
        let most = MOST_FLOPS / each.max(1);
        self.items
            .min(usize::try_from(most).unwrap_or(usize::MAX))
            .max(1)
    }
}

struct Touch;

impl ModuleVisitor for Touch {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(param.val());
    }
}
