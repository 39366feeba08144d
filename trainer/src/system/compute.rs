//! Selects the implementation of a model's layers: `train.kernels`.

use burn::tensor::Device;
use burn_dist::parallel::Precision;
use kernels::KernelError;
use kernels::cpu::flex::shared;
use kernels::cpu::{Bf16Path, Kernels};
use kernels::policy::{Choice, choose, describe};

use crate::config::Config;
use crate::system::device;

/// Sets the layers' implementation for this process.
///
/// # Errors
/// Fails if the environment names an instruction set that the CPU lacks.
pub fn choose_kernels(config: &Config, device: &Device) -> Result<(), KernelError> {
    choose(config.train.kernels);
    describe(device).map(|_| ())
}

/// Checks the variables that choose CPU kernels, if the configuration has any.
///
/// # Errors
/// Fails if one names something that does not exist, or that this CPU lacks.
pub(crate) fn check_variables(config: &Config) -> Result<(), KernelError> {
    match config.train.kernels != Choice::Burn && device::is_on_host(config) {
        true => Kernels::new().map(drop),
        false => Ok(()),
    }
}

/// Name of the layers' implementation on `device`.
pub fn kernels_name(config: &Config, device: &Device) -> String {
    let on_host = device.clone().inner() == Device::flex();
    match config.train.precision {
        Precision::F16 if on_host => "burn".to_owned(),
        _ => {
            let name = describe(device).unwrap_or_else(|error| error.to_string());
            let path = bf16_path(config, device);
            match path {
                None => name,
                Some(Bf16Path::F32) => format!("{name}, bf16 by f32 (no faster than f32)"),
                Some(path) => format!("{name}, bf16 by {}", path.name()),
            }
        }
    }
}

/// The path of bf16 products, if the configuration has them on the CPU.
pub fn bf16_path(config: &Config, device: &Device) -> Option<Bf16Path> {
    bf16_kernels(config, device).map(Kernels::bf16_path)
}

/// The CPU kernels, if they compute products of bf16.
pub(crate) fn bf16_kernels(config: &Config, device: &Device) -> Option<&'static Kernels> {
    let wanted = config.train.precision == Precision::Bf16
        && config.train.kernels != Choice::Burn
        && device.clone().inner() == Device::flex();
    wanted.then(|| shared().ok()).flatten()
}
