//! Conversions between Flex tensors and slices of f32.

use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{DType, Shape};

use super::memory;
use crate::KernelError;

/// Returns the numbers of `tensor` in the order of its shape, without a copy.
///
/// # Errors
///
/// Fails if the tensor holds other numbers than f32 or is not contiguous (see [`contiguous`]).
pub(super) fn numbers(tensor: &FlexTensor) -> Result<&[f32], KernelError> {
    tensor.as_slice::<f32>().ok_or(KernelError::Storage)
}

/// `tensor` in memory as its shape says: itself, or a copy if needed.
pub(super) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    match tensor.layout().contiguous_offsets() {
        Some(_) => tensor,
        None => tensor.to_contiguous(),
    }
}

/// A tensor whose numbers `write` sets, all of them: they are arbitrary before.
///
/// # Errors
/// Errors of `write`.
pub(super) fn filled(
    shape: Shape,
    write: impl FnOnce(&mut [f32]) -> Result<(), KernelError>,
) -> Result<FlexTensor, KernelError> {
    let bytes = memory::numbers(shape.num_elements());
    let mut tensor = FlexTensor::new(bytes, Layout::contiguous(shape), DType::F32);
    write(tensor.storage_mut())?;
    Ok(tensor)
}

/// Changes the numbers of a tensor, in place if it has no other owner.
///
/// # Errors
/// Errors of `change`, or as [`numbers`].
pub(super) fn changed(
    mut tensor: FlexTensor,
    change: impl FnOnce(&mut [f32]) -> Result<(), KernelError>,
) -> Result<FlexTensor, KernelError> {
    let covers =
        tensor.layout().contiguous_offsets() == Some((0, tensor.bytes().len() / size_of::<f32>()));
    if covers
        && tensor.dtype() == DType::F32
        && let Some(values) = tensor.try_storage_mut()
    {
        change(values)?;
        return Ok(tensor);
    }
    let copy = filled(tensor.layout().shape().clone(), |values| {
        values.copy_from_slice(numbers(&tensor)?);
        Ok(())
    });
    let mut copy = copy?;
    change(copy.storage_mut())?;
    Ok(copy)
}

/// Returns the dimensions.
pub(super) fn dims(tensor: &FlexTensor) -> &[usize] {
    tensor.layout().shape()
}

/// Returns the last dimension; 1 for a scalar.
pub(super) fn last(tensor: &FlexTensor) -> usize {
    dims(tensor).last().copied().unwrap_or(1)
}
