//! The convolution as an operation of Burn's graph.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Cube, Dispatch, backend_extension};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_cubecl::tensor::CubeTensor;

use super::super::matrix::primitive;
use super::ConvOptions;
use super::bias::gradient_of_bias;
use super::geometry::Geometry;
use super::launch::{Convolution, has_instructions};

/// `x ⊛ weight + bias`, if `x` and `weight` are f16 or bf16 on a GPU that has the instructions; otherwise
/// nothing.
///
/// `x` is \[batch, in, height, width\], `weight` \[out, in, window height, window width\], `bias` \[out\], the
/// result \[batch, out, out height, out width\]; in memory its channels come last, as those of `x` do best. Sums
/// are in f32, in which the bias is read too.
///
/// # Panics
/// If they are not on a device that [`crate::gpu::computes_on`].
pub fn conv2d(
    x: &Tensor<4>,
    weight: &Tensor<4>,
    bias: Option<&Tensor<1>>,
    options: ConvOptions,
) -> Option<Tensor<4>> {
    let inner = [x, weight].map(|tensor| primitive(tensor.clone().without_autodiff()));
    let geometry = Geometry::new(x.dims(), weight.dims(), options)?;
    let convolution = Convolution::new(&inner[0], &inner[1], geometry)?;
    let [x, weight] = [x, weight].map(|tensor| tensor.clone().into_dispatch());
    let bias = bias.map(|bias| bias.clone().cast(FloatDType::F32).into_dispatch());
    Some(Tensor::from_dispatch(match bias {
        Some(bias) => Dispatch::convolution_and_bias(x, weight, bias, convolution),
        None => Dispatch::convolution(x, weight, convolution),
    }))
}

/// Whether [`conv2d`] is for `device`: it has the instructions for f16 and bf16.
///
/// # Panics
/// If it is not one that [`crate::gpu::computes_on`].
pub fn convolves_on(device: &Device) -> bool {
    let one = primitive(Tensor::<1>::zeros([1], &device.clone().inner()));
    [DType::F16, DType::BF16].map(|dtype| has_instructions(&one.client, dtype)) == [true; 2]
}

#[backend_extension(Cube, Autodiff)]
pub(super) trait ConvolutionOps: Backend {
    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        convolution: Convolution,
    ) -> FloatTensor<Self>;

    fn convolution_and_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        convolution: Convolution,
    ) -> FloatTensor<Self>;
}

impl ConvolutionOps for Cube {
    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        convolution: Convolution,
    ) -> FloatTensor<Self> {
        convolution.forward(x, weight, None)
    }

    fn convolution_and_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        convolution: Convolution,
    ) -> FloatTensor<Self> {
        convolution.forward(x, weight, Some(bias))
    }
}

impl<C: CheckpointStrategy> ConvolutionOps for Autodiff<Cube, C> {
    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        convolution: Convolution,
    ) -> FloatTensor<Self> {
        let [images, filter] = [&x, &weight].map(|tensor| tensor.primitive().clone());
        let output = convolution.forward(images, filter, None);
        record::<C, 2>([&x, &weight], convolution, output)
    }

    fn convolution_and_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        convolution: Convolution,
    ) -> FloatTensor<Self> {
        let [images, filter, added] = [&x, &weight, &bias].map(|tensor| tensor.primitive().clone());
        let output = convolution.forward(images, filter, Some(added));
        record::<C, 3>([&x, &weight, &bias], convolution, output)
    }
}

/// Adds the operation to the graph. Backward reads images and weight, which come first.
fn record<C: CheckpointStrategy, const N: usize>(
    inputs: [&FloatTensor<Autodiff<Cube, C>>; N],
    convolution: Convolution,
    output: CubeTensor,
) -> FloatTensor<Autodiff<Cube, C>> {
    let nodes = inputs.map(|input| input.node());
    let prepared = Backward::<Cube, N>::prepare::<C>(ConvolutionBackward, nodes);
    match prepared.compute_bound().stateful() {
        OpsKind::Tracked(mut prepared) => {
            let state = State {
                x: prepared.checkpoint(inputs[0]),
                weight: prepared.checkpoint(inputs[1]),
                convolution,
            };
            prepared.finish(state, output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}

/// What is kept from forward to backward.
#[derive(Clone, Debug)]
struct State {
    x: NodeId,
    weight: NodeId,
    convolution: Convolution,
}

#[derive(Debug)]
struct ConvolutionBackward;

impl<const N: usize> Backward<Cube, N> for ConvolutionBackward {
    type State = State;

    fn backward(self, ops: Ops<State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<Cube>(&ops.node);
        let State {
            x,
            weight,
            convolution,
        } = ops.state;
        let x = checkpointer.retrieve_node_output::<CubeTensor>(x);
        let weight = checkpointer.retrieve_node_output::<CubeTensor>(weight);
        let mut parents = ops.parents.into_iter();
        let mut next = || parents.next().flatten();
        let (to_x, to_weight, to_bias) = (next(), next(), next());
        if let Some(to) = to_bias {
            grads.register::<Cube>(to.id, gradient_of_bias(dy.clone()));
        }
        if let Some(to) = to_weight {
            let gradient = convolution.gradient_of_weight(x, dy.clone());
            grads.register::<Cube>(to.id, gradient);
        }
        if let Some(to) = to_x {
            let gradient = convolution.gradient_of_images(dy, weight);
            grads.register::<Cube>(to.id, gradient);
        }
    }
}
