//! The epochs of a training: batches, steps, metrics, checkpoints, early stopping.

use std::time::Duration;

use burn_core::data::dataloader::{DataLoaderIterator, Progress};
use burn_core::data::dataset::DatasetError;
use burn_dist::{ProcessGroup, ReduceOp};
use burn_train::{
    EventProcessorError, EventProcessorTraining, InferenceStep, Learner, LearnerEvent,
    LearnerModel, SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingComponents,
    TrainingItem, ValidLoader,
};

use crate::distributed::Distributed;
use crate::engine::Engine;
use crate::error::LearnerError;
use crate::gather;
use crate::output::GlobalOutput;
use crate::shares;
use crate::turn::Turn;

/// Time for rank 0 to write the last checkpoint.
const WRITTEN: Duration = Duration::from_secs(600);

/// A training on this rank.
pub(crate) struct Fit<'a, M: LearnerModel> {
    distributed: &'a Distributed,
    components: TrainingComponents<M>,
    loaders: (TrainLoader<M>, ValidLoader<M>),
}

/// Each rank's share of the data, and the number of items of all ranks.
struct Data<M: LearnerModel> {
    train: TrainLoader<M>,
    train_items: usize,
    valid: ValidLoader<M>,
    valid_items: usize,
}

/// A batch of this rank with its number of samples.
struct Batch<B> {
    /// `None` if this rank has run out and another has not.
    batch: Option<B>,
    samples: f64,
}

