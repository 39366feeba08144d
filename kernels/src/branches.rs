//! Gradients of tensors with several uses, such as the input of a residual block. Burn adds the
//! gradients of all uses in kernels that read two tensors and write their sum, on a CPU with one
//! thread. An operation that computes one of the gradients can add an existing one in its own
//! kernel.
//!
//! Burn does not tell whether a gradient exists. So each thread remembers the ones registered here
//! until another backward begins. A backward is recognised by a mark in its container of gradients.

use std::cell::RefCell;
use std::collections::HashSet;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Flex, TensorMetadata};
use burn::tensor::{DType, Shape};

thread_local! {
    static REGISTERED: RefCell<Option<Registered>> = const { RefCell::new(None) };
}

/// Nodes with gradients in a container that were registered here and not taken.
struct Registered {
    mark: FloatTensor<Autodiff<Flex>>,
    nodes: HashSet<NodeId>,
}

impl Registered {
    fn new() -> Self {
        Self {
            mark: Autodiff::<Flex>::from_inner(FlexTensor::zeros(Shape::new([1]), DType::F32)),
            nodes: HashSet::new(),
        }
    }

    /// The nodes of a container, which may differ from the last one.
    fn nodes(&mut self, gradients: &mut Gradients) -> &mut HashSet<NodeId> {
        if gradients.get::<Flex>(&self.mark).is_none() {
            self.nodes.clear();
            gradients.register::<Flex>(self.mark.id(), self.mark.primitive().clone());
        }
        &mut self.nodes
    }
}

/// Calls `work` with the nodes of a container.
fn of_nodes<R>(gradients: &mut Gradients, work: impl FnOnce(&mut HashSet<NodeId>) -> R) -> R {
    REGISTERED.with_borrow_mut(|registered| {
        work(
            registered
                .get_or_insert_with(Registered::new)
                .nodes(gradients),
        )
    })
}

/// Registers a gradient of a node, which another operation may [`take`].
pub(crate) fn register<B: Backend>(
    gradients: &mut Gradients,
    node: NodeId,
    gradient: FloatTensor<B>,
) {
    of_nodes(gradients, |nodes| nodes.insert(node));
    gradients.register::<B>(node, gradient);
}

/// Takes a registered gradient of a node out of the container with `consume`. The caller adds its
/// own and registers the sum. `None` if no gradient was registered, or if it differs in `shape` or
/// `dtype` and stays.
///
/// `is_inner`: the node passes its gradient on in this backward. A leaf's gradient must stay.
pub(crate) fn take<B: Backend>(
    gradients: &mut Gradients,
    (node, is_inner): (NodeId, bool),
    (shape, dtype): (Shape, DType),
    consume: impl FnOnce(&mut Gradients) -> FloatTensor<B>,
) -> Option<FloatTensor<B>> {
    if !is_inner || !of_nodes(gradients, |nodes| nodes.remove(&node)) {
        return None;
    }
    let gradient = consume(gradients);
    if gradient.shape() == shape && gradient.dtype() == dtype {
        return Some(gradient);
    }
    register::<B>(gradients, node, gradient);
    None
}
