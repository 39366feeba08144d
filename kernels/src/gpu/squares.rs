//! The norm of tensors on a GPU, summed in an order that depends on the lengths alone. On devices
//! with atomic addition, Burn's sum adds in the order in which its cubes come.

use burn::backend::Cube;
use burn::tensor::Tensor;
use cubecl::prelude::*;

use super::matrix::{Matrix, arg, primitive};
use super::multi_tensor::batches;
use super::sums::{UNITS, cube, over_lanes};

/// Numbers per cube.
const PART: usize = 256 * UNITS;

/// Sums of the squares of all `tensors`: one per 65,536 numbers of each tensor, in order, still to
/// be added up. They are in `f64`, so that the number of sums costs no precision. Empty if all
/// tensors are empty.
///
/// # Panics
/// If the tensors are not `f32`, or not on one device that [`super::is_gpu`].
pub fn sums_of_squares(tensors: impl IntoIterator<Item = Tensor<1>>) -> Option<Tensor<1>> {
    let matrix = |tensor| [Matrix::new(primitive(tensor))];
    let sets: Vec<[Matrix; 1]> = tensors.into_iter().map(matrix).collect();
    assert!(sets.iter().all(|[values]| values.is_f32()));
    let parts_of = |columns: usize| columns.div_ceil(PART);
    let all = sets.iter().map(|[values]| parts_of(values.columns())).sum();
    let [any] = sets.iter().find(|[values]| values.columns() > 0)?;
    let sums = any.numbers([all]);
    let mut first = 0;
    // No vectors: they would put other numbers into a sum, and only if the length allows them.
    for batch in batches(&sets, |_| 1) {
        let mut parts = 0;
        let mut begins = SequenceArg::new();
        let mut counts = SequenceArg::new();
        for count in batch.lengths() {
            begins.push(parts);
            counts.push(count);
            parts += parts_of(count);
        }
        // SAFETY: every cube reads its own part of a tensor, up to its end, and writes one of the
        // sums; all batches together have as many cubes.
        unsafe {
            squares_of_part::launch_unchecked(
                batch.client(),
                CubeCount::Static(parts as u32, 1, 1),
                cube(),
                batch.address,
                batch.vector,
                batch.args(0).collect(),
                arg(&sums),
                begins,
                counts,
                first,
            );
        }
        first += parts;
    }
    Some(Tensor::from_primitive::<Cube>(sums))
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn squares_of_part<N: Size>(
    tensors: &Sequence<Box<[Vector<f32, N>]>>,
    sums: &mut [Vector<f32, N>],
    begins: &Sequence<usize>,
    counts: &Sequence<usize>,
    first: usize,
) {
    let unit = UNIT_POS as usize;
    let part = CUBE_POS_X as usize;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for tensor in 0..tensors.len() {
        let begin = *begins.index(tensor);
        if part >= begin {
            // Beyond the end of tensors that end before this part.
            let mut at = (part - begin) * comptime!(PART);
            let count = *counts.index(tensor);
            let end = select(at + PART < count, at + PART, count);
            at += unit;
            while at < end {
                let value = tensors.index(tensor)[at];
                sum = fma(value, value, sum);
                at += UNITS;
            }
        }
    }
    let sum = over_lanes::<N>(sum, unit, 1usize, UNITS);
    if unit == 0 {
        sums[first + part] = sum;
    }
}
