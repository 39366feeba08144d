//! What this library adds to Burn's autodiff: a differentiable identity that tells when a
//! parameter's gradient is complete, while the rest of backward is still running.
//!
//! Burn executes a backward pass by the depth of each operation in the graph. An operation on a
//! parameter alone sits at the bottom of it and would only be reached at the very end. So a hook
//! takes a second input, a *rung* as deep as the activation that entered the current block, which
//! [`boundary`] remembers. The hook then lies one level above the block's input and fires as soon
//! as the block's own gradients are done. A rung is not tracked: it gives the hook its depth, and
//! makes nothing else a part of the graph.
//!
//! One file per operation: `boundary`, `grad_hook`, `gather`, a hook on a parameter that lives
//! elsewhere and is fetched when it is read, and `rank_sum`, a sum over ranks in the middle of a
//! model. Each is a Burn backend extension, implemented for the plain backends (where the first two
//! are the identity) and for `Autodiff` around them.
//!
//! A module of a model can have one reparameterization only, so the one that applies the hook also
//! casts parameters for mixed precision: what a layer reads is `cast(hook(master))`, and the
//! gradient that the hook hands over is that of the master.

mod boundary;
mod depth;
mod full_precision;
mod gather;
mod grad_hook;
mod rank_sum;
mod rung;
mod sink;

pub use boundary::boundary;
pub use full_precision::full_precision;
pub use rank_sum::{sum_over_ranks, sums_over_ranks};

pub(crate) use depth::forget as forget_depth;
pub(crate) use grad_hook::{GradHook, GradHooks};
pub(crate) use rank_sum::{RankSums, set as sum_over, unset as sum_no_more_over};
pub(crate) use sink::{GradientSink, ParameterSource};

#[cfg(test)]
mod tests;
