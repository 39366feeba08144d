//! The training strategy of burn-train.

use std::sync::Arc;

use burn_train::{
    EventProcessorTraining, InferenceStep, Learner, LearnerModel, LearningResult,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainStep,
    TrainingComponents, TrainingStrategy, ValidLoader,
};

use crate::distributed::Distributed;
use crate::fit::Fit;
use crate::output::GlobalOutput;

impl<M: LearnerModel> From<Distributed> for TrainingStrategy<M>
where
    <M as TrainStep>::Output: GlobalOutput,
    <M as InferenceStep>::Output: GlobalOutput,
{
    fn from(distributed: Distributed) -> Self {
        Self::Custom(Arc::new(distributed))
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for Distributed
where
    <M as TrainStep>::Output: GlobalOutput,
    <M as InferenceStep>::Output: GlobalOutput,
{
    fn train(
        &self,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        components: TrainingComponents<M>,
    ) -> LearningResult<M> {
        let first = components.checkpoint.unwrap_or(0) + 1;
        if self.group.rank() == 0 {
            // The same with the events that start and end renderer and logs.
            return Shown(self).train(learner, dataloader_train, dataloader_valid, components);
        }
        let interrupter = components.interrupter.clone();
        let (model, events) = self.fit(
            components,
            learner,
            dataloader_train,
            dataloader_valid,
            first,
        );
        LearningResult {
            model: model.valid(),
            renderer: events.renderer(),
            interrupted: interrupter.interruption(),
            error: interrupter.error(),
        }
    }

    fn fit(
        &self,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        Fit::new(self, components, (dataloader_train, dataloader_valid))
            .run(learner, starting_epoch)
    }
}

/// The strategy on the rank that shows the training.
struct Shown<'a>(&'a Distributed);

impl<M: LearnerModel> SupervisedLearningStrategy<M> for Shown<'_>
where
    <M as TrainStep>::Output: GlobalOutput,
    <M as InferenceStep>::Output: GlobalOutput,
{
    fn fit(
        &self,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        self.0.fit(
            components,
            learner,
            dataloader_train,
            dataloader_valid,
            starting_epoch,
        )
    }
}
