//! Samples in tar files, as the Python library WebDataset writes them.

mod error;
mod index;
mod input;
mod pattern;
mod reader;
mod sample;

use std::fs;
use std::path::PathBuf;

use crate::error::BoxError;
use crate::shards::{ShardReader, Shards};
pub use error::TarError;
pub use index::TarDataset;
use input::CONTENTS;
use reader::TarReader;
pub use sample::TarSample;

/// Largest sample, if the user sets no limit.
const MAX_SAMPLE_BYTES: u64 = 256 << 20;

/// Tar files of samples, plain or compressed by gzip, for a [`ShardLoader`](crate::ShardLoader).
///
/// Consecutive files with the same name up to the first dot are a sample: [`TarSample`]. Folders,
/// links and files without an extension are ignored. A sample has at most 1024 files, and a name at
/// most 4096 bytes.
///
/// ```no_run
/// use loader::{BoxError, ShardLoader, ShardSampler, TarSample, TarShards};
///
/// # fn main() -> Result<(), BoxError> {
/// let shards = TarShards::from_pattern("train/shard-{000000..000009}.tar")?;
/// let decode = |sample: TarSample, _: &mut _| {
///     let class: u32 = str::from_utf8(sample.get("cls")?)?.trim().parse()?;
///     Ok::<_, BoxError>((sample.get("jpg")?.to_vec(), class))
/// };
/// let loader = ShardLoader::new(shards, decode, Ok::<_, BoxError>).workers(4);
///
/// let (rank, size, seed) = (0, 2, 42);
/// let sampler = ShardSampler::new(32, rank, size)?.shuffle(1000, seed);
/// for batch in loader.iter(sampler.epoch(0)) {
///     println!("{} samples", batch?.len());
/// }
/// # Ok(())
/// # }
/// ```
///
/// A damaged or truncated shard is an error. Memory is bounded by
/// [`max_sample_bytes`](Self::max_sample_bytes) and the samples in the buffer and in batches.
#[derive(Debug, Clone)]
pub struct TarShards {
    paths: Vec<PathBuf>,
    max_sample: u64,
}

impl TarShards {
    /// The shards in these files, which must be the same on all ranks.
    ///
    /// # Errors
    /// [`TarError::NoShards`] without a file, and [`TarError::Io`] if one does not exist.
    pub fn new<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Result<Self, TarError> {
        let paths: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        if paths.is_empty() {
            return Err(TarError::NoShards);
        }
        for path in &paths {
            fs::metadata(path).map_err(|source| reader::cannot("find", path, source))?;
        }
        Ok(TarShards {
            paths,
            max_sample: MAX_SAMPLE_BYTES,
        })
    }

    /// The shards in the files of a pattern: `shard-{000000..000009}.tar` are ten.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`TarError::Pattern`] if the pattern is malformed.
    pub fn from_pattern(pattern: &str) -> Result<Self, TarError> {
        Self::new(pattern::expand(pattern)?)
    }

    /// Sets the largest sample in bytes of all its files, 256 MiB by default.
    pub fn max_sample_bytes(mut self, bytes: u64) -> Self {
        self.max_sample = bytes;
        self
    }

    /// Finds every sample, so that they can be read in any order.
    ///
    /// This reads the headers of all shards, one after another. It needs 24 bytes of memory per
    /// sample.
    ///
    /// # Errors
    /// [`TarError::Compressed`] if a shard is compressed, and errors in reading them.
    pub fn index(self) -> Result<TarDataset, TarError> {
        TarDataset::new(self)
    }
}

impl Shards for TarShards {
    type Item = TarSample;

    fn shards(&self) -> usize {
        self.paths.len()
    }

    fn open(&self, shard: usize) -> Result<Box<dyn ShardReader<Item = TarSample>>, BoxError> {
        let path = self.paths.get(shard).ok_or("no such shard")?;
        Ok(Box::new(TarReader::open(path, self.max_sample, CONTENTS)?))
    }
}

impl ShardReader for TarReader {
    type Item = TarSample;

    fn read(&mut self) -> Option<Result<TarSample, BoxError>> {
        let sample = self.sample(true).transpose()?;
        Some(sample.map(|place| place.sample).map_err(Into::into))
    }

    fn skip(&mut self) -> Option<Result<(), BoxError>> {
        let sample = self.sample(false).transpose()?;
        Some(sample.map(drop).map_err(Into::into))
    }
}

#[cfg(test)]
mod tests;
