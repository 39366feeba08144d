//! The activation that gives gradient hooks their depth, one per thread.
//!
//! A thread only keeps an anchor once a hooked parameter has been read on it, so models that
//! contain boundaries but are trained or evaluated without hooks hold no memory through this.

use std::cell::RefCell;

use burn::tensor::{Device, DispatchTensor, GradientCheckpointingStrategy, Tensor};

/// An activation in a form that does not name its rank.
#[derive(Clone)]
struct Anchor {
    tensor: DispatchTensor,
    device: Device,
    checkpointing: Option<GradientCheckpointingStrategy>,
}

#[derive(Default)]
struct Current {
    hooks_in_use: bool,
    anchor: Option<Anchor>,
}

thread_local! {
    static CURRENT: RefCell<Current> = RefCell::default();
}

/// Remembers a tracked activation for the hooks that follow on this thread.
pub(super) fn set<const D: usize>(activation: &Tensor<D>) {
    CURRENT.with_borrow_mut(|current| {
        current.anchor = Some(Anchor {
            device: activation.device(),
            checkpointing: activation.gradient_checkpointing_strategy(),
            tensor: activation.clone().into_dispatch(),
        });
    });
}

/// Whether a hooked parameter has been read on this thread since the last [`forget`].
pub(super) fn hooks_in_use() -> bool {
    CURRENT.with_borrow(|current| current.hooks_in_use)
}

/// The anchor for a hook on `parameter`, if there is one that can enter an operation with it.
pub(super) fn for_hook<const D: usize>(parameter: &Tensor<D>) -> Option<DispatchTensor> {
    CURRENT.with_borrow_mut(|current| {
        current.hooks_in_use = true;
        let anchor = current.anchor.as_ref()?;
        let compatible = anchor.device == parameter.device()
            && anchor.checkpointing == parameter.gradient_checkpointing_strategy();
        compatible.then(|| anchor.tensor.clone())
    })
}

/// Drops the anchor without forgetting that hooks are in use.
pub(super) fn clear() {
    CURRENT.with_borrow_mut(|current| current.anchor = None);
}

/// Forgets everything: a forward pass begins, or its graph is about to be consumed. An anchor of
/// a consumed graph would drag that graph into the next backward, which Burn refuses.
pub(crate) fn forget() {
    CURRENT.with_borrow_mut(|current| *current = Current::default());
}
