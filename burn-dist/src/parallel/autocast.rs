//! A plain model that computes as one in mixed precision does: for evaluation in the precision of
//! the training.

use burn::module::{Module, ModuleVisitor, Param, Reparameterizer};
use burn::tensor::{DType, FloatDType, Tensor};

use super::{ParallelError, Precision, statistics};
use crate::autograd::GradHook;

/// Prepares `model`, a plain one such as [`Parallel::valid`](super::Parallel::valid) gives, for
/// forward passes in `precision`: its `f32` parameters are cast where they are read, unless that is
/// within [`full_precision`](crate::autograd::full_precision), as those of a model that trains in
/// it are. It takes inputs of [`Precision::compute_dtype`] and gives results of that type. It is of
/// use for nothing else, for its running statistics may be rounded. In [`Precision::F32`] it is
/// `model` as it is.
///
/// # Errors
///
/// [`ParallelError::ReparameterizedInLowPrecision`], as in training: adapters such as LoRA's would
/// be lost.
pub fn autocast<M: Module>(model: M, precision: Precision) -> Result<M, ParallelError> {
    let Some(dtype) = precision.cast_to() else {
        return Ok(model);
    };
    let mut adapters = Adapters::default();
    model.visit(&mut adapters);
    match adapters.found {
        Some((path, name)) => Err(ParallelError::ReparameterizedInLowPrecision { path, name }),
        None => Ok(statistics::cast(model, dtype).apply_reparameterization(Casts(dtype))),
    }
}

/// Looks for a parameter that is read through something, which another cast would replace.
#[derive(Default)]
struct Adapters {
    path: Vec<String>,
    /// Path of the last parameter.
    last: String,
    /// That parameter's path, and what it is read through.
    found: Option<(String, String)>,
}

impl ModuleVisitor for Adapters {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        // It is visited right after the parameter it belongs to.
        if container_type == "Reparameterization" && self.found.is_none() {
            self.found = Some((self.last.clone(), name.to_owned()));
        }
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
        self.last = self.path.join(".");
    }
}

/// Has all `f32` parameters cast.
struct Casts(FloatDType);

impl Reparameterizer for Casts {
    type Reparam = GradHook;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<GradHook>) {
        let cast = (param.dtype() == DType::F32).then(|| GradHook::cast(self.0));
        (param, cast)
    }
}
