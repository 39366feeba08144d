//! Sums of squares, from which norms are computed, of one tensor and of many in one kernel.

use burn::tensor::Tensor;
use kernels::gpu::sums_of_squares;

use crate::check::{device, numbers};

#[test]
fn gpu_sums_of_squares_are_those_of_the_definition_wherever_the_numbers_lie() {
    let Some(device) = device("norms on a GPU") else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(3);
    let values: Vec<f32> = (0..200_003).map(|_| random.f32() - 0.5).collect();
    let all = Tensor::<1>::from_floats(values.as_slice(), &device);
    for (place, parts) in [
        (1..2, 1),
        (0..257, 1),
        (3..65_539, 1),
        (0..65_537, 2),
        (1..200_002, 4),
    ] {
        let found = numbers(sums_of_squares([all.clone().slice(place.clone())]).unwrap());
        assert_eq!(found.len(), parts);
        let expected: f64 = values[place.clone()]
            .iter()
            .map(|v| f64::from(*v).powi(2))
            .sum();
        let sum: f64 = found.iter().sum();
        assert!(
            (sum / expected - 1.0).abs() < 1e-5,
            "{place:?}: {sum} is not {expected}"
        );
        let alone = Tensor::<1>::from_floats(&values[place.clone()], &device);
        assert_eq!(
            numbers(sums_of_squares([alone]).unwrap()),
            found,
            "{place:?}"
        );
    }
    // More tensors than a kernel takes, some of them empty.
    let lengths = [0, 1, 65_536, 70_000, 3, 257];
    let tensors = || (0..30).map(|i| all.clone().slice(i..i + lengths[i % lengths.len()]));
    let found = numbers(sums_of_squares(tensors()).unwrap());
    let alone = tensors().flat_map(|tensor| sums_of_squares([tensor]).map(numbers));
    assert_eq!(found, alone.flatten().collect::<Vec<f64>>());
    assert!(sums_of_squares([]).is_none());
}
