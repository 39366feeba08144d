//! A differentiable operation, which adds a kernel to Burn's graph.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DispatchTensor, Shape, Tensor};

use super::conv::pixels;
use super::shared;
use super::tensor::{changed, contiguous, filled, numbers};
use crate::KernelError;
use crate::branches;
use crate::cpu::{Epilogue, Kernels};

/// An operation, forward and backward. Inputs and gradients are contiguous.
pub(super) trait Operation: Debug + Send + Sync + 'static {
    /// Computes the result.
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError>;

    /// Gives `dy`, the gradient of the result, on to the inputs that want one.
    fn backward(&self, saved: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError>;

    /// Returns true if backward reads the input with this index.
    fn reads(&self, _index: usize) -> bool {
        false
    }

    /// Returns true if backward reads the result.
    fn reads_output(&self) -> bool {
        false
    }

    /// Whether to compute the result again instead of keeping it, when memory must be saved.
    fn is_cheap(&self) -> bool {
        false
    }
}

/// The inputs, as many as an operation has.
pub(super) fn exactly<const N: usize>(
    inputs: &[FlexTensor],
) -> Result<&[FlexTensor; N], KernelError> {
    inputs.try_into().map_err(|_| KernelError::Storage)
}

/// The tensors that backward reads.
pub(super) struct Saved {
    inputs: Vec<Option<FlexTensor>>,
    output: Option<FlexTensor>,
}

impl Saved {
    /// Returns the input with this index, for which [`Operation::reads`] returned true.
    pub fn input(&self, index: usize) -> Result<&FlexTensor, KernelError> {
        let input = self.inputs.get(index).and_then(Option::as_ref);
        input.ok_or(KernelError::Storage)
    }

    /// The result, if [`Operation::reads_output`] is true.
    pub fn output(&self) -> Result<&FlexTensor, KernelError> {
        self.output.as_ref().ok_or(KernelError::Storage)
    }
}

/// The destinations of the inputs' gradients.
pub(super) struct To<'a> {
    nodes: &'a [Option<NodeId>],
    gradients: &'a mut Gradients,
    pub kernels: &'a Kernels,
    /// The gradient that other operations have given to the input, if it can be added here.
    others: &'a dyn Fn(&mut Gradients, usize, &FlexTensor) -> Option<FlexTensor>,
}

impl To<'_> {
    /// Returns true if the input with this index needs a gradient.
    pub fn wants(&self, index: usize) -> bool {
        self.nodes.get(index).is_some_and(Option::is_some)
    }

    /// The gradient before ReLU, if there is one, from its saved output.
    pub fn before_relu(
        &self,
        relu: bool,
        saved: &Saved,
        dy: FlexTensor,
    ) -> Result<FlexTensor, KernelError> {
        if !relu {
            return Ok(dy);
        }
        let output = numbers(saved.output()?)?;
        changed(dy, |dy| self.kernels.relu_gradient(output, dy))
    }

    /// Gives the input the gradient that `write` computes, if it needs one.
    pub fn fill(
        &mut self,
        index: usize,
        shape: Shape,
        write: impl FnOnce(&mut [f32]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        match self.wants(index) {
            true => self.give(index, filled(shape, write)?),
            false => Ok(()),
        }
    }

    /// Gives the input its gradient, or a part of it.
    pub fn give(&mut self, index: usize, gradient: FlexTensor) -> Result<(), KernelError> {
        let Some(Some(node)) = self.nodes.get(index) else {
            return Ok(());
        };
        let sum = match (self.others)(self.gradients, index, &gradient) {
            Some(others) => self.sum(gradient, &contiguous(others))?,
            None => gradient,
        };
        branches::register::<Flex>(self.gradients, *node, sum);
        Ok(())
    }

    fn sum(&self, gradient: FlexTensor, others: &FlexTensor) -> Result<FlexTensor, KernelError> {
        let sum = Epilogue {
            residual: Some(numbers(others)?),
            ..Epilogue::default()
        };
        let rows = pixels(&gradient);
        changed(gradient, |gradient| {
            self.kernels.finish(rows, gradient, &sum)
        })
    }
}

/// An operation for each number of inputs, which Burn routes by their device.
macro_rules! kernel_ops {
    ($($kernel:ident<$count:literal>($($input:ident),+);)+) => {
        /// Backends that run an operation on one to four inputs.
        #[backend_extension(Flex, Autodiff)]
        pub(super) trait KernelOps: Backend {
            $(fn $kernel(
                $($input: FloatTensor<Self>,)+
                operation: Arc<dyn Operation>,
            ) -> FloatTensor<Self>;)+
        }

        impl KernelOps for Flex {
            $(fn $kernel(
                $($input: FloatTensor<Self>,)+
                operation: Arc<dyn Operation>,
            ) -> FloatTensor<Self> {
                forward([$($input),+], &*operation)
            })+
        }

        impl<C: CheckpointStrategy> KernelOps for Autodiff<Flex, C> {
            $(fn $kernel(
                $($input: FloatTensor<Self>,)+
                operation: Arc<dyn Operation>,
            ) -> FloatTensor<Self> {
                record::<C, $count>([$($input),+], operation)
            })+
        }
    };
}

