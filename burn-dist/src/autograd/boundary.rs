//! `boundary`: the identity a model applies to the activation that enters a block.

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

/// Marks `activation` as what enters a block of the model, and returns it unchanged.
///
/// Call it once at the entry of every block (a residual block, a transformer layer, a stage of a
/// plain network), on the activation the block's output depends on. Gradients of the parameters
/// read after it are then handed to the communication as soon as backward leaves the block, and
/// not at the end. A model without boundaries trains just as well, without that overlap.
///
/// Where the device recomputes activations in backward, those that it is applied to are kept.
///
/// Outside distributed training this does nothing, so models may call it unconditionally.
pub fn boundary<const D: usize>(activation: Tensor<D>) -> Tensor<D> {
    if !depth::hooks_in_use() {
        return activation;
    }
    if !activation.is_tracked() {
        // A second input enters the model: what came before is no measure for what follows.
        depth::set(0);
        return activation;
    }
    let strategy = activation.gradient_checkpointing_strategy();
    let recomputes = strategy == Some(GradientCheckpointingStrategy::Balanced);
    Tensor::from_dispatch(Dispatch::boundary(activation.into_dispatch(), recomputes))
}

operation! {
    pub(super) trait BoundaryOp: Backend {
        /// Identity, after which hooks lie above `activation`. If it `keeps` that, backward does
        /// not compute it again.
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

/// The same, from which operations behind it are computed again.
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
