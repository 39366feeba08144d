//! The error of a missing device.

use super::DeviceChoice;

/// The reason why a requested device is not available.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The build lacks the backend.
    #[error(
        "this program was built without {wanted}. Build it with `--features {}`, or choose the \
         device auto or cpu",
        match wanted {
            DeviceChoice::Cuda => "cuda-nvrtc",
            DeviceChoice::Wgpu => "wgpu",
            DeviceChoice::Auto | DeviceChoice::Cpu => wanted.name(),
        }
    )]
    NotBuilt {
        /// The requested device.
        wanted: DeviceChoice,
    },
    /// The machine lacks the device or its driver.
    #[error(
        "no {wanted} device on this machine: {reason}. Choose the device auto or cpu to run without"
    )]
    None {
        /// The requested device.
        wanted: DeviceChoice,
        /// The missing part.
        reason: String,
    },
}

crate::debug_is_display!(DeviceError);
