//! The one line that makes a training distributed.

use burn_train::{InferenceStep, LearnerModel, SupervisedTraining, TrainStep};

use crate::distributed::Distributed;
use crate::output::GlobalOutput;
use crate::silent::Silent;

/// Makes a training of burn-train distributed.
pub trait Distribute {
    /// Trains on all ranks, and shows and logs on rank 0 alone.
    ///
    /// As `with_training_strategy(distributed.into())`, which leaves renderer and log file of the
    /// other ranks as they are. Call it last: it replaces renderer and log file on those ranks.
    fn distribute(self, distributed: Distributed) -> Self;
}

impl<M: LearnerModel> Distribute for SupervisedTraining<M>
where
    <M as TrainStep>::Output: GlobalOutput,
    <M as InferenceStep>::Output: GlobalOutput,
{
    fn distribute(self, distributed: Distributed) -> Self {
        let shows = distributed.group().rank() == 0;
        let training = self.with_training_strategy(distributed.into());
        match shows {
            true => training,
            false => training
                .renderer(Box::new(Silent))
                .with_application_logger(None),
        }
    }
}
