//! `boundary`: marks the activation that enters a block of a model.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch};
use burn::tensor::{GradientCheckpointingStrategy, Tensor};

use super::{depth, rung};
use crate::backend::{implement, operation};

/// Marks `activation` as the input of a block of the model, and returns it unchanged.
///
/// Call it once at the entry of every block (a residual block, a transformer layer, a stage of a
/// plain network), on the activation that the block's output depends on. Gradients of parameters
/// read after it are sent as soon as backward leaves the block, instead of at the end. A model
/// without boundaries trains equally well, but communication does not overlap with backward.
///
/// If the device recomputes activations in backward, marked activations are kept.
///
/// Outside distributed training it does nothing, so models may call it unconditionally.
pub fn boundary<const D: usize>(activation: Tensor<D>) -> Tensor<D> {
    if !depth::hooks_in_use() {
        return activation;
    }
    if !activation.is_tracked() {
        // A second input enters the model: its depth is unrelated to the activations before it.
        depth::set(0);
        return activation;
    }
    let strategy = activation.gradient_checkpointing_strategy();
    let recomputes = strategy == Some(GradientCheckpointingStrategy::Balanced);
    Tensor::from_dispatch(Dispatch::boundary(activation.into_dispatch(), recomputes))
}

operation! {
    pub(super) trait BoundaryOp: Backend {
        /// The identity, with `activation` below the hooks that follow. If it `keeps` the
        /// activation, backward does not recompute it.
        fn boundary(activation: FloatTensor<Self>, keeps: bool) -> FloatTensor<Self>;
    }
}

implement! {
    BoundaryOp {
        fn boundary(activation: FloatTensor<Self>, _keeps: bool) -> FloatTensor<Self> {
            activation
        }
    }
}

impl<B: BoundaryOp, C: CheckpointStrategy> BoundaryOp for Autodiff<B, C> {
    fn boundary(activation: FloatTensor<Self>, keeps: bool) -> FloatTensor<Self> {
        let activation = if keeps {
            kept::<B, C>(activation)
        } else {
            activation
        };
        depth::set(rung::depth_of(&activation.node()));
        activation
    }
}

/// The identity that keeps `activation`; operations behind it are recomputed from there.
fn kept<B: Backend, C: CheckpointStrategy>(
    activation: FloatTensor<Autodiff<B, C>>,
) -> FloatTensor<Autodiff<B, C>> {
    let (primitive, node) = activation.into_parts();
    let prepared = Backward::<B, 1>::prepare::<C>(BoundaryBackward, [node]);
    match prepared.compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish((), primitive),
        OpsKind::UnTracked(prepared) => prepared.finish(primitive),
    }
}

#[derive(Debug)]
struct BoundaryBackward;

impl<B: Backend> Backward<B, 1> for BoundaryBackward {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [parent] = ops.parents;
        let gradient = grads.consume::<B>(&ops.node);
        if let Some(parent) = parent {
            grads.register::<B>(parent.id, gradient);
        }
    }
}
