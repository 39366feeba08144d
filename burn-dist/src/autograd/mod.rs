//! Additions to Burn's autodiff: gradients handed over while backward runs, sharded parameters,
//! sums over ranks.
//!
//! Burn runs backward by the depth of each operation in the graph. An operation on a parameter
//! alone is at the bottom and would run last. So a hook takes a second input, a *rung* as deep as
//! the activation that entered the current block ([`boundary`] remembers it). The hook then lies
//! one level above the block's input and fires as soon as the block's gradients are done. A rung is
//! not tracked: it gives the hook its depth and adds nothing else to the graph.
//!
//! | file | operation |
//! |---|---|
//! | `boundary` | marks the input of a block |
//! | `grad_hook` | hands over a parameter's gradient |
//! | `gather` | a hook on a sharded parameter, which is gathered when a layer reads it |
//! | `rank_sum` | sums over ranks in the middle of a model |
//!
//! `transformer` marks the blocks of Burn's own transformer.
//!
//! Each operation is a Burn backend extension. It is implemented for the plain backends (where the
//! first two are the identity) and for `Autodiff` around them.
//!
//! A module can have only one reparameterization, so the hook also casts parameters for mixed
//! precision. A layer reads `cast(hook(master))`, and the hook hands over the gradient of the
//! master.

mod boundary;
mod depth;
mod full_precision;
mod gather;
mod grad_hook;
mod rank_sum;
mod rung;
mod sink;
mod transformer;

pub use boundary::boundary;
pub use full_precision::full_precision;
pub use rank_sum::{sum_over_ranks, sums_over_ranks};
pub use transformer::transformer_encoder;

pub(crate) use depth::forget as forget_depth;
pub(crate) use grad_hook::{GradHook, GradHooks};
pub(crate) use rank_sum::{RankSums, set as sum_over, unset as sum_no_more_over};
pub(crate) use sink::{GradientSink, ParameterSource};

#[cfg(test)]
mod tests;
