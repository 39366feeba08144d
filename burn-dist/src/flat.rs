//! Flat numbers of a training's state: what a rank keeps of parameters, of their averages, and for
//! the optimizer.
//!
//! They are tensors, on the device where they are stepped. In host memory they are stepped in
//! place: a tensor that nobody else holds is not copied, and who holds one, such as a snapshot,
//! keeps what there was.

use std::mem;
use std::ops::Range;

use burn::backend::Flex;
use burn::tensor::{DType, Device, Tensor, TensorData};

/// Puts `values` on `device`; no values into host memory, as other devices have no empty memory.
pub(crate) fn put(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let len = values.len();
    let data = TensorData::new(values, [len]);
    match len {
        0 => Tensor::from_data(data, (&Device::flex(), DType::F32)),
        _ => Tensor::from_data(data, (device, DType::F32)),
    }
}

/// No numbers.
pub(crate) fn none() -> Tensor<1> {
    put(Vec::new(), &Device::flex())
}

pub(crate) fn len(values: &Tensor<1>) -> usize {
    values.shape().num_elements()
}

/// Leaves nothing behind.
pub(crate) fn take(values: &mut Tensor<1>) -> Tensor<1> {
    mem::replace(values, none())
}

/// Shows numbers that are in host memory.
///
/// # Errors
/// Why they cannot be seen.
pub(crate) fn look<R>(values: &Tensor<1>, look: impl FnOnce(&[f32]) -> R) -> Result<R, String> {
    let tensor = values.clone().try_into_primitive::<Flex>();
    let tensor = tensor.map_err(|error| format!("{error:?}"))?;
    let numbers = (tensor.dtype() == DType::F32).then(|| tensor.as_slice::<f32>());
    let numbers = numbers.flatten();
    let numbers = numbers.ok_or_else(|| format!("it is not f32, but {:?}", tensor.dtype()))?;
    Ok(look(numbers))
}

/// Changes numbers that are in host memory, where they are unless somebody else holds them.
///
/// # Errors
/// Why they cannot be seen.
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

/// Some of the elements of `values`, to be replaced by others.
pub(crate) struct Part<'a> {
    pub values: &'a mut Tensor<1>,
    pub elements: Range<usize>,
}

impl<'a> Part<'a> {
    /// All of them.
    pub(crate) fn all(values: &'a mut Tensor<1>) -> Self {
        let elements = 0..len(values);
        Self { values, elements }
    }

    fn is_all(&self) -> bool {
        self.elements == (0..len(self.values))
    }

    /// These elements; not copied in host memory.
    pub(crate) fn get(&self) -> Tensor<1> {
        match self.is_all() {
            true => self.values.clone(),
            false => self.values.clone().slice(self.elements.clone()),
        }
    }

    /// The same for somebody who may write to them, until [`put`](Self::put): where they are all
    /// that there is, nobody else holds them.
    pub(crate) fn take(&mut self) -> Tensor<1> {
        match self.is_all() {
            true => take(self.values),
            false => self.get(),
        }
    }

    /// Other elements for those that were taken; gives these. Where there are more, `values` is as
    /// it was.
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
