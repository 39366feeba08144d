//! Errors of samplers and loaders.

use std::error::Error;
use std::io;
use std::sync::Arc;

use crate::pipeline::Failure;

/// The error of a data set, or of a closure that a loader calls.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A [`BoxError`] that can be cloned.
pub type SharedError = Arc<dyn Error + Send + Sync>;

/// The reason why a loader cannot make a batch.
///
/// It can be cloned, so that `Parallel::join` takes the batches of a loader as they are.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// An index is out of range.
    #[error(
        "item {index} does not exist: the data set has {len}. Create the sampler with the length \
         of this data set"
    )]
    Index {
        /// The index.
        index: usize,
        /// Number of items.
        len: usize,
    },

    /// The data set returned an error for an item.
    #[error("cannot read item {index}: {source}")]
    Item {
        /// Index of the item; the first one of a batch that is read as a whole.
        index: usize,
        /// The error of the data set.
        source: SharedError,
    },

    /// A data set returned a wrong number of items.
    #[error("the data set returned {found} items for {asked} indices. Correct its get_many")]
    Count {
        /// Number of items.
        found: usize,
        /// Number of indices.
        asked: usize,
    },

    /// A shard cannot be read.
    #[error("cannot read shard {shard}: {source}")]
    Shard {
        /// Index of the shard.
        shard: usize,
        /// The error of the shard.
        source: SharedError,
    },

    /// The closure that decodes a sample returned an error.
    #[error("cannot decode sample {position} of shard {shard}: {source}")]
    Decode {
        /// Index of the shard.
        shard: usize,
        /// Number of the sample in the shard, from 0.
        position: usize,
        /// The error of the closure.
        source: SharedError,
    },

    /// The closure that makes a batch of items returned an error.
    #[error("cannot make batch {position} of the epoch: {source}")]
    Collate {
        /// Number of the batch in the iterator, from 0.
        position: usize,
        /// The error of the closure.
        source: SharedError,
    },

    /// A batch does not fit into memory.
    #[error("out of memory for a batch of {bytes} bytes. Use smaller micro-batches")]
    Memory {
        /// Bytes needed.
        bytes: usize,
    },

    /// A loader's thread did not start.
    #[error("cannot start a loader thread: {source}. Use fewer workers")]
    Spawn {
        /// The system's error.
        source: Arc<io::Error>,
    },

    /// A data set or a closure panicked.
    #[error("panic while making batch {position} of the epoch: {message}")]
    Panic {
        /// Number of the batch in the iterator, from 0.
        position: usize,
        /// The message of the panic.
        message: String,
    },
}

impl From<Failure> for LoaderError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Spawn(source) => LoaderError::Spawn {
                source: Arc::new(source),
            },
            Failure::Panic { position, message } => LoaderError::Panic { position, message },
        }
    }
}

/// The reason why samples cannot be divided as requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// A size is zero.
    #[error("{what} is 0; it must be at least 1")]
    Zero {
        /// The size.
        what: &'static str,
    },

    /// The rank does not exist.
    #[error("rank {rank} does not exist in a world of {size} (ranks count from 0)")]
    Rank {
        /// The rank.
        rank: usize,
        /// The world size.
        size: usize,
    },

    /// A rank's shares do not exist.
    #[error("shares {} to {} do not exist in a division by {size}, or are none", own.start, own.end)]
    Shares {
        /// The shares, from 0; the last one is not included.
        own: std::ops::Range<usize>,
        /// Number of shares.
        size: usize,
    },

    /// The global batch cannot be divided into micro-batches on all ranks.
    #[error(
        "a global batch of {global_batch} does not divide into micro-batches of {micro_batch} on \
         {size} ranks. Use a multiple of {}, such as {}",
        micro_batch.saturating_mul(*size), nearest_multiple(*global_batch, micro_batch.saturating_mul(*size))
    )]
    Divide {
        /// The global batch.
        global_batch: usize,
        /// The micro-batch.
        micro_batch: usize,
        /// The world size.
        size: usize,
    },

    /// The data set has fewer samples than a global batch.
    #[error(
        "the data set has {len} samples, fewer than one global batch of {global_batch}. Use a \
         smaller batch"
    )]
    TooFew {
        /// Number of samples in the data set.
        len: usize,
        /// The global batch.
        global_batch: usize,
    },

    /// Samples cannot be drawn by these weights.
    #[error("{reason}. Use finite weights from 0, with at least one above 0")]
    Weights {
        /// The weight that cannot be used, and its place.
        reason: String,
    },

    /// The number of lengths is not the number of samples.
    #[error("{given} lengths for {len} samples. Pass one length per sample of the data set")]
    Lengths {
        /// Number of lengths.
        given: usize,
        /// Number of samples.
        len: usize,
    },

    /// A label has no class.
    #[error("sample {index} has label {label}, but there are {classes} classes")]
    Label {
        /// Index of the sample.
        index: usize,
        /// Its label.
        label: usize,
        /// Number of classes.
        classes: usize,
    },
}

fn nearest_multiple(value: usize, of: usize) -> usize {
    let down = value.checked_div(of).unwrap_or(0).max(1);
    of.saturating_mul(down)
}
