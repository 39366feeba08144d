//! Checkpoints: every rank writes its share, and one rename makes the checkpoint visible.
//!
//! A checkpoint is a folder `step-NNNNNNNNNN` with one safetensors file per rank. `manifest.json`
//! has the BLAKE3 checksum of each file, and `manifest.blake3` that of the manifest, in the format
//! of `b3sum`. The ranks write into a hidden folder beside it. When all files are complete on disk,
//! rank 0 gives the folder its name, so a folder with that name is always whole.
//!
//! The ranks share a file system and see through it which ranks are done. Nothing is sent, so
//! training and its collectives go on meanwhile.
//!
//! ```no_run
//! use std::path::Path;
//! use std::time::Duration;
//!
//! use burn::module::Module;
//! use burn_dist::ProcessGroup;
//! use burn_dist::checkpoint::{Job, Source, Writer, newest_good};
//! use burn_dist::parallel::Parallel;
//!
//! # fn train_epoch<M: Module>(_: &mut Parallel<M>, _: u64) -> u64 { 0 }
//! fn train<M: Module>(
//!     parallel: &mut Parallel<M>,
//!     folder: &Path,
//!     group: &ProcessGroup,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     // Rank 0 looks, so that all ranks resume from the same checkpoint.
//!     let mut newest = [0i64];
//!     if group.rank() == 0 {
//!         newest[0] = newest_good(folder)?.0.map_or(0, |found| found.step as i64);
//!     }
//!     group.broadcast(&mut newest, 0)?;
//!     let mut begin = 0;
//!     if newest[0] > 0 {
//!         let source = Source::open(&folder.join(format!("step-{:010}", newest[0])))?;
//!         parallel.restore(&source)?;
//!         begin = source.manifest().meta["epoch"].as_u64().unwrap_or(0);
//!     }
//!     let mut writer = Writer::start(folder, group, Duration::from_secs(300))?;
//!     for epoch in begin..10 {
//!         let step = train_epoch(parallel, epoch);
//!         let written = writer.submit(Job {
//!             step,
//!             state: parallel.state()?,
//!             meta: serde_json::json!({ "epoch": epoch + 1 }),
//!             keep: 3,
//!             best: Vec::new(),
//!         });
//!         // The result of the previous checkpoint: a slow or full disk does not end the run.
//!         if let Some(Err(error)) = written {
//!             eprintln!("rank {}: {error}", group.rank());
//!         }
//!     }
//!     while let Some(written) = writer.wait() {
//!         written?;
//!     }
//!     writer.close(group)?; // a dropped writer gives up what other ranks still write
//!     Ok(())
//! }
//! ```

mod checkpoints;
mod error;
mod folder;
mod manifest;
mod memory;
mod shard;
mod source;
mod writer;

pub use crate::node_memory::NodeMemory;
pub use checkpoints::{Checkpoints, Resumed};
pub use error::CheckpointError;
pub use folder::{Found, abandon_after, leftovers, list, newest_good, newest_good_by};
pub use manifest::{FileEntry, Manifest};
pub use memory::MemoryCopies;
pub use source::Source;
pub use writer::{Guard, Job, Writer, Written};
