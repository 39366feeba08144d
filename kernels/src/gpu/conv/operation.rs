//! Connects products to Burn's graph.

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

use crate::branches;

/// A layer that multiplies its input with a weight and may add to the product, as an operation of
/// the graph.
pub(super) trait Product: Debug + Send + Sync + 'static {
    /// Computes the result.
    fn forward(&self, input: CubeTensor, weight: CubeTensor, addends: Addends) -> CubeTensor;

    /// The gradient of the result as a factor, for the next two functions.
    fn factor(&self, dy: CubeTensor) -> CubeTensor;

    /// The gradient of the input, from a [`Self::factor`] of the result's gradient, and `plus`,
    /// which is like the input.
    fn gradient_of_input(
        &self,
        dy: CubeTensor,
        weight: CubeTensor,
        plus: Option<CubeTensor>,
    ) -> CubeTensor;

    /// The gradients of the weight, in its type, and of the bias, in f32; the latter if its sums
    /// over all pixels are `for_bias`.
    fn gradients_of_parameters(
        &self,
        input: CubeTensor,
        dy: CubeTensor,
        for_bias: Option<CubeTensor>,
    ) -> (CubeTensor, Option<CubeTensor>);

    /// The gradient of the bias alone, in f32.
    fn gradient_of_bias(&self, dy: CubeTensor) -> CubeTensor;
}

/// Summands of a product.
pub(super) struct Addends {
    /// One number for every channel, in f32.
    pub bias: Option<CubeTensor>,
    /// One number for every number of the result, in its type.
    pub plus: Option<CubeTensor>,
}

impl Addends {
    pub const NONE: Self = Self {
        bias: None,
        plus: None,
    };

    fn bias(self, bias: CubeTensor) -> Self {
        let bias = Some(bias);
        Self { bias, ..self }
    }

    fn plus(self, plus: CubeTensor) -> Self {
        let plus = Some(plus);
        Self { plus, ..self }
    }

    /// Whether there is a bias, and a summand for every number.
    pub fn are_there(&self) -> [bool; 2] {
        [self.bias.is_some(), self.plus.is_some()]
    }
}

/// The result of `product` for an input, a weight, a bias, which is read in f32, and a summand. The
/// same kernel adds the summand if it has the shape of the result and the type of the input.
pub(super) fn apply<const D: usize, const W: usize>(
    product: Arc<dyn Product>,
    input: &Tensor<D>,
    weight: &Tensor<W>,
    bias: Option<&Tensor<1>>,
    (plus, shape): (Option<Tensor<D>>, [usize; D]),
) -> Tensor<D> {
    let is_alike = |plus: &Tensor<D>| plus.dims() == shape && plus.dtype() == input.dtype();
    let (plus, other) = match plus {
        Some(plus) if is_alike(&plus) => (Some(plus.into_dispatch()), None),
        other => (None, other),
    };
    let input = input.clone().into_dispatch();
    let weight = weight.clone().into_dispatch();
    let bias = bias.map(|bias| bias.clone().cast(FloatDType::F32).into_dispatch());
    let out = Tensor::from_dispatch(match (bias, plus) {
        (None, None) => Dispatch::product(input, weight, product),
        (Some(bias), None) => Dispatch::product_and_bias(input, weight, bias, product),
        (None, Some(plus)) => Dispatch::product_and_plus(input, weight, plus, product),
        (Some(bias), Some(plus)) => Dispatch::product_and_both(input, weight, bias, plus, product),
    });
    match other {
        Some(other) => out + other,
        None => out,
    }
}

