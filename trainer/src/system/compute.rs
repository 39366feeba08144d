//! What the layers of a model compute with: `train.kernels`.

use burn::tensor::Device;
use burn_dist::parallel::Precision;
use kernels::KernelError;
use kernels::policy::{choose, describe};

use crate::config::Config;

/// Makes the models of this process compute with what `config` says.
///
/// # Errors
/// When the instruction set that the environment names is not there.
pub fn choose_kernels(config: &Config, device: &Device) -> Result<(), KernelError> {
    choose(config.train.kernels);
    describe(device).map(|_| ())
}

/// In words what a model computes with on `device`.
pub fn kernels_name(config: &Config, device: &Device) -> String {
    let on_host = device.clone().inner() == Device::flex();
    match config.train.precision {
        Precision::F16 if on_host => "burn".to_owned(),
        _ => describe(device).unwrap_or_else(|error| error.to_string()),
    }
}