impl<'a, M: LearnerModel> Fit<'a, M>
where
    <M as TrainStep>::Output: GlobalOutput,
    <M as InferenceStep>::Output: GlobalOutput,
{
    pub(crate) fn new(
        distributed: &'a Distributed,
        components: TrainingComponents<M>,
        loaders: (TrainLoader<M>, ValidLoader<M>),
    ) -> Self {
        Self {
            distributed,
            components,
            loaders,
        }
    }

    /// Trains from epoch `first` on. An error ends the training on all ranks; burn-train's
    /// interrupter keeps it.
    pub(crate) fn run(
        mut self,
        learner: Learner<M>,
        first: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let before = learner.model();
        let model = match self.trained(learner, first) {
            Ok(model) => model,
            Err(error) => {
                let error = error.told(&self.distributed.group);
                self.components.interrupter.fail(error);
                before
            }
        };
        (model, self.components.event_processor)
    }

    fn trained(&mut self, learner: Learner<M>, first: usize) -> Result<M, LearnerError> {
        let components = &self.components;
        let mut engine = Engine::new(
            self.distributed,
            learner,
            components.grad_accumulation.unwrap_or(1),
            components.checkpoint,
            components.checkpointer.is_some(),
        )?;
        let data = self.data(&engine, first - 1)?;
        for epoch in first..=self.components.num_epochs {
            if self.epoch(&mut engine, &data, epoch)? {
                break;
            }
        }
        // Waits until burn-train's checkpoints are written, on all ranks.
        drop(self.components.checkpointer.take());
        engine.group().barrier_within(WRITTEN)?;
        engine.finish()
    }

    fn data(&self, engine: &Engine<M>, epochs: usize) -> Result<Data<M>, LearnerError> {
        let group = engine.group();
        let (train, valid) = (self.loaders.0.clone(), self.loaders.1.clone());
        let (train, valid) = match self.distributed.loads_whole {
            true => (shares::of_rank(train, group), shares::of_rank(valid, group)),
            false => (train, valid),
        };
        let train = train.to_device(engine.device());
        let valid = valid.to_device(&engine.device().clone().inner());
        shares::skip(&train, epochs);
        shares::skip(&valid, epochs);
        Ok(Data {
            train_items: shares::total_items(&train, group)?,
            valid_items: shares::total_items(&valid, group)?,
            train,
            valid,
        })
    }

    /// Trains and validates for an epoch. Returns whether it was the last one.
    fn epoch(
        &mut self,
        engine: &mut Engine<M>,
        data: &Data<M>,
        epoch: usize,
    ) -> Result<bool, LearnerError> {
        self.show(|events| events.process_train(split_starts(epoch, data.train_items)));
        let stopped = self.train_epoch(engine, data, epoch)?;
        self.show(|events| events.process_train(LearnerEvent::EndSplit(epoch)));
        if stopped || self.stops(engine)? {
            return Ok(true);
        }
        engine.verify()?;
        self.show(|events| events.process_valid(split_starts(epoch, data.valid_items)));
        let stopped = self.valid_epoch(engine, data)?;
        self.show(|events| events.process_valid(LearnerEvent::EndSplit(epoch)));
        self.show(|events| events.process_train(LearnerEvent::EndEpoch(epoch)));
        if self.components.checkpointer.is_some() || self.components.early_stopping.is_some() {
            self.show(|events| events.flush());
        }
        if stopped || self.stops(engine)? {
            return Ok(true);
        }
        self.checkpoint(engine, epoch)?;
        self.stops_early(engine.group(), epoch)
    }

    /// Trains for an epoch. Returns whether a rank was asked to stop.
    fn train_epoch(
        &mut self,
        engine: &mut Engine<M>,
        data: &Data<M>,
        epoch: usize,
    ) -> Result<bool, LearnerError> {
        let mut batches = data.train.iter();
        let mut iteration = 0;
        loop {
            let Batch { batch, samples } = next(&mut *batches)?;
            let turn = self.turn(engine.group(), batch.is_some())?;
            if turn.stopped_by.is_some() {
                engine.discard()?;
                return Ok(true);
            }
            if !turn.any || (engine.needs_all() && !turn.all) {
                break;
            }
            iteration += 1;
            if let Some(seed) = self.distributed.seed_for(epoch, iteration) {
                engine.device().seed(seed);
            }
            let output = engine.micro_batch(batch, samples)?;
            if engine.is_full() {
                step(engine, epoch, iteration)?;
            }
            self.show_trained(engine, output, samples, batches.progress(), iteration)?;
        }
        step(engine, epoch, iteration)?;
        Ok(false)
    }

    /// Passes the output of a training batch to the metrics.
    fn show_trained(
        &mut self,
        engine: &Engine<M>,
        own: Option<<M as TrainStep>::Output>,
        samples: f64,
        progress: Progress,
        iteration: usize,
    ) -> Result<(), LearnerError> {
        let gathered = match self.distributed.sends_train_outputs {
            true => {
                let device = engine.device().clone().inner();
                gather::outputs(engine.group(), own, samples, &progress, &device)?
            }
            false => gather::Gathered {
                outputs: own.into_iter().collect(),
                progress,
            },
        };
        for output in gathered.outputs {
            let (progress, rate) = (gathered.progress.clone(), engine.learner().lr_current());
            let item = TrainingItem::new(output, progress, Some(iteration), Some(rate));
            self.show(|events| events.process_train(LearnerEvent::ProcessedItem(item)));
        }
        Ok(())
    }

    /// Validates. Returns whether a rank was asked to stop.
    fn valid_epoch(
        &mut self,
        engine: &mut Engine<M>,
        data: &Data<M>,
    ) -> Result<bool, LearnerError> {
        let model = engine.valid()?;
        let device = engine.device().clone().inner();
        let mut batches = data.valid.iter();
        let mut iteration = 0;
        loop {
            let Batch { batch, samples } = next(&mut *batches)?;
            let turn = self.turn(engine.group(), batch.is_some())?;
            if turn.stopped_by.is_some() || !turn.any {
                return Ok(turn.stopped_by.is_some());
            }
            iteration += 1;
            let own = batch.map(|batch| InferenceStep::step(&model, batch));
            let progress = batches.progress();
            let gathered = gather::outputs(engine.group(), own, samples, &progress, &device)?;
            for output in gathered.outputs {
                let progress = gathered.progress.clone();
                let item = TrainingItem::new(output, progress, Some(iteration), None);
                self.show(|events| events.process_valid(LearnerEvent::ProcessedItem(item)));
            }
        }
    }

    /// Writes burn-train's checkpoint on rank 0, and the shares of a state on all ranks.
    fn checkpoint(&mut self, engine: &mut Engine<M>, epoch: usize) -> Result<(), LearnerError> {
        let Some(checkpointer) = &mut self.components.checkpointer else {
            return Ok(());
        };
        engine.save_state(epoch)?;
        engine.refresh()?;
        if engine.group().rank() == 0 {
            checkpointer.checkpoint(engine.learner(), epoch, &self.components.event_store);
        }
        Ok(())
    }

    /// Whether rank 0, which has the metrics, stops the training early. A collective call.
    fn stops_early(&mut self, group: &ProcessGroup, epoch: usize) -> Result<bool, LearnerError> {
        let Some(early_stopping) = &mut self.components.early_stopping else {
            return Ok(false);
        };
        let mut stops = [0u8];
        if group.rank() == 0 {
            let store = &self.components.event_store;
            stops[0] = u8::from(early_stopping.should_stop(epoch, store));
        }
        group.all_reduce::<u8>(&mut stops, ReduceOp::Max)?;
        Ok(stops[0] != 0)
    }

    /// Whether any rank was asked to stop. A collective call.
    fn stops(&self, engine: &Engine<M>) -> Result<bool, LearnerError> {
        Ok(self.turn(engine.group(), false)?.stopped_by.is_some())
    }

    /// Agrees with all ranks, and stops here if another rank was asked to.
    fn turn(&self, group: &ProcessGroup, has: bool) -> Result<Turn, LearnerError> {
        let interrupter = &self.components.interrupter;
        let turn = Turn::agree(group, has, interrupter.should_stop())?;
        if let Some(rank) = turn.stopped_by
            && !interrupter.should_stop()
        {
            interrupter.stop(Some(&format!("rank {rank} stopped the training")));
        }
        Ok(turn)
    }

    /// Shows something on rank 0. A failed metric stops the training.
    fn show(
        &mut self,
        event: impl FnOnce(&mut SupervisedTrainingEventProcessor<M>) -> Result<(), EventProcessorError>,
    ) {
        if self.distributed.group.rank() == 0 {
            let outcome = event(&mut self.components.event_processor);
            self.components.interrupter.fail_on_error(outcome);
        }
    }
}

/// The event that starts a split with items of type `T`.
fn split_starts<T>(epoch_number: usize, total_items: usize) -> LearnerEvent<T> {
    LearnerEvent::StartSplit {
        epoch_number,
        total_items,
    }
}

/// The next batch, with the number of samples by which the loader has advanced.
fn next<B>(batches: &mut dyn DataLoaderIterator<B>) -> Result<Batch<B>, LearnerError> {
    let before = batches.progress().items_processed;
    let batch: Option<Result<B, DatasetError>> = batches.next();
    let batch = batch.transpose().map_err(LearnerError::Dataset)?;
    let samples = batches.progress().items_processed.saturating_sub(before);
    // A loader that does not count items has batches of equal weight.
    let samples = samples.max(1) as f64;
    Ok(Batch { batch, samples })
}

/// Updates the parameters.
fn step<M: LearnerModel>(
    engine: &mut Engine<M>,
    epoch: usize,
    iteration: usize,
) -> Result<(), LearnerError> {
    match engine.step()? {
        true => Ok(()),
        false => Err(LearnerError::Diverged { epoch, iteration }),
    }
}
