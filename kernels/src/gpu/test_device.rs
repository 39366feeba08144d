//! The device for tests of tensor-core kernels. They run only if `BURN_DIST_TEST_DEVICE` is `cuda`,
//! for example on CUDA in software (docs/internals/soft-cuda.md).

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::Device;

/// The device, if one is asked for; otherwise says why not. Tests take turns on several devices,
/// because the kernels of one device are compiled one after another.
pub(super) fn device(test: &str) -> Option<Device> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if std::env::var("BURN_DIST_TEST_DEVICE").is_ok_and(|name| name == "cuda") {
        if let Err(error) = kernel_cache::keep() {
            eprintln!("kernels are compiled again: {error}");
        }
        let devices = std::env::var("SOFT_CUDA_DEVICES").ok();
        let devices = devices.and_then(|count| count.parse().ok()).unwrap_or(1);
        return Some(Device::cuda(NEXT.fetch_add(1, Ordering::Relaxed) % devices));
    }
    eprintln!("SKIPPED: {test}: BURN_DIST_TEST_DEVICE is not cuda");
    None
}