kernel_ops! {
    kernel1<1>(a);
    kernel2<2>(a, b);
    kernel3<3>(a, b, c);
    kernel4<4>(a, b, c, d);
}

fn forward(inputs: impl IntoIterator<Item = FlexTensor>, operation: &dyn Operation) -> FlexTensor {
    let inputs: Vec<_> = inputs.into_iter().map(contiguous).collect();
    computed(shared().and_then(|kernels| operation.forward(kernels, &inputs)))
}

/// Panics on an error, because Burn's operations cannot return one: they panic too when shapes do
/// not match.
fn computed<T>(result: Result<T, KernelError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Computes the result and adds the operation to the graph.
fn record<C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<Flex, C>>; N],
    operation: Arc<dyn Operation>,
) -> FloatTensor<Autodiff<Flex, C>> {
    let primitives = inputs.iter().map(|input| input.primitive().clone());
    let output = forward(primitives, &*operation);
    let nodes = inputs.each_ref().map(|input| input.node());
    let prepared = Backward::<Flex, N>::prepare::<C>(KernelBackward, nodes);
    let prepared = match operation.is_cheap() {
        true => prepared
            .memory_bound()
            .retro_forward(Again {
                inputs: inputs.iter().map(|input| input.id()).collect(),
                operation: Arc::clone(&operation),
            })
            .parents::<Flex, _>(&inputs),
        false => prepared.compute_bound(),
    };
    match prepared.stateful() {
        OpsKind::Tracked(mut prepared) => {
            let kept = inputs
                .iter()
                .enumerate()
                .map(|(index, input)| operation.reads(index).then(|| prepared.checkpoint(input)));
            let state = State {
                inputs: kept.collect(),
                output: operation.reads_output().then(|| output.clone()),
                operation,
            };
            prepared.finish(state, output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}

/// Recomputes a result when backward needs it.
#[derive(Debug)]
struct Again {
    inputs: Vec<NodeId>,
    operation: Arc<dyn Operation>,
}

impl RetroForward for Again {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let inputs = self
            .inputs
            .iter()
            .map(|id| states.get_state::<FlexTensor>(id));
        let output = forward(inputs, &*self.operation);
        states.save(out, output);
    }
}

/// The state that forward keeps for backward.
#[derive(Clone, Debug)]
struct State {
    inputs: Vec<Option<NodeId>>,
    output: Option<FlexTensor>,
    operation: Arc<dyn Operation>,
}

#[derive(Debug)]
struct KernelBackward;

impl<const N: usize> Backward<Flex, N> for KernelBackward {
    type State = State;

    fn backward(self, ops: Ops<State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let gradient = contiguous(grads.consume::<Flex>(&ops.node));
        let state = ops.state;
        let inputs = state.inputs.iter().map(|id| {
            let input = checkpointer.retrieve_node_output::<FlexTensor>((*id)?);
            Some(contiguous(input))
        });
        let saved = Saved {
            inputs: inputs.collect(),
            output: state.output,
        };
        let nodes = ops
            .parents
            .each_ref()
            .map(|parent| parent.as_ref().map(|node| node.id));
        let others = |grads: &mut Gradients, index: usize, like: &FlexTensor| {
            let to = ops.parents.get(index)?.as_ref()?;
            let node = (to.id, to.requirement == ops.node.requirement);
            let like = (like.layout().shape().clone(), like.dtype());
            branches::take::<Flex>(grads, node, like, |grads| grads.consume::<Flex>(to))
        };
        computed(shared().and_then(|kernels| {
            let mut to = To {
                nodes: &nodes,
                gradients: grads,
                kernels,
                others: &others,
            };
            state.operation.backward(saved, gradient, &mut to)
        }));
    }
}

/// Applies `operation` to a first and up to three more inputs of any rank.
///
/// # Panics
///
/// Panics if their shapes do not match, as Burn's own operations do.
pub(super) fn apply<const D: usize>(
    operation: impl Operation,
    first: DispatchTensor,
    others: Vec<DispatchTensor>,
) -> Tensor<D> {
    let operation: Arc<dyn Operation> = Arc::new(operation);
    let mut others = others.into_iter();
    let others = [others.next(), others.next(), others.next()];
    Tensor::from_dispatch(match others {
        [None, ..] => Dispatch::kernel1(first, operation),
        [Some(a), None, _] => Dispatch::kernel2(first, a, operation),
        [Some(a), Some(b), None] => Dispatch::kernel3(first, a, b, operation),
        [Some(a), Some(b), Some(c)] => Dispatch::kernel4(first, a, b, c, operation),
    })
}
