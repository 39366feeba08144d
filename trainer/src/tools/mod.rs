//! Tools around training: for trained models, and before a run.

pub(crate) mod activations;
pub mod lr_find;
pub(crate) mod plan;
pub mod preview;
pub mod trained;
