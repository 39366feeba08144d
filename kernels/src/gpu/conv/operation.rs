//! How products enter Burn's graph.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Cube, Dispatch, backend_extension};
use burn::tensor::{FloatDType, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// A layer that multiplies its input with a weight and may add a bias, as an operation of the graph.
pub(super) trait Product: Debug + Send + Sync + 'static {
    /// The result. `bias` is in f32.
    fn forward(
        &self,
        input: CubeTensor,
        weight: CubeTensor,
        bias: Option<CubeTensor>,
    ) -> CubeTensor;

    /// That of the input for the gradient of the result.
    fn gradient_of_input(&self, dy: CubeTensor, weight: CubeTensor) -> CubeTensor;

    /// That of the weight, in its type.
    fn gradient_of_weight(&self, input: CubeTensor, dy: CubeTensor) -> CubeTensor;

    /// That of the bias, in f32.
    fn gradient_of_bias(&self, dy: CubeTensor) -> CubeTensor;
}

/// The result of `product` for an input, a weight, and a bias, which is read in f32.
pub(super) fn apply<const D: usize, const W: usize>(
    product: Arc<dyn Product>,
    input: &Tensor<D>,
    weight: &Tensor<W>,
    bias: Option<&Tensor<1>>,
) -> Tensor<D> {
    let input = input.clone().into_dispatch();
    let weight = weight.clone().into_dispatch();
    let bias = bias.map(|bias| bias.clone().cast(FloatDType::F32).into_dispatch());
    Tensor::from_dispatch(match bias {
        Some(bias) => Dispatch::product_and_bias(input, weight, bias, product),
        None => Dispatch::product(input, weight, product),
    })
}

#[backend_extension(Cube, Autodiff)]
pub(super) trait ProductOps: Backend {
    fn product(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        product: Arc<dyn Product>,
    ) -> FloatTensor<Self>;

    fn product_and_bias(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        product: Arc<dyn Product>,
    ) -> FloatTensor<Self>;
}

impl ProductOps for Cube {
    fn product(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        product: Arc<dyn Product>,
    ) -> FloatTensor<Self> {
        product.forward(input, weight, None)
    }

    fn product_and_bias(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        product: Arc<dyn Product>,
    ) -> FloatTensor<Self> {
        product.forward(input, weight, Some(bias))
    }
}

impl<C: CheckpointStrategy> ProductOps for Autodiff<Cube, C> {
    fn product(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        product: Arc<dyn Product>,
    ) -> FloatTensor<Self> {
        let [factor, other] = [&input, &weight].map(|tensor| tensor.primitive().clone());
        let output = product.forward(factor, other, None);
        record::<C, 2>([&input, &weight], product, output)
    }

    fn product_and_bias(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        product: Arc<dyn Product>,
    ) -> FloatTensor<Self> {
        let inputs = [&input, &weight, &bias];
        let [factor, other, added] = inputs.map(|tensor| tensor.primitive().clone());
        let output = product.forward(factor, other, Some(added));
        record::<C, 3>(inputs, product, output)
    }
}

/// Adds the operation to the graph. Backward reads input and weight, which come first.
fn record<C: CheckpointStrategy, const N: usize>(
    inputs: [&FloatTensor<Autodiff<Cube, C>>; N],
    product: Arc<dyn Product>,
    output: CubeTensor,
) -> FloatTensor<Autodiff<Cube, C>> {
    let nodes = inputs.map(|input| input.node());
    let prepared = Backward::<Cube, N>::prepare::<C>(ProductBackward, nodes);
    match prepared.compute_bound().stateful() {
        OpsKind::Tracked(mut prepared) => {
            let state = State {
                input: prepared.checkpoint(inputs[0]),
                weight: prepared.checkpoint(inputs[1]),
                product,
            };
            prepared.finish(state, output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}

/// What is kept from forward to backward.
#[derive(Clone, Debug)]
struct State {
    input: NodeId,
    weight: NodeId,
    product: Arc<dyn Product>,
}

#[derive(Debug)]
struct ProductBackward;

impl<const N: usize> Backward<Cube, N> for ProductBackward {
    type State = State;

    fn backward(self, ops: Ops<State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<Cube>(&ops.node);
        let State {
            input,
            weight,
            product,
        } = ops.state;
        let input = checkpointer.retrieve_node_output::<CubeTensor>(input);
        let weight = checkpointer.retrieve_node_output::<CubeTensor>(weight);
        let mut parents = ops.parents.into_iter();
        let mut next = || parents.next().flatten();
        let (to_input, to_weight, to_bias) = (next(), next(), next());
        if let Some(to) = to_bias {
            grads.register::<Cube>(to.id, product.gradient_of_bias(dy.clone()));
        }
        if let Some(to) = to_weight {
            let gradient = product.gradient_of_weight(input, dy.clone());
            grads.register::<Cube>(to.id, gradient);
        }
        if let Some(to) = to_input {
            grads.register::<Cube>(to.id, product.gradient_of_input(dy, weight));
        }
    }
}
