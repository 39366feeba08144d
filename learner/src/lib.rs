//! Distributed training for the `Learner` of burn-train.
//!
//! One line makes an existing training distributed; model, `TrainStep`, optimizer, metrics and
//! checkpoints stay as they are:
//!
//! ```
//! # use burn::tensor::Device;
//! # use burn_dist::ProcessGroup;
//! use burn_train::{LearnerModel, SupervisedTraining};
//! use learner::{Distribute, Distributed, GlobalOutput};
//!
//! fn distributed<M: LearnerModel>(
//!     training: SupervisedTraining<M>,
//!     group: &ProcessGroup,
//! ) -> SupervisedTraining<M>
//! where
//!     <M as burn_train::TrainStep>::Output: GlobalOutput,
//!     <M as burn_train::InferenceStep>::Output: GlobalOutput,
//! {
//!     training.distribute(Distributed::new(group))
//! }
//! ```
//!
//! `docs/learner.md` shows whole programs. Every rank runs the same program; [`burn_dist::run`]
//! starts them.
//!
//! | module | contents |
//! |---|---|
//! | `distribute` | [`Distribute`]: the one line |
//! | `strategy` | the training strategy of burn-train |
//! | `distributed` | [`Distributed`]: its options |
//! | `fit` | the epochs: batches, steps, metrics, checkpoints, early stopping |
//! | `engine` | forward, backward and optimizer over all ranks |
//! | `gather` | outputs of all ranks on rank 0 |
//! | `output` | [`GlobalOutput`]: outputs that become one output of the global batch |
//! | `sampled` | [`SampledLoader`]: Burn's `DataLoader` over samplers and workers |
//! | `shares` | each rank's share of a data loader |
//! | `turn` | what all ranks agree on before a batch |
//! | `silent` | the renderer of ranks that show nothing |
//! | `error` | errors that end the training on all ranks |

mod distribute;
mod distributed;
mod engine;
mod error;
mod fit;
mod gather;
mod output;
mod sampled;
mod shares;
mod silent;
mod strategy;
mod turn;

pub use distribute::Distribute;
pub use distributed::Distributed;
pub use output::{GlobalOutput, Part, Parts};
pub use sampled::SampledLoader;
