//! Each rank's share of a data loader.

use std::sync::Arc;

use burn_core::data::dataloader::DataLoader;
use burn_dist::{Error, ProcessGroup, ReduceOp, shard};

/// A reference to a data loader of batches `B`.
pub(crate) type Loader<B> = Arc<dyn DataLoader<B>>;

/// This rank's share of `loader`: as many items as any other rank's, up to one.
///
/// A shuffled loader shuffles within the share.
pub(crate) fn of_rank<B>(loader: Loader<B>, group: &ProcessGroup) -> Loader<B> {
    if group.size() == 1 {
        return loader;
    }
    let own = shard(loader.num_items(), group.size(), group.rank());
    loader.slice(own.start, own.end)
}

/// Number of items of all ranks together. A collective call.
pub(crate) fn total_items<B>(own: &Loader<B>, group: &ProcessGroup) -> Result<usize, Error> {
    let mut items = [own.num_items() as i64];
    group.all_reduce::<i64>(&mut items, ReduceOp::Sum)?;
    Ok(usize::try_from(items[0]).unwrap_or(0))
}

/// Brings a loader to where it is after `epochs` epochs: a shuffled one has another order in each.
pub(crate) fn skip<B>(loader: &Loader<B>, epochs: usize) {
    for _ in 0..epochs {
        drop(loader.iter());
    }
}
