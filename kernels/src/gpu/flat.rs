//! Flat tensors that hold many others, as a bucket holds gradients. With Burn's operations each of
//! them needs a kernel to be written and another to be read.

use std::ops::Range;

use burn::backend::Cube;
use burn::tensor::{Shape, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::matrix::{Matrix, changeable, primitive};
use super::multi_tensor::{Place, batches, places};
use super::sums::cube;

/// Writes `parts` into `flat`, each at its offset. The parts do not overlap.
///
/// # Panics
///
/// Panics unless all tensors have the same type and lie on one device for which [`super::is_gpu`]
/// is true, or if a part does not fit.
pub fn put_parts(flat: Tensor<1>, parts: Vec<(usize, Tensor<1>)>) -> Tensor<1> {
    let flat = changeable(flat);
    let (starts, parts): (Vec<usize>, Vec<_>) = parts.into_iter().unzip();
    let matrix = |tensor| [Matrix::new(primitive(tensor))];
    let parts: Vec<[Matrix; 1]> = parts.into_iter().map(matrix).collect();
    copy(&flat, &parts, &starts, true);
    Tensor::from_primitive::<Cube>(flat.into_tensor())
}

/// Returns the numbers of `flat` in these ranges: as views if the device allows memory to begin and
/// end at these places, else as copies.
///
/// # Panics
///
/// Panics if [`super::is_gpu`] is false for the device of `flat`, or if a range ends beyond `flat`.
pub fn take_parts(flat: Tensor<1>, ranges: &[Range<usize>]) -> Vec<Tensor<1>> {
    let flat = Matrix::new(primitive(flat));
    let mut parts = Vec::new();
    let (mut copies, mut starts) = (Vec::new(), Vec::new());
    for range in ranges {
        assert!(range.start <= range.end && range.end <= flat.columns());
        let view = view(&flat, range);
        if view.is_none() {
            copies.push([flat.empty([range.len()])]);
            starts.push(range.start);
        }
        parts.push(view);
    }
    copy(&flat, &copies, &starts, false);
    let mut copies = copies.into_iter().map(|[copy]| copy.into_tensor());
    let parts = parts
        .into_iter()
        .filter_map(|view| view.or_else(|| copies.next()));
    parts.map(Tensor::from_primitive::<Cube>).collect()
}

/// Returns a view of a part of `flat`, if the device allows one.
fn view(flat: &Matrix, range: &Range<usize>) -> Option<CubeTensor> {
    let flat = flat.clone().into_tensor();
    let alignment = flat.client.properties().memory.alignment;
    let behind = flat.meta.shape().num_elements() - range.end;
    let [begin, end] = [range.start, behind].map(|numbers| (numbers * flat.dtype.size()) as u64);
    if range.is_empty() || !begin.is_multiple_of(alignment) || !end.is_multiple_of(alignment) {
        return None;
    }
    let handle = flat.handle.offset_start(begin).offset_end(end);
    let shape = Shape::new([range.len()]);
    let view = CubeTensor::new_contiguous(flat.client, flat.device, shape, handle, flat.dtype);
    Some(view)
}

/// Copies `parts` to the places of `flat` that begin at `starts` if `put`, else from these places.
fn copy(flat: &Matrix, parts: &[[Matrix; 1]], starts: &[usize], put: bool) {
    for ([part], start) in parts.iter().zip(starts) {
        let has_room = start + part.columns() <= flat.columns();
        assert!(has_room && part.elem() == flat.elem());
    }
    let vector = |part: usize| {
        let most = parts[part][0].vector();
        let fits = |size: &usize| most.is_multiple_of(*size) && starts[part].is_multiple_of(*size);
        (1..=most).rev().find(fits).unwrap_or(1)
    };
    for batch in batches(parts, vector) {
        let units = batch.units();
        let starts = batch.sets.iter().map(|part| starts[*part] / batch.vector);
        // SAFETY: every unit copies its own vector, if it exists, at a place that `flat` has.
        unsafe {
            copy_parts::launch_unchecked(
                batch.client(),
                batch.cubes(&units),
                cube(),
                batch.address.max(flat.address()),
                batch.vector,
                batch.args(0).collect(),
                flat.arg(),
                places(&units),
                starts.collect(),
                put,
                flat.elem(),
            );
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn copy_parts<F: Numeric, N: Size>(
    parts: &mut Sequence<Box<[Vector<F, N>]>>,
    flat: &mut [Vector<F, N>],
    places: &Sequence<Place>,
    starts: &Sequence<usize>,
    #[comptime] put: bool,
    #[define(F)] _dtype: ElemType,
) {
    #[unroll]
    for part in 0..places.len() {
        let place = places.index(part);
        if place.has(ABSOLUTE_POS) {
            let at = place.vector(ABSOLUTE_POS);
            let in_flat = *starts.index(part) + at;
            if comptime!(put) {
                flat[in_flat] = parts.index(part)[at];
            } else {
                parts.index_mut(part)[at] = flat[in_flat];
            }
        }
    }
}
