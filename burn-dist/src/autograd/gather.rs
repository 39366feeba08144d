//! `gather`: reads a parameter that lives as a shard on every rank.
//!
//! The module holds a placeholder: one element that pretends to have the parameter's shape. The
//! operation returns the whole parameter. It is memory bound in Burn's terms: operations that need
//! it again in backward do not keep it but gather it again, so a layer's weights exist only while
//! the layer computes. Its gradient goes to the sink, as with `grad_hook`.

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

/// The parameter to gather, and its source.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    parameter: usize,
    /// Weak, because an unused graph may outlive the source.
    source: Weak<dyn ParameterSource>,
}

operation! {
    pub(super) trait GatherOp: Backend {
        /// The whole parameter behind `placeholder`, above `depth` in the graph.
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
        // The source remembers the reason, and the step reports it.
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
        // Weights are never kept for backward, whatever the device's strategy.
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
