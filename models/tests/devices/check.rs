//! The device for tests of operations, and the comparison of results.

use burn::tensor::{Device, Tensor};
use burn_dist::device::DeviceChoice;
use burn_dist::world::World;

/// Returns the requested device.
pub(crate) fn asked() -> Option<String> {
    std::env::var("BURN_DIST_TEST_DEVICE").ok()
}

/// Returns the device, if available; prints a message if not.
pub(crate) fn device(test: &str) -> Option<Device> {
    let asked = asked();
    let choice = asked
        .as_deref()
        .map_or(DeviceChoice::Wgpu, |name| name.parse().unwrap());
    match World::single().choose_device(choice) {
        Ok(chosen) => Some(chosen.device),
        Err(error) if asked.is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("SKIPPED: {test}: {error}");
            None
        }
    }
}

/// Compares relative to the largest expected value.
pub(crate) fn close(what: &str, expected: &[f64], computed: &[f64], tolerance: f64) {
    assert_eq!(expected.len(), computed.len(), "{what}");
    let largest = expected.iter().fold(1e-6f64, |most, v| most.max(v.abs()));
    for (place, (expected, computed)) in expected.iter().zip(computed).enumerate() {
        let error = (expected - computed).abs() / largest;
        // Also fails for NaN.
        assert!(
            !(error > tolerance || error.is_nan()),
            "{what}, {place}: {computed}, not {expected}"
        );
    }
}

pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    let data = tensor.into_data().convert::<f64>();
    data.iter::<f64>().collect()
}
