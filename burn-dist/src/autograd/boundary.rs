//! `boundary`: the identity a model applies to the activation that enters a block.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Shape, Tensor};

use super::anchor;

/// Marks `activation` as what enters a block of the model, and returns it unchanged.
///
/// Call it once at the entry of every block (a residual block, a transformer layer, a stage of a
/// plain network), on the activation the block's output depends on. Gradients of the parameters
/// read after it are then handed to the communication as soon as backward leaves the block, and
/// not at the end. A model without boundaries trains just as well, without that overlap.
///
/// Outside distributed training this does nothing, so models may call it unconditionally.
pub fn boundary<const D: usize>(activation: Tensor<D>) -> Tensor<D> {
    if !anchor::hooks_in_use() {
        return activation;
    }
    if !activation.is_tracked() {
        // A second input enters the model: what came before is no measure for what follows.
        anchor::clear();
        return activation;
    }
    let activation = Tensor::from_dispatch(Dispatch::boundary(activation.into_dispatch()));
    anchor::set(&activation);
    activation
}

#[backend_extension(Flex, Cube: cfg(any(feature = "wgpu", feature = "cuda")), Autodiff)]
pub(super) trait BoundaryOp: Backend {
    /// Identity that always has a gradient to pass on.
    fn boundary(activation: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl BoundaryOp for Flex {
    fn boundary(activation: FloatTensor<Self>) -> FloatTensor<Self> {
        activation
    }
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl BoundaryOp for burn::backend::Cube {
    fn boundary(activation: FloatTensor<Self>) -> FloatTensor<Self> {
        activation
    }
}

impl<B: BoundaryOp, C: CheckpointStrategy> BoundaryOp for Autodiff<B, C> {
    fn boundary(activation: FloatTensor<Self>) -> FloatTensor<Self> {
        let (primitive, node) = activation.into_parts();
        // Compute bound: under gradient checkpointing the activation is kept here, and blocks
        // are recomputed from it.
        match BoundaryBackward
            .prepare::<C>([node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => {
                let zero = Zero::<B>::like(&primitive);
                prep.finish(zero, primitive)
            }
            OpsKind::UnTracked(prep) => prep.finish(primitive),
        }
    }
}

/// What is needed to make a zero gradient for an activation.
#[derive(Clone, Debug)]
struct Zero<B: Backend> {
    shape: Shape,
    device: Device<B>,
    dtype: FloatDType,
}

impl<B: Backend> Zero<B> {
    fn like(primitive: &FloatTensor<B>) -> Self {
        Self {
            shape: primitive.shape(),
            device: primitive.device(),
            dtype: primitive.dtype().into(),
        }
    }

    fn gradient(self) -> FloatTensor<B> {
        B::float_zeros(self.shape, &self.device, self.dtype)
    }
}

#[derive(Debug)]
struct BoundaryBackward;

impl<B: Backend> Backward<B, 1> for BoundaryBackward {
    type State = Zero<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [parent] = ops.parents;
        let Some(parent) = parent else { return };
        // A hook makes this node part of the graph even where the loss does not depend on the
        // activation (the block detaches it, or belongs to another branch). Then no gradient was
        // registered, which Burn only tells by panicking, before it changes anything.
        let gradient = contained::run(|| grads.consume::<B>(&ops.node)).unwrap_or_else(|_| {
            tracing::warn!(
                "the loss does not depend on an activation that entered a block: call \
                 boundary() again where the branch that reaches the loss begins"
            );
            ops.state.gradient()
        });
        grads.register::<B>(parent.id, gradient);
    }
}
