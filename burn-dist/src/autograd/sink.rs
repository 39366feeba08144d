//! Where finished gradients go, as the hook operation sees it.

use std::fmt;
use std::sync::{Arc, Weak};

use burn::tensor::Tensor;

/// Receives gradients from the hooks of one model. Parameters are named by their index among the
/// trainable parameters in visit order.
///
/// The calls come from inside Burn's backward pass, which holds the lock of the graph: an
/// implementation uses plain tensors only and never runs another backward.
pub(crate) trait GradientSink: fmt::Debug + Send + Sync {
    /// A use of the parameter was recorded in a graph.
    fn used(&self, parameter: usize);

    /// That use is gone: backward passed it, or its graph was dropped. Called while Burn holds
    /// its locks, so this must not take one of its own.
    fn released(&self, parameter: usize);

    /// Whether gradients should come here. Otherwise the hook behaves as if it were not there.
    fn is_collecting(&self) -> bool;

    /// The gradient of one use of the parameter, flattened. It is the last one expected if this
    /// use is the only one left.
    fn collect(&self, parameter: usize, gradient: Tensor<1>);

    /// Collecting the gradient panicked.
    fn panicked(&self, parameter: usize, reason: &str);
}

/// Gives the values of parameters that are not in the model itself.
pub(crate) trait ParameterSource: fmt::Debug + Send + Sync {
    /// All values of a parameter, flat, in `f32`, on the model's device; `None` if they cannot be
    /// had, which is then known to the source.
    fn whole(&self, parameter: usize) -> Option<Tensor<1>>;
}

/// One use of a parameter in a graph, alive as long as the operation that recorded it.
///
/// Counting uses by lifetime keeps the count right when a forward pass is never followed by
/// backward: the dropped graph takes its uses along. Burn drops it only with the next backward,
/// whenever that is, so a use keeps nobody: whoever owns the sink may be gone by then, with its
/// group of ranks.
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

    /// Where the gradient goes, if that is still there.
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
