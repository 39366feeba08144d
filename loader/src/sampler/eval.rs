//! Divides an evaluation over ranks.

use super::{Epoch, check_positive, check_rank};
use crate::SamplerError;

/// Gives every sample to exactly one rank, in the data set's own order; drops nothing.
///
/// Rank `r` takes the `r`-th of `size` contiguous parts whose lengths differ by at most one, so a
/// rank may have fewer batches than another, or none.
#[derive(Debug, Clone)]
pub struct EvalSampler {
    len: usize,
    batch: usize,
    rank: usize,
    size: usize,
    /// Largest number of batches of each rank.
    limit: usize,
}

impl EvalSampler {
    /// Creates a sampler of `len` samples in batches of `batch` for `rank` of `size` ranks.
    ///
    /// The last batch of a rank may be smaller.
    ///
    /// # Errors
    /// [`SamplerError`] if `batch` or `size` is 0 or `rank` is not below `size`.
    pub fn new(len: usize, batch: usize, rank: usize, size: usize) -> Result<Self, SamplerError> {
        check_rank(rank, size)?;
        check_positive("the evaluation batch", batch)?;
        Ok(EvalSampler {
            len,
            batch,
            rank,
            size,
            limit: usize::MAX,
        })
    }

    /// Evaluates only the first `batches` batches of each rank's part, for a quick look.
    pub fn limit(mut self, batches: usize) -> Self {
        self.limit = batches;
        self
    }

    /// This rank's part of the evaluation. A [`Loader`](crate::Loader) never augments it.
    pub fn epoch(&self) -> Epoch {
        let (each, more) = (self.len / self.size, self.len % self.size);
        let start = self.rank * each + self.rank.min(more);
        let most = self.limit.saturating_mul(self.batch);
        let end = start + (each + usize::from(self.rank < more)).min(most);
        Epoch {
            number: None,
            indices: (start..end).collect(),
            copies: Vec::new(),
            batch: self.batch,
            per_step: 1,
            start: 0,
        }
    }
}
