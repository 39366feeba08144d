//! `grad_hook`: the identity on a parameter, which passes its gradient on during backward.
//!
//! Burn's reparameterization applies it in an unmodified module whenever a layer reads the
//! parameter.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchKindConversion, DispatchTensor, TensorMetadata};
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::{DType, FloatDType, Shape, Tensor};

use super::gather;
use super::sink::{GradientSink, ParameterSource, Use};
use super::{depth, full_precision, rung};
use crate::backend::{implement, operation};

operation! {
    pub(super) trait GradHookOp: Backend {
        /// The identity on `parameter`, above `depth` in the graph.
        fn grad_hook(parameter: FloatTensor<Self>, depth: usize, usage: Arc<Use>) -> FloatTensor<Self>;
    }
}

implement! {
    GradHookOp {
        fn grad_hook(
            parameter: FloatTensor<Self>,
            _depth: usize,
            _usage: Arc<Use>,
        ) -> FloatTensor<Self> {
            parameter
        }
    }
}

impl<B: GradHookOp, C: CheckpointStrategy> GradHookOp for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn grad_hook(parameter: FloatTensor<Self>, depth: usize, usage: Arc<Use>) -> FloatTensor<Self> {
        let (primitive, node) = parameter.into_parts();
        match GradHookBackward
            .prepare::<C>([node, rung::at(depth)])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(usage, primitive),
            OpsKind::UnTracked(prep) => prep.finish(primitive),
        }
    }
}

#[derive(Debug)]
pub(super) struct GradHookBackward;

impl<B: Backend> Backward<B, 2> for GradHookBackward
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Arc<Use>;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let usage = ops.state;
        let Some(sink) = usage.sink().filter(|sink| sink.is_collecting()) else {
            let [parameter, _rung] = ops.parents;
            if let Some(parameter) = parameter {
                grads.register::<B>(parameter.id, gradient);
            }
            return;
        };
        // The gradient is not registered for the parameter too: the sink is its only owner and
        // reads it without a copy.
        let collected = catch_unwind(AssertUnwindSafe(|| {
            let flat = Shape::new([gradient.shape().num_elements()]);
            let gradient = Tensor::from_primitive::<B>(B::float_reshape(gradient, flat));
            sink.collect(usage.parameter, gradient);
        }));
        if let Err(payload) = collected {
            sink.panicked(usage.parameter, contained::message(&*payload));
        }
    }
}

/// Passes `parameter` through a hook that reports to `sink` under `index`.
pub(super) fn apply<const D: usize>(
    parameter: Tensor<D>,
    sink: &Arc<dyn GradientSink>,
    index: usize,
) -> Tensor<D> {
    // Evaluation on a plain device or a frozen parameter: no gradient follows.
    if !parameter.is_tracked() {
        return parameter;
    }
    let usage = Arc::new(Use::new(sink, index));
    let parameter = parameter.into_dispatch();
    Tensor::from_dispatch(Dispatch::grad_hook(parameter, depth::for_hook(), usage))
}

/// Operations on one parameter of a module when a layer reads it.
#[derive(Module, Debug)]
pub(crate) struct GradHook {
    /// The sink of its gradient, and its index there; `None` if it is frozen.
    #[module(skip)]
    hook: Option<(Arc<dyn GradientSink>, usize)>,
    /// The type to cast it to.
    #[module(skip)]
    cast: Option<FloatDType>,
    /// Source of its values, if they are not in the module.
    #[module(skip)]
    source: Option<Arc<dyn ParameterSource>>,
}

impl GradHook {
    /// A hook that only casts.
    pub(crate) fn cast(dtype: FloatDType) -> Self {
        Self {
            hook: None,
            cast: Some(dtype),
            source: None,
        }
    }
}

impl Reparameterization for GradHook {
    const NAME: &'static str = "grad_hook";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let hooked = match (&self.hook, &self.source) {
            (Some((sink, index)), None) => apply(base, sink, *index),
            (Some((sink, index)), Some(source)) => gather::apply(base, sink, source, *index),
            (None, _) => base,
        };
        match self.cast {
            Some(dtype) if !full_precision::is_in_force() => hooked.cast(dtype),
            _ => hooked,
        }
    }
}

/// Attaches a hook to every trainable parameter of a module, numbered in visit order. It also casts
/// all `f32` parameters, frozen ones too, when a layer reads them.
///
/// Running statistics are visited like parameters, but read without a reparameterization.
#[derive(Debug)]
pub(crate) struct GradHooks {
    sink: Arc<dyn GradientSink>,
    cast: Option<FloatDType>,
    source: Option<Arc<dyn ParameterSource>>,
    next: usize,
}

impl GradHooks {
    /// `source` provides the values of trainable parameters if the module has none.
    pub(crate) fn new(
        sink: Arc<dyn GradientSink>,
        cast: Option<FloatDType>,
        source: Option<Arc<dyn ParameterSource>>,
    ) -> Self {
        Self {
            sink,
            cast,
            source,
            next: 0,
        }
    }
}

impl Reparameterizer for GradHooks {
    type Reparam = GradHook;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<GradHook>) {
        let cast = self.cast.filter(|_| param.dtype() == DType::F32);
        let hook = param.is_require_grad().then(|| {
            let index = self.next;
            self.next += 1;
            (Arc::clone(&self.sink), index)
        });
        let wanted = hook.is_some() || cast.is_some();
        let source = self.source.clone();
        (param, wanted.then_some(GradHook { hook, cast, source }))
    }
}
