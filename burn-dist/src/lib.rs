//! Distributed training for [Burn](https://burn.dev): ranks, collectives, DDP and ZeRO.
//!
//! A program finds its [`World`](world::World), connects a [`ProcessGroup`], and trains a model
//! with [`Parallel`](parallel::Parallel), which averages gradients while backward runs:
//!
//! ```no_run
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::AdamWConfig;
//! use burn::tensor::Tensor;
//! use burn_dist::ProcessGroup;
//! use burn_dist::parallel::{Parallel, Strategy};
//! use burn_dist::world::World;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let world = World::from_env()?; // Slurm, MPI, torchrun's variables, or a single rank
//!     let group = ProcessGroup::connect(&world)?;
//!     let device = world.device()?.autodiff();
//!     let model: Linear = LinearConfig::new(10, 1).init(&device);
//!     let mut parallel = Parallel::new(model, AdamWConfig::new(), Strategy::Ddp, &group)?;
//!     for _ in 0..100 {
//!         let batch = Tensor::<2>::ones([32, 10], &device);
//!         let loss = parallel.model().forward(batch).square().mean();
//!         parallel.backward(loss)?;
//!         parallel.step(1e-3)?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! [`ProcessGroup::in_process`] connects ranks that are threads of one process. Tests and
//! experiments need no launcher:
//!
//! ```
//! use burn_dist::{GroupOptions, ProcessGroup, ReduceOp};
//!
//! let groups = ProcessGroup::in_process(2, &GroupOptions::default())?;
//! let ranks = groups.into_iter().map(|group| {
//!     std::thread::spawn(move || {
//!         let mut data = vec![group.rank() as f32 + 1.0; 4];
//!         group.all_reduce(&mut data, ReduceOp::Sum).map(|()| data)
//!     })
//! });
//! for rank in ranks.collect::<Vec<_>>() {
//!     assert_eq!(rank.join().unwrap()?, [3.0; 4]);
//! }
//! # Ok::<(), burn_dist::Error>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`world`] | rank, world size and node of this process |
//! | [`launch`] | Slurm, MPI, torchrun and the own launcher |
//! | [`rendezvous`] | how ranks find each other |
//! | [`wire`] | authenticated connections and the run's secret |
//! | [`transport`] | bytes between ranks: shared memory, TCP, MPI |
//! | [`collective`] | the algorithms of the collectives |
//! | [`group`] | [`ProcessGroup`]: collectives, timeouts, flight recorder |
//! | [`nccl`] | collectives on GPU memory |
//! | [`buffer`], [`element`] | memory and element types of collectives |
//! | [`device`] | the device of a rank |
//! | [`autograd`] | gradient hooks and sums over ranks within a model |
//! | [`bucket`] | gradients that travel together |
//! | [`parallel`] | [`Parallel`](parallel::Parallel): DDP, ZeRO 1 to 3, mixed precision |
//! | [`precision`] | number formats and loss scaling |
//! | [`checkpoint`] | sharded state on disk |
//! | [`files`] | files that are complete or invisible |
//! | [`thread_limit`] | how many threads this process may start |

// Only shared memory, MPI, NCCL, the CUDA driver and a checked `close` need unsafe code. Each
// allows it for itself.
#![deny(unsafe_code)]

pub mod autograd;
mod backend;
pub mod bucket;
pub mod buffer;
pub mod checkpoint;
pub mod collective;
mod compression;
mod deadline;
pub mod device;
pub mod element;
pub mod files;
mod flat;
mod fused;
pub mod group;
pub mod launch;
mod map_shards;
mod mean;
mod named;
pub mod nccl;
mod node_memory;
mod open_files;
pub mod parallel;
pub mod precision;
mod process;
mod readable;
mod reduce;
pub mod rendezvous;
mod run;
mod shard;
mod stop_signal;
pub mod thread_limit;
pub mod thread_pool;
pub mod transport;
mod virtual_ranks;
mod watchdog;
pub mod wire;
pub mod world;
mod zero;

mod error;

pub use buffer::Buffer;
pub use compression::Compression;
pub use element::{DType, Element, ReduceOp};
pub use error::{CollectiveError, Error};
pub use group::{
    Abort, Algorithm, Busy, Connecting, GroupOptions, Handle, ProcessGroup, TransportKind,
};
pub use map_shards::{MapError, map_shards};
pub use mean::WeightedMean;
pub use named::UnknownName;
pub use open_files::TooFewOpenFiles;
pub use run::{Run, run};
pub use shard::{Cuts, shard};
pub use stop_signal::{STOPPED_EARLY, StopSignal};
pub use virtual_ranks::{MOST_VIRTUAL_RANKS, VirtualRanks, VirtualRanksError};
