//! A GPU operation, which adds kernels to Burn's graph.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Cube, Dispatch, backend_extension};
use burn::tensor::{FloatDType, Tensor};
use burn_cubecl::tensor::CubeTensor;

use crate::branches;

/// The forward and backward computation of an operation. Forward keeps the state that backward
/// needs, in addition to the first input, in here; it may run a second time if a result was not
/// kept.
pub(super) trait Operation<const N: usize>: Debug + Send + Sync + 'static {
    /// Computes the result.
    fn forward(&self, inputs: [CubeTensor; N]) -> CubeTensor;

    /// The gradients of the inputs for that of the result, in their order.
    fn backward(&self, given: BackwardInput) -> [Option<CubeTensor>; N];

    /// Returns true if backward reads the first input, and the result can be recomputed from it.
    fn reads_input(&self) -> bool {
        false
    }

    /// Returns true if backward, when it reads the first input, adds [`ToFirst::plus`] to its
    /// gradient.
    fn adds_up(&self) -> bool {
        false
    }
}

/// Input of backward.
pub(super) struct BackwardInput {
    /// The first input, if backward reads it.
    pub x: Option<CubeTensor>,
    /// The gradient of the result.
    pub dy: CubeTensor,
    pub to_first: ToFirst,
}

/// Destination of the first input's gradient.
pub(super) struct ToFirst {
    pub is_wanted: bool,
    /// The gradient from other operations, to be added to it.
    pub plus: Option<CubeTensor>,
}

impl ToFirst {
    /// Runs `work` if the gradient is needed.
    pub fn then<R>(self, work: impl FnOnce(Option<CubeTensor>) -> R) -> Option<R> {
        self.is_wanted.then(|| work(self.plus))
    }
}

/// Applies `operation` to `x` alone.
pub(super) fn apply<const D: usize, const R: usize>(
    operation: Arc<dyn Operation<1>>,
    x: Tensor<D>,
) -> Tensor<R> {
    Tensor::from_dispatch(Dispatch::unary(x.into_dispatch(), operation))
}

/// Applies `operation` to `x` and `y`.
pub(super) fn apply_to_both<const D: usize>(
    operation: Arc<dyn Operation<2>>,
    x: Tensor<D>,
    y: Tensor<D>,
) -> Tensor<D> {
    let (x, y) = (x.into_dispatch(), y.into_dispatch());
    Tensor::from_dispatch(Dispatch::binary(x, y, operation))
}

/// Applies `operation` to `x`, a weight and a bias, which are read in `f32`.
pub(super) fn apply_with<const D: usize>(
    operation: Arc<dyn Operation<3>>,
    x: Tensor<D>,
    parameters: [Tensor<1>; 2],
) -> Tensor<D> {
    let parameters = parameters.map(|tensor| tensor.cast(FloatDType::F32).into_dispatch());
    let [weight, bias] = parameters;
    Tensor::from_dispatch(Dispatch::layer(x.into_dispatch(), weight, bias, operation))
}

/// Does the same as [`apply_with`] with an additional tensor like `x`.
pub(super) fn apply_with_plus<const D: usize>(
    operation: Arc<dyn Operation<4>>,
    x: Tensor<D>,
    parameters: [Tensor<1>; 2],
    plus: Tensor<D>,
) -> Tensor<D> {
    let parameters = parameters.map(|tensor| tensor.cast(FloatDType::F32).into_dispatch());
    let ([weight, bias], [x, plus]) = (parameters, [x, plus].map(Tensor::into_dispatch));
    Tensor::from_dispatch(Dispatch::layer_and(x, weight, bias, plus, operation))
}

/// An operation for each number of inputs, which Burn routes by their device.
macro_rules! operation_ops {
    ($($name:ident<$count:literal>($($input:ident),+);)+) => {
        #[backend_extension(Cube, Autodiff)]
        pub(super) trait OperationOps: Backend {
            $(fn $name(
                $($input: FloatTensor<Self>,)+
                operation: Arc<dyn Operation<$count>>,
            ) -> FloatTensor<Self>;)+
        }

        impl OperationOps for Cube {
            $(fn $name(
                $($input: FloatTensor<Self>,)+
                operation: Arc<dyn Operation<$count>>,
            ) -> FloatTensor<Self> {
                operation.forward([$($input),+])
            })+
        }

        impl<C: CheckpointStrategy> OperationOps for Autodiff<Cube, C> {
            $(fn $name(
                $($input: FloatTensor<Self>,)+
                operation: Arc<dyn Operation<$count>>,
            ) -> FloatTensor<Self> {
                record::<C, $count>([$($input),+], operation)
            })+
        }
    };
}

operation_ops! {
    unary<1>(x);
    binary<2>(x, y);
    layer<3>(x, weight, bias);
    layer_and<4>(x, weight, bias, plus);
}

/// Computes the result and adds the operation to the graph.
fn record<C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<Cube, C>>; N],
    operation: Arc<dyn Operation<N>>,
) -> FloatTensor<Autodiff<Cube, C>> {
    let primitives = inputs.each_ref().map(|input| input.primitive().clone());
    let output = operation.forward(primitives);
    let nodes = inputs.each_ref().map(|input| input.node());
    let prepared = Backward::<Cube, N>::prepare::<C>(OperationBackward, nodes);
    let prepared = match operation.reads_input() {
        true => prepared
            .memory_bound()
            .retro_forward(Again {
                inputs: inputs.each_ref().map(|input| input.id()),
                operation: Arc::clone(&operation),
            })
            .parents::<Cube, _>(&inputs),
        false => prepared.compute_bound(),
    };
    match prepared.stateful() {
        OpsKind::Tracked(mut prepared) => {
            let first = inputs.first().filter(|_| operation.reads_input());
            let x = first.map(|input| prepared.checkpoint(input));
            prepared.finish(State { x, operation }, output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}

/// Recomputes the result when backward needs it.
#[derive(Debug)]
struct Again<const N: usize> {
    inputs: [NodeId; N],
    operation: Arc<dyn Operation<N>>,
}

impl<const N: usize> RetroForward for Again<N> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let inputs = self.inputs.each_ref();
        let inputs = inputs.map(|id| states.get_state::<CubeTensor>(id));
        states.save(out, self.operation.forward(inputs));
    }
}

/// State kept from forward to backward.
#[derive(Clone, Debug)]
struct State<const N: usize> {
    x: Option<NodeId>,
    operation: Arc<dyn Operation<N>>,
}

#[derive(Debug)]
struct OperationBackward;

impl<const N: usize> Backward<Cube, N> for OperationBackward {
    type State = State<N>;

    fn backward(
        self,
        ops: Ops<State<N>, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let dy = grads.consume::<Cube>(&ops.node);
        let State { x, operation } = ops.state;
        let x = x.map(|id| checkpointer.retrieve_node_output::<CubeTensor>(id));
        let first = ops.parents.first().and_then(Option::as_ref);
        let adding = first.filter(|_| operation.adds_up()).zip(x.as_ref());
        let plus = adding.and_then(|(to, x)| {
            let node = (to.id, to.requirement == ops.node.requirement);
            let like = (x.meta.shape().clone(), x.dtype);
            branches::take::<Cube>(grads, node, like, |grads| grads.consume::<Cube>(to))
        });
        let to_first = ToFirst {
            is_wanted: first.is_some(),
            plus,
        };
        let gradients = operation.backward(BackwardInput { x, dy, to_first });
        for (to, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(to), Some(gradient)) = (to, gradient) {
                branches::register::<Cube>(grads, to.id, gradient);
            }
        }
    }
}
