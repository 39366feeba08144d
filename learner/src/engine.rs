//! Forward, backward and optimizer over all ranks, and the state in checkpoints.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_dist::ProcessGroup;
use burn_dist::checkpoint::{CheckpointError, Checkpoints, Source, list};
use burn_dist::parallel::{Parallel, ParallelError, ParallelOptions, ParameterOptimizer, Strategy};
use burn_train::{Learner, LearnerModel, TrainStep};

use crate::distributed::Distributed;
use crate::error::LearnerError;

/// The Learner's model on all ranks.
pub(crate) struct Engine<M: LearnerModel> {
    /// Has the optimizer, unless there is one of ours, and the learning rate schedule. Its model is
    /// current only under its own optimizer, and its buffers only after
    /// [`refresh`](Self::refresh).
    learner: Learner<M>,
    parallel: Parallel<M>,
    /// Whether the Learner's optimizer updates the parameters.
    own_optimizer: bool,
    /// Device of batches, with autodiff.
    device: Device,
    /// Micro-batches of the current step.
    done: usize,
    accumulate: usize,
    states: Option<Checkpoints>,
}

impl<M: LearnerModel> Engine<M> {
    /// Prepares `learner` for training, from the state of epoch `resumed` if there is one. A
    /// collective call.
    pub(crate) fn new(
        distributed: &Distributed,
        mut learner: Learner<M>,
        accumulate: usize,
        resumed: Option<usize>,
        saves: bool,
    ) -> Result<Self, LearnerError> {
        let group = &distributed.group;
        let (optimizer, own_optimizer) = optimizer_of(distributed)?;
        let device = device_of(distributed, &learner.model());
        learner.fork(&device);
        // With running statistics of its own: a clone would share the Learner's.
        let model = learner.model().valid().train().fork(&device);
        let options = ParallelOptions {
            accumulate,
            ..distributed.options.clone()
        };
        let mut parallel = Parallel::new(model, optimizer, options, group)?;
        let states = match (&distributed.state_folder, own_optimizer) {
            (Some(folder), false) => {
                let states = Checkpoints::open(folder, group)?.keep(distributed.states_kept);
                if let Some(epoch) = resumed {
                    restore(&mut parallel, folder, epoch)?;
                }
                Some(states)
            }
            (None, false) if saves || resumed.is_some() => return Err(LearnerError::NoStateFolder),
            _ => None,
        };
        let mut engine = Self {
            learner,
            parallel,
            own_optimizer,
            device,
            done: 0,
            accumulate,
            states,
        };
        // Rank 0's initial values.
        engine.refresh()?;
        Ok(engine)
    }

    pub(crate) fn group(&self) -> &ProcessGroup {
        self.parallel.group()
    }

