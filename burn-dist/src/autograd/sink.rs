//! Receives finished gradients from the hooks.

use std::fmt;
use std::sync::{Arc, Weak};

use burn::tensor::Tensor;

/// Receives gradients from the hooks of one model. Parameters are named by their index among the
/// trainable parameters in visit order.
///
/// The calls come from inside Burn's backward, which holds the lock of the graph. An implementation
/// uses plain tensors only and never runs another backward.
pub(crate) trait GradientSink: fmt::Debug + Send + Sync {
    /// A use of the parameter was recorded in a graph.
    fn used(&self, parameter: usize);

    /// A use is gone: backward passed it, or its graph was dropped. Burn holds its locks during the
    /// call, so an implementation must not take a lock.
    fn released(&self, parameter: usize);

    /// Whether to hand over gradients. Otherwise the hook does nothing.
    fn is_collecting(&self) -> bool;

    /// The flat gradient of one use of the parameter. It is the last one if no other use is left.
    fn collect(&self, parameter: usize, gradient: Tensor<1>);

    /// Collecting the gradient panicked.
    fn panicked(&self, parameter: usize, reason: &str);
}

/// Provides the values of parameters that are not in the model itself.
pub(crate) trait ParameterSource: fmt::Debug + Send + Sync {
    /// All values of a parameter, flat, in `f32`, on the model's device. `None` after an error,
    /// which the source keeps.
    fn whole(&self, parameter: usize) -> Option<Tensor<1>>;
}

/// One use of a parameter in a graph, alive as long as the operation that recorded it.
///
/// Lifetimes keep the count right if no backward follows a forward pass: the dropped graph drops
/// its uses. Burn drops the graph only with the next backward, whenever that is. So a use holds
/// only a weak reference, and the owner of the sink and its group may be gone by then.
pub(super) struct Use {
    sink: Weak<dyn GradientSink>,
    pub(super) parameter: usize,
}

impl Use {
    pub(super) fn new(sink: &Arc<dyn GradientSink>, parameter: usize) -> Self {
        sink.used(parameter);
        Self {
            sink: Arc::downgrade(sink),
            parameter,
        }
    }

    /// Returns the destination of the gradient, if it still exists.
    pub(super) fn sink(&self) -> Option<Arc<dyn GradientSink>> {
        self.sink.upgrade()
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(sink) = self.sink() {
            sink.released(self.parameter);
        }
    }
}

impl fmt::Debug for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Use(parameter {})", self.parameter)
    }
}
