//! Sharding (ZeRO, Rajbhandari et al. 2020, <https://arxiv.org/abs/1910.02054>): every rank keeps
//! the optimizer's state, and depending on the stage gradients and parameters, of its shard alone.
//!
//! What a rank owns is what a reduce-scatter of the gradients' buckets leaves with it, so there is
//! no plan beside that of the buckets. Of every parameter a rank owns one range of elements, often
//! an empty one, and all or nothing where the optimizer has to see all of it; state is kept by the
//! parameter's index in visit order, and saved by its path. A rank that owns all of every parameter
//! is what plain data parallelism has.
//!
//! `gather` makes wholes of shards again.

mod gather;

pub(crate) use gather::{ShardedParameters, gather_values};