/// A product for whatever is added to it, which Burn routes by the device.
macro_rules! product_ops {
    ($($name:ident<$count:literal>($($added:ident),*);)+) => {
        #[backend_extension(Cube, Autodiff)]
        pub(super) trait ProductOps: Backend {
            $(fn $name(
                input: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                $($added: FloatTensor<Self>,)*
                product: Arc<dyn Product>,
            ) -> FloatTensor<Self>;)+
        }

        impl ProductOps for Cube {
            $(fn $name(
                input: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                $($added: FloatTensor<Self>,)*
                product: Arc<dyn Product>,
            ) -> FloatTensor<Self> {
                let addends = Addends::NONE$(.$added($added))*;
                product.forward(input, weight, addends)
            })+
        }

        impl<C: CheckpointStrategy> ProductOps for Autodiff<Cube, C> {
            $(fn $name(
                input: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                $($added: FloatTensor<Self>,)*
                product: Arc<dyn Product>,
            ) -> FloatTensor<Self> {
                let addends = Addends::NONE$(.$added($added.primitive().clone()))*;
                record::<C, $count>([&input, &weight $(, &$added)*], addends, product)
            })+
        }
    };
}

product_ops! {
    product<2>();
    product_and_bias<3>(bias);
    product_and_plus<3>(plus);
    product_and_both<4>(bias, plus);
}

/// Adds the operation to the graph. Backward reads input and weight, which come first. The bias, if
/// any, and the summand of the result follow.
fn record<C: CheckpointStrategy, const N: usize>(
    inputs: [&FloatTensor<Autodiff<Cube, C>>; N],
    addends: Addends,
    product: Arc<dyn Product>,
) -> FloatTensor<Autodiff<Cube, C>> {
    let has_bias = addends.bias.is_some();
    let [x, w] = [inputs[0], inputs[1]].map(|tensor| tensor.primitive().clone());
    let output = product.forward(x, w, addends);
    let nodes = inputs.map(|input| input.node());
    let prepared = Backward::<Cube, N>::prepare::<C>(ProductBackward, nodes);
    match prepared.compute_bound().stateful() {
        OpsKind::Tracked(mut prepared) => {
            let state = State {
                input: prepared.checkpoint(inputs[0]),
                weight: prepared.checkpoint(inputs[1]),
                has_bias,
                product,
            };
            prepared.finish(state, output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}

/// The state that forward keeps for backward.
#[derive(Clone, Debug)]
struct State {
    input: NodeId,
    weight: NodeId,
    has_bias: bool,
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
            has_bias,
            product,
        } = ops.state;
        let input = checkpointer.retrieve_node_output::<CubeTensor>(input);
        let weight = checkpointer.retrieve_node_output::<CubeTensor>(weight);
        let like_input = (input.meta.shape().clone(), input.dtype);
        let mut parents = ops.parents.into_iter();
        let mut next = || parents.next().flatten();
        let (to_input, to_weight) = (next(), next());
        let to_bias = if has_bias { next() } else { None };
        let to_plus = next();
        let is_multiplied = to_weight.is_some() || to_input.is_some();
        let factor = is_multiplied.then(|| product.factor(dy.clone()));
        if let Some((to, factor)) = to_weight.zip(factor.clone()) {
            let for_bias = to_bias.is_some().then(|| dy.clone());
            let (gradient, of_bias) = product.gradients_of_parameters(input, factor, for_bias);
            grads.register::<Cube>(to.id, gradient);
            if let Some((to, gradient)) = to_bias.zip(of_bias) {
                grads.register::<Cube>(to.id, gradient);
            }
        } else if let Some(to) = to_bias {
            grads.register::<Cube>(to.id, product.gradient_of_bias(dy.clone()));
        }
        match to_plus {
            Some(to) => branches::register::<Cube>(grads, to.id, dy),
            // The next gradient may reuse its memory.
            None => drop(dy),
        }
        if let Some((to, factor)) = to_input.zip(factor) {
            let node = (to.id, to.requirement == ops.node.requirement);
            let others =
                branches::take::<Cube>(grads, node, like_input, |grads| grads.consume::<Cube>(&to));
            let gradient = product.gradient_of_input(factor, weight, others);
            branches::register::<Cube>(grads, to.id, gradient);
        }
    }
}
