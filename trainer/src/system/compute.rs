//! Selects the implementation of a model's layers: `train.kernels`.

use burn::tensor::Device;
use burn_dist::parallel::Precision;
use kernels::KernelError;
use kernels::policy::{choose, describe};

use crate::config::Config;

/// Sets the layers' implementation for this process.
///
/// # Errors
/// Fails if the environment names an instruction set that the CPU lacks.
pub fn choose_kernels(config: &Config, device: &Device) -> Result<(), KernelError> {
    choose(config.train.kernels);
    describe(device).map(|_| ())
}

/// Name of the layers' implementation on `device`.
pub fn kernels_name(config: &Config, device: &Device) -> String {
    let on_host = device.clone().inner() == Device::flex();
    match config.train.precision {
        Precision::F16 if on_host => "burn".to_owned(),
        _ => describe(device).unwrap_or_else(|error| error.to_string()),
    }
}
