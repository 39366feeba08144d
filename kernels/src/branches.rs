//! Gradients of what went several ways, as what goes into a residual block does. Burn adds up those
//! of all ways in kernels that read two and write their sum, on the processor by one thread; an
//! operation that computes one of them can add what is there already in its own kernel.
//!
//! Burn does not say whether a gradient is there. So what is registered here is remembered, on each
//! thread, until another backward pass begins: each has a container of gradients of its own, which
//! is known again by a mark in it.

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

/// Of which nodes there are gradients in a container: those that were registered here and that
/// nobody here has taken.
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

    /// The nodes of a container, which may be another than before.
    fn nodes(&mut self, gradients: &mut Gradients) -> &mut HashSet<NodeId> {
        if gradients.get::<Flex>(&self.mark).is_none() {
            self.nodes.clear();
            gradients.register::<Flex>(self.mark.id(), self.mark.primitive().clone());
        }
        &mut self.nodes
    }
}

/// What `work` says of the nodes of a container.
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

/// Takes what was registered of the gradient of a node out of the container, by `consume`, for the
/// caller to add it to its own and to register the sum. Nothing, if nothing was, or what was is not
/// of `shape` and `dtype` and stays there.
///
/// `is_inner`: whether the node's gradient is given on in this pass, and not a leaf's, which is to
/// stay.
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
