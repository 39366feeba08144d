//! Settings of the devices from the environment, read once.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::LazyLock;

/// Values of the variables listed on the crate's page.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Bytes of each device.
    pub memory: u64,
    /// The devices that this process sees, by their numbers on the machine.
    pub devices: Vec<usize>,
    /// Compute capability, as in 90.
    pub arch: u32,
    pub driver: i32,
    pub name: String,
    pub log: bool,
    /// Kernels are not run.
    pub idle: bool,
    /// Like `idle`, but some blocks are run, and their counts written to this file.
    pub counts: Option<PathBuf>,
    pub dump: Option<PathBuf>,
    /// Races are detected.
    pub races: bool,
    /// Time that NCCL waits for ranks in seconds.
    pub nccl_seconds: u64,
}

impl Settings {
    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            memory: parsed(variable("SOFT_CUDA_MEMORY"), 16 << 30),
            devices: visible(
                parsed(variable("SOFT_CUDA_DEVICES"), 1),
                variable("CUDA_VISIBLE_DEVICES"),
            ),
            arch: parsed(variable("SOFT_CUDA_ARCH"), 90),
            driver: parsed(variable("SOFT_CUDA_DRIVER"), 13_000),
            name: variable("SOFT_CUDA_NAME").unwrap_or_else(|| "soft-cuda".to_owned()),
            log: variable("SOFT_CUDA_LOG").is_some(),
            idle: variable("SOFT_CUDA_IDLE").is_some() || variable("SOFT_CUDA_COUNTS").is_some(),
            counts: variable("SOFT_CUDA_COUNTS").map(PathBuf::from),
            races: variable("SOFT_CUDA_RACES").is_some(),
            dump: variable("SOFT_CUDA_DUMP").map(PathBuf::from),
            nccl_seconds: parsed(variable("SOFT_CUDA_NCCL_SECONDS"), 120),
        }
    }
}

/// Returns the listed ones of `count` devices, up to the first that does not exist, as in CUDA; all
/// of them without a list.
fn visible(count: usize, list: Option<String>) -> Vec<usize> {
    let Some(list) = list else {
        return (0..count).collect();
    };
    let numbers = list.split(',').map(|number| number.trim().parse().ok());
    let exists = |number: Option<usize>| number.filter(|number| *number < count);
    numbers.map_while(exists).collect()
}

fn parsed<T: FromStr>(text: Option<String>, default: T) -> T {
    text.and_then(|text| text.trim().parse().ok())
        .unwrap_or(default)
}

/// Returns the settings of this process.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
        if cfg!(test) {
            // Each test of the driver has its own device, because a device is unusable after a
            // failed kernel.
            Settings::read(|name| match name {
                "SOFT_CUDA_DEVICES" => Some("18".to_owned()),
                "SOFT_CUDA_MEMORY" => Some((64 << 20).to_string()),
                "SOFT_CUDA_NCCL_SECONDS" => Some("8".to_owned()),
                _ => None,
            })
        } else {
            Settings::read(|name| std::env::var(name).ok())
        }
    });
    &SETTINGS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_has_a_default() {
        let settings = Settings::read(|_| None);
        assert_eq!(
            (settings.memory, settings.devices, settings.arch),
            (16 << 30, vec![0], 90)
        );
        assert_eq!(
            (settings.driver, settings.name.as_str()),
            (13_000, "soft-cuda")
        );
        assert_eq!(settings.nccl_seconds, 120);
        assert!(!settings.log && !settings.idle && settings.dump.is_none());
    }

    #[test]
    fn the_environment_decides() {
        let settings = Settings::read(|name| match name {
            "SOFT_CUDA_MEMORY" => Some("4096".to_owned()),
            "SOFT_CUDA_DEVICES" => Some("many".to_owned()),
            "SOFT_CUDA_NAME" => Some("NVIDIA H200".to_owned()),
            _ => None,
        });
        assert_eq!((settings.memory, settings.devices), (4096, vec![0]));
        assert_eq!(settings.name, "NVIDIA H200");
    }

    #[test]
    fn a_process_sees_the_devices_that_are_listed_for_it() {
        let visible = |list: &str| visible(4, Some(list.to_owned()));
        assert_eq!(visible("3, 1"), [3, 1]);
        assert_eq!(visible("1,4,2"), [1]);
        assert_eq!(visible("-1"), []);
        assert_eq!(visible(""), []);
    }
}
