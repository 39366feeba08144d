//! Why a rank has no device.

use super::DeviceChoice;

/// Why a device that was asked for cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The program lacks the code.
    #[error(
        "this program is built without {wanted}: build it with `--features {wanted}`, or ask for the \
         device auto or cpu"
    )]
    NotBuilt {
        /// What was asked for.
        wanted: DeviceChoice,
    },
    /// The machine lacks the device, or what drives it.
    #[error(
        "there is no {wanted} device here: {reason}; ask for the device auto or cpu to go without"
    )]
    None {
        /// What was asked for.
        wanted: DeviceChoice,
        /// What was looked for and not found.
        reason: String,
    },
}
