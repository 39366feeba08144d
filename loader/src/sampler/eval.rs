//! Divides an evaluation over ranks.

use std::ops::Range;

use super::{Epoch, OwnShares, check_positive, check_rank};
use crate::SamplerError;

/// Gives every sample to exactly one rank, in the data set's own order; drops nothing.
///
/// Rank `r` takes the `r`-th of `size` contiguous parts whose lengths differ by at most one, so a
/// rank may have fewer batches than another, or none.
#[derive(Debug, Clone)]
pub struct EvalSampler {
    len: usize,
    batch: usize,
    shares: OwnShares,
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
            shares: OwnShares::one(rank),
            size,
            limit: usize::MAX,
        })
    }

    /// Evaluates only the first `batches` batches of each rank's part, for a quick look.
    pub fn limit(mut self, batches: usize) -> Self {
        self.limit = batches;
        self
    }

    /// Takes the parts of several ranks, `own` of the `size` ranks of [`new`](Self::new). A batch
    /// has samples of one part only.
    ///
    /// # Errors
    /// [`SamplerError::Shares`] if `own` is empty or not below `size`.
    pub fn shares(mut self, own: Range<usize>) -> Result<Self, SamplerError> {
        self.shares = OwnShares::new(own, 0, self.size)?;
        Ok(self)
    }

    /// This rank's part of the evaluation. A [`Loader`](crate::Loader) never augments it.
    pub fn epoch(&self) -> Epoch {
        let (each, more) = (self.len / self.size, self.len % self.size);
        let most = self.limit.saturating_mul(self.batch);
        let (mut indices, mut starts) = (Vec::new(), Vec::new());
        for share in self.shares.iter() {
            let start = share * each + share.min(more);
            let end = start + (each + usize::from(share < more)).min(most);
            let first = indices.len();
            indices.extend(start..end);
            starts.extend((first..indices.len()).step_by(self.batch));
        }
        Epoch {
            number: None,
            indices,
            copies: Vec::new(),
            batch: self.batch,
            per_step: 1,
            start: 0,
            starts: (self.shares.len() > 1).then_some(starts),
        }
    }
}
