//! Memory use of a rank.

use std::path::Path;

use burn::tensor::Device;
use burn_dist::device::reserved;

/// Resident memory of this process in MiB. `None` if the system does not tell.
pub fn resident_mib() -> Option<f64> {
    Some(resident_bytes()? as f64 / f64::from(1 << 20))
}

/// Memory in MiB that this process has allocated from the driver of `device`. `None` on the CPU.
pub(crate) fn device_mib(device: &Device) -> Option<f64> {
    Some(reserved(device)? as f64 / f64::from(1 << 20))
}

/// Resident memory of this process in bytes, as [`resident_mib`].
pub(crate) fn resident_bytes() -> Option<u64> {
    status("VmRSS:")
}

/// Peak resident bytes since the process began, or since [`reset_peak`].
pub(crate) fn peak_bytes() -> Option<u64> {
    status("VmHWM:")
}

/// Resets the peak. False if the system cannot.
pub(crate) fn reset_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

fn status(name: &str) -> Option<u64> {
    bytes_in(Path::new("/proc/self/status"), name)
}

/// The bytes that a file of the kernel gives in KiB after `name`.
pub(super) fn bytes_in(file: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_shows() {
        let before = resident_mib().unwrap();
        let taken = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = resident_mib().unwrap();
        assert!(after - before > 60.0, "{before} {after}");
        drop(taken);
    }
}
