//! `gather`: reads a parameter that lives elsewhere, as a shard on every rank.
//!
//! The module holds a placeholder: one element that pretends to have the parameter's shape. What
//! comes out of the operation is the whole parameter. It is memory bound in Burn's terms:
//! operations that need it again in backward do not keep it but let it be gathered once more, so a
//! layer's weights are there only while the layer computes. Its gradient goes to the sink, as with
//! `grad_hook`.

use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy};
use burn::backend::autodiff::ops::{Backward, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchKindConversion, DispatchTensor, TensorMetadata};
use burn::tensor::Tensor;

use super::grad_hook::GradHookBackward;
use super::sink::{GradientSink, ParameterSource, Use};
use super::{depth, rung};
use crate::backend::{implement, operation};

/// What the operation has to know of its parameter.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    parameter: usize,
    /// As a graph that nobody uses any more may still have this.
    source: Weak<dyn ParameterSource>,
}

operation! {
    pub(super) trait GatherOp: Backend {
        /// The whole parameter that `placeholder` stands for, above a depth of the graph.
        fn gather(
            placeholder: FloatTensor<Self>,
            depth: usize,
            fetch: Fetch,
            usage: Arc<Use>,
        ) -> FloatTensor<Self>;
    }
}

implement! {
    GatherOp {
        fn gather(
            placeholder: FloatTensor<Self>,
            _depth: usize,
            fetch: Fetch,
            _usage: Arc<Use>,
        ) -> FloatTensor<Self> {
            whole::<Self>(placeholder, &fetch)
        }
    }
}

fn whole<B: Backend>(placeholder: FloatTensor<B>, fetch: &Fetch) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let shape = placeholder.shape();
    let elements = shape.num_elements();
    let values = fetch
        .source
        .upgrade()
        .and_then(|source| source.whole(fetch.parameter));
    match values {
        Some(flat) if flat.shape().num_elements() == elements => {
            let flat = flat.try_into_primitive::<B>();
            flat.map_or(placeholder, |flat| B::float_reshape(flat, shape))
        }
        // The source remembers why, and the step will report it.
        _ => placeholder,
    }
}

/// Gathers the parameter again when backward needs it.
#[derive(Debug)]
struct GatherRetro<B> {
    placeholder: NodeId,
    fetch: Fetch,
    backend: PhantomData<fn() -> B>,
}

impl<B: Backend> RetroForward for GatherRetro<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let placeholder = states.get_state::<FloatTensor<B>>(&self.placeholder);
        states.save(out, whole::<B>(placeholder, &self.fetch));
    }
}

impl<B: GatherOp, C: CheckpointStrategy> GatherOp for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn gather(
        placeholder: FloatTensor<Self>,
        depth: usize,
        fetch: Fetch,
        usage: Arc<Use>,
    ) -> FloatTensor<Self> {
        let retro = GatherRetro::<B> {
            placeholder: placeholder.id(),
            fetch: fetch.clone(),
            backend: PhantomData,
        };
        // Whatever the strategy of the device: weights are never kept for backward.
        let nodes = [placeholder.node(), rung::at(depth)];
        let prepared = Backward::<B, 2>::prepare::<BalancedCheckpointing>(GradHookBackward, nodes)
            .memory_bound()
            .retro_forward(retro)
            .parents::<B, _>([&placeholder])
            .stateful();
        let value = whole::<B>(placeholder.into_primitive(), &fetch);
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(usage, value),
            OpsKind::UnTracked(prep) => prep.finish(value),
        }
    }
}

/// The parameter with this index, which `placeholder` stands for.
pub(super) fn apply<const D: usize>(
    placeholder: Tensor<D>,
    sink: &Arc<dyn GradientSink>,
    source: &Arc<dyn ParameterSource>,
    index: usize,
) -> Tensor<D> {
    let fetch = Fetch {
        parameter: index,
        source: Arc::downgrade(source),
    };
    let usage = Arc::new(Use::new(sink, index));
    let depth = match placeholder.is_tracked() {
        true => depth::for_hook(),
        false => 0,
    };
    let placeholder = placeholder.into_dispatch();
    Tensor::from_dispatch(Dispatch::gather(placeholder, depth, fetch, usage))
}
