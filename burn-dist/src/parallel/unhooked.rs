//! Detects gradients of parameters that were read without their hooks. They would be neither
//! averaged nor stepped, and the model would train on a part of its loss.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

use super::ParallelError;
use super::visited::keeps_path;

/// Looks for them among the gradients that backward has left.
///
/// # Errors
/// Names the first affected parameter.
pub(super) fn refuse<M: Module>(model: &M, gradients: &Gradients) -> Result<(), ParallelError> {
    let mut unhooked = Unhooked {
        gradients,
        path: Vec::new(),
        found: None,
    };
    model.visit(&mut unhooked);
    match unhooked.found {
        None => Ok(()),
        Some(path) => Err(ParallelError::ReadWithoutHook { path }),
    }
}

struct Unhooked<'a> {
    gradients: &'a Gradients,
    path: Vec<String>,
    found: Option<String>,
}

impl ModuleVisitor for Unhooked<'_> {
    keeps_path!();

    /// Reads the parameter from the module, without the hook.
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.found.is_none()
            && param.is_require_grad()
            && param.base().grad(self.gradients).is_some()
        {
            self.found = Some(self.path.join("."));
        }
    }
}
