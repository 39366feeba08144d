//! Sharding (ZeRO, Rajbhandari et al. 2020, <https://arxiv.org/abs/1910.02054>): every rank keeps
//! its shard of the optimizer state and, depending on the stage, of gradients and parameters.
//!
//! A rank owns what a reduce-scatter of the gradient buckets leaves with it, so the buckets are the
//! only plan. It owns one range of every parameter, often an empty one, and all or nothing if the
//! optimizer needs the whole parameter. State is kept by the parameter's index in visit order and
//! saved by its path. A rank that owns every parameter whole is plain data parallelism.
//!
//! `gather` makes whole values from shards.

mod gather;

pub(crate) use gather::{ShardedParameters, gather_values};
