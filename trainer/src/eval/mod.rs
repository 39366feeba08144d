//! Evaluates models of any task over all ranks, and reads losses of training steps.

pub(crate) mod evaluate;
pub(crate) mod file;
pub(crate) mod loss;
