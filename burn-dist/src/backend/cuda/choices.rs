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

/// Machines with other GPUs may share the folder. Another driver may translate kernels differently,
/// and another version of this library may have other kernels.
fn key(device: usize, computation: &str) -> Option<String> {
    let model = driver::model(device)?;
    let version = env!("CARGO_PKG_VERSION");
    Some(format!(
        "fastest tile of {version} on {model}: {computation}"
    ))
}

#[cfg(test)]
mod tests {
    use kernels::gpu::Choices;

    use super::*;

    #[test]
    fn tiles_of_a_gpu_are_kept() {
        if !std::env::var("BURN_DIST_TEST_DEVICE").is_ok_and(|name| name == "cuda") {
            eprintln!("SKIPPED: tiles_of_a_gpu_are_kept: BURN_DIST_TEST_DEVICE is not cuda");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let kept = || Kept(Notes::of(folder.path().to_owned()));
        assert_eq!(kept().read(0, "one"), None);
        kept().write(0, "one", 2);
        assert_eq!(kept().read(0, "one"), Some(2));
        assert_eq!(kept().read(0, "other"), None);
        assert_eq!(kept().read(99, "one"), None, "there is no such device");
    }
}
