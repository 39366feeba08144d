//! Errors of tar shards.

use std::io;
use std::path::PathBuf;

/// The reason why a tar shard cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TarError {
    /// The system refused an operation on a shard.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The shard.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// A shard is truncated.
    #[error(
        "{} is truncated: it ends {place}, at byte {offset} of its uncompressed content. Fetch it \
         again",
        path.display()
    )]
    Truncated {
        /// The shard.
        path: PathBuf,
        /// The place where it ends.
        place: &'static str,
        /// Offset in the uncompressed content.
        offset: u64,
    },

    /// A shard is damaged, or it is not a tar file.
    #[error(
        "{} is damaged or not a tar file: {reason} (byte {offset} of its uncompressed content). \
         Replace it",
        path.display()
    )]
    Damaged {
        /// The shard.
        path: PathBuf,
        /// The found and the expected value.
        reason: String,
        /// Offset in the uncompressed content.
        offset: u64,
    },

    /// A sample is too large.
    #[error(
        "{}: the sample at byte {offset} has more than {limit} bytes. Raise the limit with \
         max_sample_bytes, or replace the shard",
        path.display()
    )]
    TooLarge {
        /// The shard.
        path: PathBuf,
        /// Offset of the sample in the uncompressed content.
        offset: u64,
        /// The limit in bytes.
        limit: u64,
    },

    /// A sample lacks a file.
    #[error("sample {key} has no file .{extension}, only .{}", found.join(", ."))]
    Lacks {
        /// The key of the sample.
        key: String,
        /// The wanted extension.
        extension: String,
        /// The extensions of its files.
        found: Vec<String>,
    },

    /// A compressed shard has no index.
    #[error(
        "{} is compressed, so its samples cannot be read in any order. Decompress it, or use a \
         ShardLoader",
        path.display()
    )]
    Compressed {
        /// The shard.
        path: PathBuf,
    },

    /// A sample does not exist.
    #[error("sample {index} does not exist: the shards have {len}")]
    Index {
        /// Its index.
        index: usize,
        /// Number of samples.
        len: usize,
    },

    /// A pattern of shard names is malformed.
    #[error("{pattern}: {reason}. Write a range as {{000000..000009}}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The problem.
        reason: &'static str,
    },

    /// No shard was given.
    #[error("no shards were given. Pass at least one file")]
    NoShards,
}
