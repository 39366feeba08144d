//! Samplers and batches of any data set for distributed training.
//!
//! 1. A sampler chooses the samples of a rank and their order. [`TrainSampler`] shuffles by seed
//!    and epoch and splits every global batch over the ranks; it can also draw by weights and group
//!    by length. [`EvalSampler`] gives every sample to exactly one rank. Both make an [`Epoch`].
//! 2. A [`Loader`] turns an [`Epoch`] into batches: worker threads read a Burn [`Dataset`], augment
//!    and collate, and batches come out in order.
//! 3. A [`ShardLoader`] does so for data that can only be read in order: tar files ([`TarShards`]),
//!    or [`Shards`] of your own.
//!
//! Order and random numbers depend on seed, epoch and sample only. So an epoch is the same for any
//! number of workers, and a run can resume at any step. A global batch of a [`TrainSampler`] is the
//! same for any number of ranks, too; the order of shards depends on it.
//!
//! ```
//! use burn_dataset::InMemDataset;
//! use loader::{Loader, TrainSampler};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let numbers = InMemDataset::new((0..100_u32).collect());
//! let sum = |items: Vec<u32>| Ok::<_, std::convert::Infallible>(items.iter().sum::<u32>());
//! let loader = Loader::new(numbers, sum).workers(2);
//!
//! // Rank 0 of 2: a global batch of 20 samples is 2 ranks × 2 micro-batches of 5.
//! let sampler = TrainSampler::new(loader.len(), 20, 5, 0, 2, 42)?;
//! let epoch = sampler.epoch(0).from_step(3); // resumes after 3 of 5 steps
//! let sums: Vec<u32> = loader.iter(epoch).collect::<Result<_, _>>()?;
//! assert_eq!(sums.len(), 4);
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`pipeline`] | the worker threads under both loaders, for a loader of your own |
//! | [`random`] | random numbers that depend only on their key |
//!
//! [`Dataset`]: burn_dataset::Dataset

#![forbid(unsafe_code)]

mod error;
mod loader;
mod padding;
pub mod pipeline;
pub mod random;
mod sampler;
mod shards;
mod tar_shards;
#[cfg(test)]
mod within;

pub use error::{BoxError, LoaderError, SamplerError, SharedError};
pub use loader::{Batches, Loader};
pub use padding::{Padded, Padding};
pub use sampler::{Epoch, EvalSampler, TrainSampler, class_weights, sample_weights};
pub use shards::{Division, Items, ShardEpoch, ShardLoader, ShardReader, ShardSampler, Shards};
pub use tar_shards::{TarDataset, TarError, TarSample, TarShards};
