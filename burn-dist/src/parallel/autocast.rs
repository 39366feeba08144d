//! Evaluation of a plain model in the precision of the training.

use burn::module::{
    LoraAdapter, Module, ModuleVisitor, Param, Reparameterization, Reparameterizer,
};
use burn::tensor::{DType, FloatDType, Tensor};

use super::{ParallelError, Precision, statistics};
use crate::autograd::GradHook;

/// Makes a plain `model` compute in `precision`, for forward passes without training.
///
/// `model` is a plain one, such as [`Parallel::valid`](super::Parallel::valid) returns. Its `f32`
/// parameters are cast when a layer reads them, except within
/// [`full_precision`](crate::autograd::full_precision), as in training. Inputs and results have the
/// type [`Precision::compute_dtype`]. Use the result for evaluation only: its running statistics
/// may be rounded. In [`Precision::F32`] the model is returned unchanged.
///
/// # Errors
///
/// [`ParallelError::ReparameterizedInLowPrecision`], as in training: a parameter with a
/// reparameterization of another kind than LoRA's cannot be cast.
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

/// Whether the reparameterization of this name computes in the type of its own parameters, which
/// are cast, and casts its base. Burn keeps it in place of a cast of the base.
pub(super) fn computes_in_low_precision(name: &str) -> bool {
    name == LoraAdapter::NAME
}

/// Finds a parameter that has a reparameterization and cannot be cast.
#[derive(Default)]
struct Adapters {
    path: Vec<String>,
    /// Path of the parameter visited last.
    last: String,
    /// Path of that parameter, and the name of its reparameterization.
    found: Option<(String, String)>,
}

impl ModuleVisitor for Adapters {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        // A reparameterization is visited right after its parameter.
        if container_type == "Reparameterization"
            && self.found.is_none()
            && !computes_in_low_precision(name)
        {
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

/// Casts all `f32` parameters.
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
