//! Parts of a flat tensor: many are written and read at once.

use burn::tensor::Tensor;
use kernels::gpu::{put_parts, take_parts};

use crate::check::{device, numbers};

#[test]
fn gpu_parts_of_a_flat_tensor_are_put_and_found_where_they_were_asked_for() {
    let Some(device) = device("flat tensors on a GPU") else {
        return;
    };
    // Lengths and offsets with and without whole vectors, and more parts than a kernel takes.
    let lengths = [1, 512, 3, 4, 1000, 128, 257];
    let (mut end, mut parts, mut expected) = (0, Vec::new(), Vec::new());
    for part in 0..40 {
        let start = end + [0, 1, 2, 128, 5][part % 5];
        let values: Vec<f32> = (0..lengths[part % lengths.len()])
            .map(|i| (part * 1000 + i) as f32)
            .collect();
        end = start + values.len();
        expected.resize(start, -1.0);
        expected.extend(values.iter().map(|value| f64::from(*value)));
        parts.push((start, Tensor::<1>::from_floats(values.as_slice(), &device)));
    }
    expected.resize(end + 7, -1.0);
    let flat = Tensor::<1>::full([end + 7], -1.0, &device);
    let held = flat.clone();
    let flat = put_parts(flat, parts);
    assert_eq!(numbers(flat.clone()), expected);
    assert!(numbers(held).iter().all(|value| *value == -1.0));
    let ranges = [
        0..1,
        0..end,
        128..256,
        4..8,
        5..5,
        128..131,
        1..1000,
        512..end + 7,
        3..4,
    ];
    let taken = take_parts(flat.clone(), &ranges);
    assert_eq!(taken.len(), ranges.len());
    for (range, part) in ranges.into_iter().zip(taken) {
        assert_eq!(part.dims(), [range.len()]);
        if !range.is_empty() {
            assert_eq!(numbers(part), expected[range]);
        }
    }
}
