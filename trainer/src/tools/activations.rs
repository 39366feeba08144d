//! Measures the activation memory of a micro-batch by computing one.

use burn::module::{ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use burn_dist::ProcessGroup;
use burn_dist::parallel::{Parallel, ShardWithin, Strategy};
use datasets::{Batch, Dataset};
use models::ImageClassifier;
use models::weights::PyTorchKeys;

use crate::config::{Config, WithModel};
use crate::data::batch::to_tensors;
use crate::error::TrainError;
use crate::eval::loss;
use crate::system::device::autodiff;
use crate::system::memory::{peak_bytes, reset_peak, resident_bytes};
use crate::train::optimizer;
use crate::train::parallel_options;

/// Largest number of floating-point operations for this, a few seconds on a CPU. For larger
/// micro-batches a part is computed and scaled up.
const MOST_FLOPS: u64 = 500_000_000_000;

/// Two passes, since the second cannot always reuse the memory that the first freed.
const PASSES: usize = 2;

/// Measures the peak bytes of forward and backward for a micro-batch of `images` images of `data`.
///
/// Excludes parameters, gradients and optimizer state. Measured in host memory with the number
/// format and recomputation of `config`. Under `zero-3`, includes the gathered buckets and those in
/// flight. `None` if the system does not tell resident memory.
///
/// # Errors
/// Fails if the model cannot be built or computed.
pub fn measure(
    config: &Config,
    data: &dyn Dataset,
    images: usize,
) -> Result<Option<u64>, TrainError> {
    let device = Device::flex();
    let measure = Measure {
        config,
        data,
        images,
        device: &device,
    };
    config
        .model
        .build(data, &autodiff(&device, config), measure)?
}

struct Measure<'a> {
    config: &'a Config,
    data: &'a dyn Dataset,
    images: usize,
    device: &'a Device,
}

impl WithModel for Measure<'_> {
    type Output = Result<Option<u64>, TrainError>;

    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Self::Output {
        let images = self.affordable(&model);
        let mut config = self.config.clone();
        config.parallel.shard_within = ShardWithin::All;
        if config.parallel.strategy != Strategy::Zero3 {
            config.parallel.strategy = Strategy::Ddp;
            // Lazy parameters are created at their first use.
            model.visit(&mut Touch);
        }
        let mut parallel = Parallel::new(
            model,
            optimizer::build(&config.optimizer),
            parallel_options(&config, PASSES),
            &ProcessGroup::single(),
        )?;
        let Some(before) = resident_bytes().filter(|_| reset_peak()) else {
            return Ok(None);
        };
        for _ in 0..PASSES {
            let batch = to_tensors(self.batch(images), self.device);
            let loss = loss::of_batch(&parallel, batch, 0.0);
            parallel.backward(loss)?;
        }
        let taken = peak_bytes().map(|peak| peak.saturating_sub(before));
        Ok(taken.map(|bytes| bytes / images as u64 * self.images as u64))
    }
}

impl Measure<'_> {
    /// Number of images whose computation is affordable, at least one.
    fn affordable<M: ImageClassifier>(&self, model: &M) -> usize {
        let shape = self.data.shape();
        let forward = model.flops([shape.channels, shape.height, shape.width]);
        let each = forward.map_or(0, |flops| flops.saturating_mul(models::flops::TRAINING));
        let most = MOST_FLOPS / each.max(1);
        self.images
            .min(usize::try_from(most).unwrap_or(usize::MAX))
            .max(1)
    }

    /// The contents of the images do not matter.
    fn batch(&self, images: usize) -> Batch {
        let shape = self.data.shape();
        Batch {
            images: vec![0.0; images * shape.channels * shape.height * shape.width],
            labels: vec![0; images],
            mixed: None,
            indices: Vec::new(),
            shape,
        }
    }
}

struct Touch;

impl ModuleVisitor for Touch {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(param.val());
    }
}
