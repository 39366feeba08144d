//! Choices between kernels that outlive the process.

use std::sync::OnceLock;

/// Keeps which of several tiles is the fastest for a computation on a device.
pub trait Choices: Send + Sync {
    /// The number of the fastest tile, if it is known. `device` is the index of the device,
    /// `computation` names the computation with all sizes that its time depends on, and the tiles.
    fn read(&self, device: usize, computation: &str) -> Option<usize>;

    /// Keeps the number of the fastest tile.
    fn write(&self, device: usize, computation: &str, tile: usize);
}

static KEPT: OnceLock<Box<dyn Choices>> = OnceLock::new();

/// Reads and writes choices here from now on. Only the first call has an effect.
pub fn keep_choices(choices: impl Choices + 'static) {
    let _ = KEPT.set(Box::new(choices));
}

/// The place for choices, if there is one.
pub(super) fn kept() -> Option<&'static dyn Choices> {
    KEPT.get().map(|choices| &**choices)
}
