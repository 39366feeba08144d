//! Peak compute rates of known devices, for the utilization of a run.
//!
//! All rates are for dense matrices. Data sheets often quote sparse rates, which are twice as high.

use burn_dist::parallel::Precision;

/// A device and its peak rates.
struct Device {
    /// Lower-case words that the device's name must all contain.
    words: &'static [&'static str],
    /// f32 without tensor cores, in TFLOP/s.
    f32: f64,
    /// bf16 and f16 with f32 accumulation, in TFLOP/s.
    half: f64,
}

const fn device(words: &'static [&'static str], f32: f64, half: f64) -> Device {
    Device { words, f32, half }
}

/// The first match counts.
///
/// Sources: NVIDIA's data sheets of A100 (2021), H100 (2023), H200 (2024), GH200 (2023) and L40S
/// (2023), and the white paper of the Ada architecture (2022), table of the GeForce RTX 4090, f16
/// with f32 accumulation.
const DEVICES: &[Device] = &[
    device(&["gh200"], 67.0, 990.0),
    device(&["h200", "nvl"], 60.0, 835.5),
    device(&["h200"], 67.0, 989.5),
    device(&["h100", "nvl"], 60.0, 835.5),
    device(&["h100", "pcie"], 51.0, 756.5),
    // The driver calls it `H100 80GB HBM3`.
    device(&["h100"], 67.0, 989.5),
    device(&["a100"], 19.5, 312.0),
    device(&["l40s"], 91.6, 362.05),
    device(&["rtx", "4090"], 82.6, 165.2),
];

/// Words of devices that share a name with those above but not their rates.
const OTHERS: &[&str] = &["laptop", "mig", "d", "max"];

/// Returns the peak rate of a device in 10¹² floating-point operations per second.
///
/// `name` is the driver's name for the device. Returns `None` if the rate is unknown.
pub fn peak_tflops(name: &str, precision: Precision) -> Option<f64> {
    let name = name.to_lowercase();
    let words: Vec<&str> = name
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    if OTHERS.iter().any(|other| words.contains(other)) {
        return None;
    }
    let fits = |device: &&Device| device.words.iter().all(|word| words.contains(word));
    let device = DEVICES.iter().find(fits)?;
    Some(match precision {
        Precision::F32 => device.f32,
        Precision::Bf16 | Precision::F16 => device.half,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_what_drivers_call_them() {
        let half = |name| peak_tflops(name, Precision::Bf16);
        assert_eq!(half("NVIDIA A100-SXM4-80GB"), Some(312.0));
        assert_eq!(half("NVIDIA H100 80GB HBM3"), Some(989.5));
        assert_eq!(half("NVIDIA H100 PCIe"), Some(756.5));
        assert_eq!(half("NVIDIA H200"), Some(989.5));
        assert_eq!(half("NVIDIA GH200 480GB"), Some(990.0));
        assert_eq!(half("NVIDIA L40S"), Some(362.05));
        assert_eq!(half("NVIDIA GeForce RTX 4090"), Some(165.2));
        let single = |name| peak_tflops(name, Precision::F32);
        assert_eq!(single("NVIDIA A100-PCIE-40GB"), Some(19.5));
    }

    #[test]
    fn relatives_and_strangers_are_not_taken_for_them() {
        for name in [
            "cpu (flex)",
            "",
            "NVIDIA A10",
            "NVIDIA L40",
            "NVIDIA GeForce RTX 4090 D",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "NVIDIA A1000",
        ] {
            assert_eq!(peak_tflops(name, Precision::F16), None, "{name}");
        }
    }
}