    pub(crate) fn learner(&self) -> &Learner<M> {
        &self.learner
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether a rank without a batch must stop the others: their forward passes are collective
    /// calls.
    pub(crate) fn needs_all(&self) -> bool {
        self.parallel.gathers()
    }

    /// Runs the user's step on this rank's batch of `samples` samples, if it has one. A collective
    /// call.
    pub(crate) fn micro_batch(
        &mut self,
        batch: Option<<M as TrainStep>::Input>,
        samples: f64,
    ) -> Result<Option<<M as TrainStep>::Output>, LearnerError> {
        let output = match batch {
            Some(batch) => self.parallel.backward_by(samples, |model| {
                let output = TrainStep::step(model, batch);
                (output.grads, Some(output.item))
            })?,
            None => self
                .parallel
                .backward_by(0.0, |_| (GradientsParams::new(), None))?,
        };
        self.done += 1;
        Ok(output)
    }

    /// Whether all micro-batches of a step are done.
    pub(crate) fn is_full(&self) -> bool {
        self.done == self.accumulate
    }

    /// Updates the parameters with the micro-batches that are done, if any. Returns whether
    /// gradients were finite, as far as that is measured.
    pub(crate) fn step(&mut self) -> Result<bool, LearnerError> {
        if self.done == 0 {
            return Ok(true);
        }
        self.learner.lr_step();
        let rate = self.learner.lr_current().base();
        let learner = &mut self.learner;
        let done = self.done;
        let report = if self.own_optimizer {
            self.parallel.step_by(rate, |gradients| {
                let gradients = match done {
                    1 => gradients,
                    // burn-train adds micro-batches up.
                    _ => times(gradients, &learner.model(), done),
                };
                learner.optimizer_step(gradients);
                learner.model()
            })?
        } else if self.is_full() {
            self.parallel.step(rate)?
        } else {
            self.parallel.step_early(rate)?
        };
        self.done = 0;
        Ok(report.applied)
    }

    /// Drops the micro-batches of a step that will not be made.
    pub(crate) fn discard(&mut self) -> Result<(), LearnerError> {
        if self.done > 0 {
            self.parallel.discard()?;
            self.done = 0;
        }
        Ok(())
    }

    /// The model for validation, with rank 0's running statistics on all ranks. A collective call.
    pub(crate) fn valid(&mut self) -> Result<M, LearnerError> {
        self.parallel.sync_buffers()?;
        Ok(self.parallel.valid()?)
    }

    /// Compares the replicas of all ranks: the Learner's optimizer is not ours. A collective call.
    pub(crate) fn verify(&self) -> Result<(), LearnerError> {
        if self.own_optimizer {
            self.parallel.verify_replicas()?;
        }
        Ok(())
    }

    /// Brings the Learner's model up to date. A collective call under ZeRO-3.
    pub(crate) fn refresh(&mut self) -> Result<(), LearnerError> {
        let model = self.parallel.valid()?;
        self.learner.load_model(model.into_record());
        Ok(())
    }

    /// Saves the state of an optimizer of ours after an epoch. A collective call.
    pub(crate) fn save_state(&mut self, epoch: usize) -> Result<(), LearnerError> {
        if let Some(states) = &mut self.states {
            states.save(epoch as u64, &self.parallel, serde_json::Value::Null)?;
        }
        Ok(())
    }

    /// Ends the training. A collective call.
    pub(crate) fn finish(self) -> Result<M, LearnerError> {
        if let Some(states) = self.states {
            states.finish()?;
        }
        Ok(self.parallel.into_model()?)
    }
}

/// The optimizer of the ranks, and whether the optimizer of the Learner takes its place.
fn optimizer_of(distributed: &Distributed) -> Result<(ParameterOptimizer, bool), LearnerError> {
    match (&distributed.optimizer, distributed.options.strategy) {
        (Some(optimizer), _) => Ok((optimizer.clone(), false)),
        // It is never called, and keeps no state.
        (None, Strategy::Ddp) => Ok((SgdConfig::new().into(), true)),
        (None, strategy) => Err(LearnerError::OptimizerIsPrivate { strategy }),
    }
}

fn device_of<M: Module>(distributed: &Distributed, model: &M) -> Device {
    let device = match &distributed.device {
        Some(device) => Some(device.clone()),
        None => model.devices().into_iter().next(),
    };
    let device = device.unwrap_or_default();
    match device.is_autodiff() {
        true => device,
        false => device.autodiff(),
    }
}

/// Restores the state of an epoch.
fn restore<M: Module>(
    parallel: &mut Parallel<M>,
    folder: &std::path::Path,
    epoch: usize,
) -> Result<(), LearnerError> {
    let unreadable = |error: CheckpointError| ParallelError::Checkpoints {
        reason: error.to_string(),
    };
    let found = list(folder).map_err(unreadable)?;
    let Some(state) = found.iter().find(|found| found.step == epoch as u64) else {
        return Err(LearnerError::NoState {
            epoch,
            folder: folder.to_owned(),
            found: found.iter().map(|found| found.step).collect(),
        });
    };
    let source = Source::open(&state.path).map_err(unreadable)?;
    Ok(parallel.restore(&source)?)
}

/// `gradients` of `model` times a number.
fn times<M: Module>(gradients: GradientsParams, model: &M, by: usize) -> GradientsParams {
    struct Times {
        gradients: GradientsParams,
        by: usize,
        /// Shared parameters are visited more than once.
        seen: HashSet<ParamId>,
    }

    impl ModuleVisitor for Times {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !self.seen.insert(param.id) {
                return;
            }
            if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                let gradient = gradient.mul_scalar(self.by as f64);
                self.gradients.register(param.id, gradient);
            }
        }
    }

    let mut times = Times {
        gradients,
        by,
        seen: HashSet::new(),
    };
    model.visit(&mut times);
    times.gradients
}
