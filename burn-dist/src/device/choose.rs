//! Chooses a device, given functions that find them.

use super::{DeviceChoice, DeviceError};
use crate::backend::Availability;

/// The device that a rank takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    Cpu,
    Cuda(usize),
    Wgpu(usize),
    WgpuSoftware,
}

/// Chooses a device and gives the reason. A kind of device is looked for only if it matters.
///
/// Whether ranks share a device is not known here: a launcher may show each rank a different device
/// as its first.
pub(super) fn choose(
    wanted: DeviceChoice,
    cuda: impl Fn() -> Availability,
    wgpu: impl Fn() -> Availability,
    local_rank: usize,
) -> Result<(Pick, String), DeviceError> {
    let take = |name: &str, count: usize| {
        let index = local_rank % count.max(1);
        let words = format!("{name} device {index} of {count}");
        (index, words)
    };
    let asked = "as requested";
    let not_taken = |name: &str, found: &Availability| format!("{name}: {}", words_of(found));
    match wanted {
        DeviceChoice::Cpu => Ok((Pick::Cpu, asked.to_owned())),
        DeviceChoice::Cuda => match cuda() {
            Availability::Gpus(count) if count > 0 => {
                let (index, words) = take("CUDA", count);
                Ok((Pick::Cuda(index), format!("{words}, {asked}")))
            }
            other => Err(refuse(wanted, other)),
        },
        DeviceChoice::Wgpu => match wgpu() {
            Availability::Gpus(count) if count > 0 => {
                let (index, words) = take("wgpu", count);
                Ok((Pick::Wgpu(index), format!("{words}, {asked}")))
            }
            Availability::Software => Ok((
                Pick::WgpuSoftware,
                format!("wgpu in software, {asked}; wgpu finds no GPU on this machine"),
            )),
            other => Err(refuse(wanted, other)),
        },
        DeviceChoice::Auto => {
            let cuda = cuda();
            if let Availability::Gpus(count @ 1..) = cuda {
                let (index, words) = take("CUDA", count);
                return Ok((Pick::Cuda(index), words));
            }
            let wgpu = wgpu();
            if let Availability::Gpus(count @ 1..) = wgpu {
                let (index, words) = take("wgpu", count);
                let reason = format!("{words}; {}", not_taken("cuda", &cuda));
                return Ok((Pick::Wgpu(index), reason));
            }
            let [cuda, wgpu] = [not_taken("cuda", &cuda), not_taken("wgpu", &wgpu)];
            Ok((Pick::Cpu, format!("no GPU; {cuda}; {wgpu}")))
        }
    }
}

fn refuse(wanted: DeviceChoice, found: Availability) -> DeviceError {
    match found {
        Availability::NotBuilt => DeviceError::NotBuilt { wanted },
        other => DeviceError::None {
            wanted,
            reason: words_of(&other),
        },
    }
}

/// The reason why no device of a kind was taken.
pub(super) fn words_of(found: &Availability) -> String {
    match found {
        Availability::NotBuilt => "not built in".to_owned(),
        Availability::Nothing(reason) => reason.clone(),
        Availability::Software => "only software".to_owned(),
        Availability::Gpus(count) => format!("{count} devices"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Availability {
        Availability::Nothing("no driver".to_owned())
    }

    #[test]
    fn the_best_there_is_comes_first() {
        let pick = |cuda: Availability, wgpu: Availability| {
            choose(DeviceChoice::Auto, || cuda.clone(), || wgpu.clone(), 0).unwrap()
        };
        assert_eq!(
            pick(Availability::Gpus(1), Availability::Gpus(1)).0,
            Pick::Cuda(0)
        );
        assert_eq!(pick(none(), Availability::Gpus(1)).0, Pick::Wgpu(0));
        let (picked, reason) = pick(none(), Availability::Software);
        assert_eq!(picked, Pick::Cpu);
        assert_eq!(reason, "no GPU; cuda: no driver; wgpu: only software");
        assert_eq!(
            pick(Availability::NotBuilt, Availability::NotBuilt).0,
            Pick::Cpu
        );
        assert_eq!(pick(Availability::Gpus(0), none()).0, Pick::Cpu);
    }

    #[test]
    fn ranks_take_one_device_after_the_other() {
        let pick = |rank, count| {
            let gpus = || Availability::Gpus(count);
            choose(DeviceChoice::Cuda, gpus, none, rank).unwrap()
        };
        assert_eq!(pick(3, 4).0, Pick::Cuda(3));
        let (picked, reason) = pick(3, 2);
        assert_eq!(picked, Pick::Cuda(1));
        assert!(reason.starts_with("CUDA device 1 of 2"), "{reason}");
        assert_eq!(pick(3, 1).0, Pick::Cuda(0));
    }

    #[test]
    fn what_is_asked_for_and_missing_is_an_error_that_says_what() {
        let ask = |wanted, found: Availability| {
            choose(wanted, || found.clone(), || found.clone(), 0).unwrap_err()
        };
        let error = ask(DeviceChoice::Cuda, Availability::NotBuilt).to_string();
        assert!(error.contains("--features cuda"), "{error}");
        let error = ask(DeviceChoice::Wgpu, none()).to_string();
        assert!(
            error.contains("no wgpu device on this machine: no driver"),
            "{error}"
        );
        let software = || Availability::Software;
        let (pick, reason) = choose(DeviceChoice::Wgpu, none, software, 0).unwrap();
        assert_eq!(pick, Pick::WgpuSoftware);
        assert!(reason.contains("in software"), "{reason}");
    }
}
