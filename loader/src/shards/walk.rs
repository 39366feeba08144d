//! Goes through the samples of a rank, shard by shard.

use std::sync::Arc;

use super::sampler::ShardEpoch;
use super::{ShardReader, Shards};
use crate::error::{BoxError, LoaderError};

/// A sample and its place.
pub(super) struct Sample<I> {
    pub(super) shard: usize,
    pub(super) position: usize,
    pub(super) item: I,
}

/// A step of a walk.
pub(super) enum Found<I> {
    Sample(Sample<I>),
    /// A sample that was not wanted.
    Skipped,
    End,
}

/// The samples of a rank, in the order of the shards.
pub(super) struct Walk<I> {
    shards: Arc<dyn Shards<Item = I>>,
    order: std::vec::IntoIter<usize>,
    open: Option<Open<I>>,
    turns: Option<(usize, usize)>,
    /// Whether a round of turns that ends early counts for nobody.
    whole_rounds: bool,
}

struct Open<I> {
    shard: usize,
    position: usize,
    reader: Box<dyn ShardReader<Item = I>>,
}

impl<I> Walk<I> {
    pub(super) fn new(shards: &Arc<dyn Shards<Item = I>>, epoch: &ShardEpoch) -> Self {
        Walk {
            order: epoch.order(shards.shards()).into_iter(),
            shards: Arc::clone(shards),
            open: None,
            turns: epoch.turns(),
            whole_rounds: epoch.all_or_none().is_some(),
        }
    }

    /// The next sample of this rank.
    pub(super) fn next(&mut self, wanted: bool) -> Result<Found<I>, LoaderError> {
        let Some((rank, size)) = self.turns else {
            return self.step(wanted);
        };
        let mut own = Found::End;
        for turn in 0..size {
            match self.step(wanted && turn == rank)? {
                Found::End if self.whole_rounds => return Ok(Found::End),
                Found::End => break,
                found if turn == rank => own = found,
                _ => {}
            }
        }
        Ok(own)
    }

    /// The next sample of the open shard, or of the next one.
    fn step(&mut self, wanted: bool) -> Result<Found<I>, LoaderError> {
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                None => {
                    let Some(shard) = self.order.next() else {
                        return Ok(Found::End);
                    };
                    self.open.insert(Open {
                        shard,
                        position: 0,
                        reader: self.shards.open(shard).map_err(of_shard(shard))?,
                    })
                }
            };
            let (shard, position) = (open.shard, open.position);
            let found = if wanted {
                let found = |item| {
                    Found::Sample(Sample {
                        shard,
                        position,
                        item,
                    })
                };
                open.reader.read().map(|read| read.map(found))
            } else {
                open.reader
                    .skip()
                    .map(|skipped| skipped.map(|()| Found::Skipped))
            };
            match found {
                Some(found) => {
                    open.position += 1;
                    return found.map_err(of_shard(shard));
                }
                None => self.open = None,
            }
        }
    }
}

fn of_shard(shard: usize) -> impl FnOnce(BoxError) -> LoaderError {
    move |error| LoaderError::Shard {
        shard,
        source: error.into(),
    }
}
