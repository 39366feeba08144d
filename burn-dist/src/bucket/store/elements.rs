//! Element access in a bucket's memory for every element type: copy in, add, measure, copy out.

use std::ops::Range;

use burn::tensor::{DType as BurnDType, TensorData, bf16, f16};
use bytemuck::Zeroable;
use rayon::prelude::*;

use crate::reduce::{Number, bound, vectorised};
use crate::{Buffer, DType, Error};

/// A type that gradients can have. 16-bit types compute in `f32` and round once.
trait Float: Number<Sum: Into<f64>> + burn::tensor::Element {}
impl Float for f32 {}
impl Float for f64 {}
impl Float for f16 {}
impl Float for bf16 {}

/// Runs a body with `$type` bound to the buffer's element type. Buckets hold floats only; for other
/// types the typed access below reports the mismatch.
macro_rules! with_type {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            DType::F64 => bound!($type = f64 => $body),
            DType::F16 => bound!($type = f16 => $body),
            DType::BF16 => bound!($type = bf16 => $body),
            _ => bound!($type = f32 => $body),
        }
    };
}

/// Our name for one of Burn's element types, if gradients can have it.
pub(crate) fn gradient_dtype(dtype: BurnDType) -> Option<DType> {
    match dtype {
        BurnDType::F32 => Some(DType::F32),
        BurnDType::F16 => Some(DType::F16),
        BurnDType::BF16 => Some(DType::BF16),
        BurnDType::F64 => Some(DType::F64),
        _ => None,
    }
}

/// Burn's name for one of these types.
pub(crate) fn burn_dtype(dtype: DType) -> BurnDType {
    match dtype {
        DType::F16 => BurnDType::F16,
        DType::BF16 => BurnDType::BF16,
        DType::F64 => BurnDType::F64,
        _ => BurnDType::F32,
    }
}

/// How a gradient combines with the values in its place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Addition {
    /// The first part in this step replaces the values of the last step.
    First,
    /// A further use of the parameter, or a further micro-batch, is added.
    Further,
}

/// Puts a gradient into its place. False if its type or length does not match.
pub(super) fn put(
    buffer: &mut Buffer,
    place: &Range<usize>,
    gradient: &TensorData,
    arrival: Addition,
) -> Result<bool, Error> {
    with_type!(buffer.dtype(), T => put_typed::<T>(buffer, place, gradient, arrival))
}

fn put_typed<T: Float>(
    buffer: &mut Buffer,
    place: &Range<usize>,
    gradient: &TensorData,
    arrival: Addition,
) -> Result<bool, Error> {
    let Ok(source) = gradient.as_slice::<T>() else {
        return Ok(false);
    };
    let Some(target) = buffer.as_mut_slice::<T>()?.get_mut(place.clone()) else {
        return Ok(false);
    };
    if target.len() != source.len() {
        return Ok(false);
    }
    match arrival {
        Addition::First => in_parts(target, source, <[T]>::copy_from_slice),
        Addition::Further => in_parts(target, source, add),
    }
    Ok(true)
}

/// Elements that are worth a second thread.
const PART: usize = 1 << 16;

/// Combines two slices of the same length, on all threads.
fn in_parts<T: Float>(sums: &mut [T], parts: &[T], combine: fn(&mut [T], &[T])) {
    if sums.len() < 2 * PART || rayon::current_num_threads() == 1 {
        return combine(sums, parts);
    }
    let parts = parts.par_chunks(PART);
    let both = sums.par_chunks_mut(PART).zip(parts);
    both.for_each(|(sums, parts)| combine(sums, parts));
}

fn add<T: Float>(sums: &mut [T], parts: &[T]) {
    vectorised(
        #[inline(always)]
        || {
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = T::narrow(T::add(sum.widen(), part.widen()));
            }
        },
    );
}

/// Zeros a place.
pub(super) fn clear(buffer: &mut Buffer, place: &Range<usize>) -> Result<(), Error> {
    with_type!(buffer.dtype(), T => {
        if let Some(place) = buffer.as_mut_slice::<T>()?.get_mut(place.clone()) {
            place.fill(T::zeroed());
        }
        Ok(())
    })
}

/// Sum of squares of a place, in `f64` and in an order that depends only on the length.
pub(super) fn sum_of_squares(buffer: &Buffer, place: &Range<usize>) -> Result<f64, Error> {
    with_type!(buffer.dtype(), T => {
        let values = buffer.as_slice::<T>()?.get(place.clone()).unwrap_or_default();
        Ok(sum_of_squares_typed(values))
    })
}

fn sum_of_squares_typed<T: Float>(values: &[T]) -> f64 {
    // Independent partial sums, so that the loop can use whole vectors.
    let mut partial = [0.0f64; 16];
    vectorised(
        #[inline(always)]
        || {
            let chunks = values.chunks_exact(partial.len());
            let rest = chunks.remainder();
            for chunk in chunks {
                for (sum, value) in partial.iter_mut().zip(chunk) {
                    let value: f64 = value.widen().into();
                    *sum += value * value;
                }
            }
            for (sum, value) in partial.iter_mut().zip(rest) {
                let value: f64 = value.widen().into();
                *sum += value * value;
            }
        },
    );
    partial.iter().sum()
}

/// Copies a place out.
pub(super) fn read(buffer: &Buffer, place: &Range<usize>) -> Result<TensorData, Error> {
    with_type!(buffer.dtype(), T => {
        let values = buffer.as_slice::<T>()?.get(place.clone()).unwrap_or_default();
        Ok(TensorData::new(values.to_vec(), [values.len()]))
    })
}

/// Adds or copies this rank's part of a reduced bucket into its shard.
pub(super) fn take_shard(
    shard: &mut Buffer,
    bucket: &Buffer,
    part: &Range<usize>,
    arrival: Addition,
) -> Result<(), Error> {
    with_type!(shard.dtype(), T => {
        let source = bucket.as_slice::<T>()?.get(part.clone()).unwrap_or_default();
        let target = shard.as_mut_slice::<T>()?;
        match arrival {
            Addition::First => {
                let len = target.len().min(source.len());
                target[..len].copy_from_slice(&source[..len]);
            }
            Addition::Further => {
                add(target, source);
            }
        }
        Ok(())
    })
}

/// Copies this rank's shard back into its place in a bucket.
pub(super) fn give_shard(
    shard: &Buffer,
    bucket: &mut Buffer,
    part: &Range<usize>,
) -> Result<(), Error> {
    with_type!(shard.dtype(), T => {
        let source = shard.as_slice::<T>()?;
        if let Some(target) = bucket.as_mut_slice::<T>()?.get_mut(part.clone())
            && target.len() == source.len()
        {
            target.copy_from_slice(source);
        }
        Ok(())
    })
}
