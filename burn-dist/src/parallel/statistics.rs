//! The running statistics of Burn's `BatchNorm` in mixed precision.
//!
//! The layer mixes them with statistics of its input, so they need the input's type while the model
//! trains in low precision. For saving and evaluation they are `f32`. A layer that casts its input
//! does not need this.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, FloatDType, Tensor};

/// Whether a module of this type keeps running statistics without checking their type.
pub(super) fn are_in(container: &str) -> bool {
    container.strip_prefix("Struct:").unwrap_or(container) == "BatchNorm"
}

/// Whether a field of this name holds running statistics of any layer.
pub(super) fn is_running(field: Option<&String>) -> bool {
    field.is_some_and(|field| field.starts_with("running_"))
}

/// The type in which running statistics of `dtype` are saved. It does not depend on the precision,
/// so a run can continue in another one.
pub(super) fn saved_as(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Casts the running statistics of `model`.
pub(super) fn cast<M: Module>(model: M, dtype: FloatDType) -> M {
    // The last update is kept apart from the value until the next read; `valid` folds it in.
    drop(model.valid());
    model.map(&mut Cast {
        dtype,
        container: String::new(),
        field: String::new(),
    })
}

struct Cast {
    dtype: FloatDType,
    /// Type of the container entered last.
    container: String,
    field: String,
}

impl ModuleMapper for Cast {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        name.clone_into(&mut self.field);
        container_type.clone_into(&mut self.container);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if param.is_require_grad()
            || !are_in(&self.container)
            || !self.field.starts_with("running_")
        {
            return param;
        }
        param.map(|value| value.cast(self.dtype))
    }
}
