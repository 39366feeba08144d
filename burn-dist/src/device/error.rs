//! The error of a missing device.

use super::DeviceChoice;

/// The reason why a requested device is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The build lacks the backend.
    #[error(
        "this program is built without {wanted}: build it with `--features {wanted}`, or ask for the \
         device auto or cpu"
    )]
    NotBuilt {
        /// The requested device.
        wanted: DeviceChoice,
    },
    /// The machine lacks the device or its driver.
    #[error(
        "there is no {wanted} device here: {reason}; ask for the device auto or cpu to go without"
    )]
    None {
        /// The requested device.
        wanted: DeviceChoice,
        /// The missing part.
        reason: String,
    },
}
