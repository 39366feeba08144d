//! Keeps the fastest tiles of each model of GPU beside the compiled kernels.

use std::path::PathBuf;

use kernel_cache::Notes;

use super::driver;

/// Keeps them in `folder` from now on.
pub(super) fn keep(folder: PathBuf) {
    kernels::gpu::keep_choices(Kept(Notes::of(folder)));
}

struct Kept(Notes);

impl kernels::gpu::Choices for Kept {
    fn read(&self, device: usize, computation: &str) -> Option<usize> {
        self.0.read(&key(device, computation)?)?.parse().ok()
    }

    fn write(&self, device: usize, computation: &str, tile: usize) {
        if let Some(key) = key(device, computation) {
            self.0.write(&key, &tile.to_string());
        }
    }
}

/// Machines with other GPUs may share the folder, and another driver may translate kernels
/// otherwise.
fn key(device: usize, computation: &str) -> Option<String> {
    let model = driver::model(device)?;
    Some(format!("fastest tile on {model}: {computation}"))
}
