//! This machine, for the record of a run: host, CPU, memory and GPU driver.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::memory::bytes_in;

/// A machine and the devices that ranks use on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostRecord {
    /// Host name.
    pub host: String,
    /// Operating system and version of its kernel.
    pub system: String,
    /// Name of the CPU, or its architecture if the system tells no name.
    pub cpu: String,
    /// CPUs that the process may use.
    pub cpus: usize,
    /// Memory of the host in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Version of the GPU driver, if one is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Device of each rank, in the order of the ranks.
    pub devices: Vec<String>,
}

impl HostRecord {
    /// This machine, with the device of this rank.
    pub(crate) fn here(device: &str) -> Self {
        let names = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        let cpus = std::thread::available_parallelism();
        let memory = bytes_in(Path::new("/proc/meminfo"), "MemTotal:");
        Self {
            host: text(names.nodename()),
            system: format!("{} {}", text(names.sysname()), text(names.release())),
            cpu: cpu(Path::new("/proc/cpuinfo")).unwrap_or_else(|| text(names.machine())),
            cpus: cpus.map_or(0, usize::from),
            memory_mib: memory.map(|bytes| bytes >> 20),
            driver: driver(Path::new("/sys/module")),
            devices: vec![device.to_owned()],
        }
    }

    /// One entry for each host, with the devices of all its ranks.
    pub(crate) fn merged(ranks: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut machines: Vec<Self> = Vec::new();
        for rank in ranks {
            match machines.iter_mut().find(|known| known.host == rank.host) {
                Some(known) => known.devices.extend(rank.devices),
                None => machines.push(rank),
            }
        }
        machines
    }
}

/// The name of the CPU. Some architectures have none.
fn cpu(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    let (_, name) = line.split_once(':')?;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Name and version of the GPU driver in the kernel.
fn driver(modules: &Path) -> Option<String> {
    ["nvidia", "amdgpu"].into_iter().find_map(|name| {
        let version = std::fs::read_to_string(modules.join(name).join("version"));
        Some(format!("{name} {}", version.ok()?.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_host_share_an_entry() {
        let rank = |host: &str, device: &str| HostRecord {
            host: host.to_owned(),
            devices: vec![device.to_owned()],
            ..HostRecord::default()
        };
        let ranks = [rank("a", "0"), rank("b", "1"), rank("a", "2")];
        let machines = HostRecord::merged(ranks);
        let told: Vec<_> = machines
            .iter()
            .map(|m| (&*m.host, m.devices.join(" ")))
            .collect();
        assert_eq!(told, [("a", "0 2".to_owned()), ("b", "1".to_owned())]);
    }

    #[test]
    fn names_are_those_that_the_kernel_tells() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cpuinfo");
        std::fs::write(&file, "processor\t: 0\nmodel name\t: A  CPU @ 2 GHz\n").unwrap();
        assert_eq!(cpu(&file).as_deref(), Some("A CPU @ 2 GHz"));
        assert_eq!(driver(folder.path()), None);
        std::fs::create_dir(folder.path().join("nvidia")).unwrap();
        std::fs::write(folder.path().join("nvidia/version"), "550.1\n").unwrap();
        assert_eq!(driver(folder.path()).as_deref(), Some("nvidia 550.1"));
        let here = HostRecord::here("CPU");
        assert!(!here.cpu.is_empty() && here.cpus > 0 && here.memory_mib > Some(0));
    }
}
