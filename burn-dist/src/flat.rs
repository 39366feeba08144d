//! Flat values of a training's state: a rank's part of parameters, averages and optimizer state.
//!
//! They are tensors on the device that steps them. In host memory they are stepped in place: a
//! tensor without another owner is not copied, and another owner, such as a snapshot, keeps the old
//! values.

use std::mem;
use std::ops::Range;

use burn::backend::Flex;
use burn::tensor::{DType, Device, Tensor, TensorData};

/// Puts `values` on `device`. Empty values go into host memory, as other devices have no empty
/// memory.
pub(crate) fn put(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let len = values.len();
    let data = TensorData::new(values, [len]);
    match len {
        0 => Tensor::from_data(data, (&Device::flex(), DType::F32)),
        _ => Tensor::from_data(data, (device, DType::F32)),
    }
}

/// An empty tensor.
pub(crate) fn none() -> Tensor<1> {
    put(Vec::new(), &Device::flex())
}

pub(crate) fn len(values: &Tensor<1>) -> usize {
    values.shape().num_elements()
}

/// Takes the tensor and leaves an empty one.
pub(crate) fn take(values: &mut Tensor<1>) -> Tensor<1> {
    mem::replace(values, none())
}

/// Passes values in host memory to `look`.
///
/// # Errors
/// Returns the reason if they cannot be read.
pub(crate) fn look<R>(values: &Tensor<1>, look: impl FnOnce(&[f32]) -> R) -> Result<R, String> {
    let tensor = values.clone().try_into_primitive::<Flex>();
    let tensor = tensor.map_err(|error| format!("{error:?}"))?;
    let numbers = (tensor.dtype() == DType::F32).then(|| tensor.as_slice::<f32>());
    let numbers = numbers.flatten();
    let numbers = numbers.ok_or_else(|| format!("expected f32, got {:?}", tensor.dtype()))?;
    Ok(look(numbers))
}

/// Changes values in host memory, in place unless they have another owner.
///
/// # Errors
/// Returns the reason if they cannot be read.
pub(crate) fn change<R>(
    values: &mut Tensor<1>,
    change: impl FnOnce(&mut [f32]) -> R,
) -> Result<R, String> {
    let (device, dtype) = (values.device(), values.dtype());
    let data = take(values).try_into_data();
    let mut data = data.map_err(|error| error.to_string())?;
    let numbers = data.as_mut_slice::<f32>().map_err(|e| format!("{e:?}"));
    let result = numbers.map(change);
    *values = Tensor::from_data(data, (&device, dtype));
    result
}

/// A range of `values`, to be replaced.
pub(crate) struct Part<'a> {
    pub values: &'a mut Tensor<1>,
    pub elements: Range<usize>,
}

impl<'a> Part<'a> {
    /// All elements.
    pub(crate) fn all(values: &'a mut Tensor<1>) -> Self {
        let elements = 0..len(values);
        Self { values, elements }
    }

    fn is_all(&self) -> bool {
        self.elements == (0..len(self.values))
    }

    /// The elements of the part; not copied in host memory.
    pub(crate) fn get(&self) -> Tensor<1> {
        match self.is_all() {
            true => self.values.clone(),
            false => self.values.clone().slice(self.elements.clone()),
        }
    }

    /// Takes the elements for writing until [`put`](Self::put). If the part is everything, they
    /// have no other owner.
    pub(crate) fn take(&mut self) -> Tensor<1> {
        match self.is_all() {
            true => take(self.values),
            false => self.get(),
        }
    }

    /// Puts back other elements for the taken ones, and returns them. If the part is not
    /// everything, `values` stays as it was.
    pub(crate) fn put(self, elements: Tensor<1>) -> Tensor<1> {
        if len(self.values) == 0 || self.is_all() {
            *self.values = elements.clone();
        }
        elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(values: &Tensor<1>) -> (Vec<f32>, usize) {
        look(values, |numbers| {
            (numbers.to_vec(), numbers.as_ptr() as usize)
        })
        .unwrap()
    }

    #[test]
    fn numbers_change_where_they_are_and_snapshots_do_not() {
        let mut values = put(vec![1.0, 2.0, 3.0], &Device::flex());
        let (_, memory) = numbers(&values);
        let double =
            |values: &mut Tensor<1>| change(values, |n| n.iter_mut().for_each(|n| *n *= 2.0));
        double(&mut values).unwrap();
        assert_eq!(numbers(&values), (vec![2.0, 4.0, 6.0], memory));
        let snapshot = values.clone();
        double(&mut values).unwrap();
        assert_eq!(numbers(&values).0, [4.0, 8.0, 12.0]);
        assert_eq!(numbers(&snapshot), (vec![2.0, 4.0, 6.0], memory));
    }

    #[test]
    fn a_part_is_seen_in_its_place_and_replaces_all_that_there_is_alone() {
        let mut values = put(vec![1.0, 2.0, 3.0], &Device::flex());
        let (_, memory) = numbers(&values);
        let other = |len| put(vec![9.0; len], &Device::flex());
        let mut part = Part {
            values: &mut values,
            elements: 1..3,
        };
        assert_eq!(
            numbers(&part.take()),
            (vec![2.0, 3.0], memory + size_of::<f32>())
        );
        assert_eq!(numbers(&part.put(other(2))).0, [9.0, 9.0]);
        assert_eq!(numbers(&values), (vec![1.0, 2.0, 3.0], memory));
        let mut part = Part::all(&mut values);
        assert_eq!(numbers(&part.take()), (vec![1.0, 2.0, 3.0], memory));
        part.put(other(3));
        assert_eq!(numbers(&values).0, [9.0; 3]);
    }

    #[test]
    fn numbers_of_other_types_and_none_at_all_are_told_apart() {
        let doubles = Tensor::from_data(TensorData::from([1.0f64]), (&Device::flex(), DType::F64));
        let message = look(&doubles, |_| ()).unwrap_err();
        assert!(message.contains("F64"), "{message}");
        assert_eq!(look(&none(), <[f32]>::len), Ok(0));
    }
}
