//! Batches of data that can only be read in order, in parts.

mod buffer;
mod cursor;
mod loader;
mod sampler;
mod walk;

use crate::error::BoxError;
pub use loader::ShardLoader;
pub use sampler::{Division, ShardEpoch, ShardSampler};

/// Data that can only be read in order, in parts: files of records, tar files, queries.
///
/// ```
/// use loader::{BoxError, Items, ShardReader, Shards};
///
/// /// One sample per line of each text.
/// struct Lines(Vec<&'static str>);
///
/// impl Shards for Lines {
///     type Item = &'static str;
///
///     fn shards(&self) -> usize {
///         self.0.len()
///     }
///
///     fn open(&self, shard: usize) -> Result<Box<dyn ShardReader<Item = Self::Item>>, BoxError> {
///         let text: &'static str = self.0.get(shard).ok_or("no such shard")?;
///         Ok(Box::new(Items(text.lines().map(Ok::<_, BoxError>))))
///     }
/// }
/// ```
pub trait Shards: Send + Sync {
    /// A sample.
    type Item;

    /// Number of shards.
    fn shards(&self) -> usize;

    /// Opens a shard at its first sample. Its samples are the same at every call.
    ///
    /// # Errors
    /// The reason why the shard cannot be read.
    fn open(&self, shard: usize) -> Result<Box<dyn ShardReader<Item = Self::Item>>, BoxError>;
}

/// Reads the samples of one shard in order.
pub trait ShardReader: Send {
    /// A sample.
    type Item;

    /// The next sample; `None` after the last.
    fn read(&mut self) -> Option<Result<Self::Item, BoxError>>;

    /// Skips the next sample; `None` after the last.
    ///
    /// A resume skips what was seen, and [`Division::Samples`] the samples of other ranks.
    fn skip(&mut self) -> Option<Result<(), BoxError>> {
        self.read().map(|read| read.map(drop))
    }
}

/// A [`ShardReader`] of any iterator over results.
#[derive(Debug, Clone)]
pub struct Items<T>(pub T);

impl<T, I, E> ShardReader for Items<T>
where
    T: Iterator<Item = Result<I, E>> + Send,
    E: Into<BoxError>,
{
    type Item = I;

    fn read(&mut self) -> Option<Result<I, BoxError>> {
        self.0.next().map(|item| item.map_err(Into::into))
    }
}

#[cfg(test)]
mod tests;
