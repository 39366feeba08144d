//! The batch sizes of ranks that `trainer launch` starts again in another number.

use burn_dist::launch::Generation;

use crate::config::{Batching, Loaded};
use crate::error::TrainError;
use crate::run::resume::Start;
use crate::train::progress::Meta;

/// The batch sizes of `ranks` ranks that begin at `start`.
///
/// Ranks of an agent keep the global batch of their checkpoint: they accumulate more or fewer
/// micro-batches. A note says so. All ranks compute the same.
///
/// # Errors
/// Fails if the batch cannot be divided.
pub(crate) fn batching(
    loaded: &Loaded,
    ranks: usize,
    start: &mut Start,
) -> Result<Batching, TrainError> {
    let configured = || Ok(loaded.batching(ranks)?);
    let parallel = &loaded.config.parallel;
    // Virtual ranks have the same batch on any number of ranks.
    if parallel.virtual_ranks.is_some() {
        return configured();
    }
    let Some(generation) = Generation::of_this_process() else {
        return configured();
    };
    let Some(manifest) = start.manifest()?.filter(|_| !start.of_another_run) else {
        return configured();
    };
    let train = &loaded.config.train;
    let Some(global) = Meta::global_batch_of(&manifest) else {
        return configured();
    };
    // A batch size that the user has changed is an error that the restored checkpoint explains.
    if train.batch_size.is_some_and(|wanted| wanted != global) {
        return configured();
    }
    let before = manifest.world_size;
    let first = generation.first_ranks.unwrap_or(before);
    let usual = || loaded.batching(first).map(|batching| batching.micro);
    let micro = match train.micro_batch_size {
        Some(micro) => micro,
        None => usual().unwrap_or(global / before.max(1)),
    };
    let kept = Batching::keeping(global, micro, ranks);
    let kept = kept.map_err(|fault| TrainError::Misfit(loaded.locate(fault)))?;
    if before != ranks {
        start.notes.push(format!(
            "{ranks} rank{} instead of {before}: the global batch stays {}",
            if ranks == 1 { "" } else { "s" },
            kept.words(parallel)
        ));
    }
    Ok(kept)
}
