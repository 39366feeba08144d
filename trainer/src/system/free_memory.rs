//! Available memory: the host's free memory or the cgroup limit, whichever is lower.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::memory::bytes_in;

/// Available memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    pub bytes: u64,
    /// Whether a cgroup limit, not the host, decides.
    pub limited: bool,
}

/// Memory available to this process and its siblings, if the system tells.
pub(crate) fn free() -> Option<Free> {
    free_at(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

/// Like [`free`], with other folders.
fn free_at(proc: &Path, cgroups: &Path) -> Option<Free> {
    let host = bytes_in(&proc.join("meminfo"), "MemAvailable:");
    match left_in_groups(proc, cgroups) {
        Some(left) if host.is_none_or(|host| left < host) => Some(Free {
            bytes: left,
            limited: true,
        }),
        _ => host.map(|bytes| Free {
            bytes,
            limited: false,
        }),
    }
}

/// File names of a cgroup version.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// Key in `memory.stat`: bytes of cached files, which count as used but can be freed.
    cached: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: "total_inactive_file",
};

const V2: Files = Files {
    limit: "memory.max",
    used: "memory.current",
    cached: "inactive_file",
};

/// The least memory left in any cgroup of this process.
fn left_in_groups(proc: &Path, cgroups: &Path) -> Option<u64> {
    let text = fs::read_to_string(proc.join("self/cgroup")).ok()?;
    let left = text.lines().filter_map(|line| {
        // NUMBER:CONTROLLERS:PATH, without controllers for version 2.
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        let (root, files) = match controllers {
            "" => (cgroups.to_owned(), &V2),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (cgroups.join("memory"), &V1)
            }
            _ => return None,
        };
        // In a container the path may be the host's. Only its root exists here, and parts outside
        // it do not.
        let path = Path::new(path).components();
        let path: PathBuf = path
            .filter(|part| matches!(part, Component::Normal(_)))
            .collect();
        let groups = path.ancestors();
        groups
            .filter_map(|group| files.left(&root.join(group)))
            .min()
    });
    left.min()
}

impl Files {
    /// Memory that a group with a limit has left.
    fn left(&self, group: &Path) -> Option<u64> {
        let number = |name: &str| -> Option<u64> {
            let text = fs::read_to_string(group.join(name)).ok()?;
            text.trim().parse().ok()
        };
        // "max" stands for no limit.
        let limit = number(self.limit)?;
        let used = number(self.used).unwrap_or(0);
        let cached = self.cached(group).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    }

    fn cached(&self, group: &Path) -> Option<u64> {
        let text = fs::read_to_string(group.join("memory.stat")).ok()?;
        let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
        let (_, bytes) = pairs.find(|(name, _)| *name == self.cached)?;
        bytes.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Memory left on a system with these files.
    fn left(files: &[(&str, &str)]) -> Option<Free> {
        let folder = TempDir::new().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        free_at(&folder.path().join("proc"), &folder.path().join("groups"))
    }

    fn host(bytes: u64) -> Option<Free> {
        let limited = false;
        Some(Free { bytes, limited })
    }

    fn limited(bytes: u64) -> Option<Free> {
        let limited = true;
        Some(Free { bytes, limited })
    }

    const MEMORY: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:       9000 kB\nMemFree:        10 kB\nMemAvailable:   1000 kB\n",
    );

    #[test]
    fn without_limits_the_host_counts() {
        assert_eq!(left(&[]), None);
        assert_eq!(left(&[("proc/meminfo", "MemAvailable: many kB\n")]), None);
        assert_eq!(left(&[MEMORY]), host(1_024_000));
        let group = ("proc/self/cgroup", "0::/user.slice/a.scope\n");
        assert_eq!(left(&[MEMORY, group]), host(1_024_000));
        let none = ("groups/user.slice/memory.max", "max\n");
        assert_eq!(left(&[MEMORY, group, none]), host(1_024_000));
        let more = ("groups/user.slice/memory.max", "999999999\n");
        assert_eq!(left(&[MEMORY, group, more]), host(1_024_000));
    }

    #[test]
    fn the_tightest_group_counts_in_version_2() {
        let job = [
            MEMORY,
            ("proc/self/cgroup", "0::/slurm/job_7/step_0\n"),
            ("groups/slurm/memory.max", "max\n"),
            ("groups/slurm/job_7/memory.max", "600000\n"),
            ("groups/slurm/job_7/memory.current", "400000\n"),
            (
                "groups/slurm/job_7/memory.stat",
                "anon 150000\nfile 250000\ninactive_file 250000\n",
            ),
            ("groups/slurm/job_7/step_0/memory.max", "500000\n"),
            ("groups/slurm/job_7/step_0/memory.current", "20000\n"),
        ];
        assert_eq!(left(&job), limited(450_000));
        let full = ("groups/slurm/job_7/step_0/memory.current", "500001\n");
        assert_eq!(left(&[&job[..], &[full]].concat()), limited(0));
        assert_eq!(left(&job[1..]), limited(450_000));
    }

    /// The container's cgroup is the visible root, or its path is the host's.
    #[test]
    fn a_container_has_its_limit_at_the_root() {
        for path in ["0::/\n", "0::/docker/0123abcd\n", "0::/../../other\n"] {
            let files = [
                MEMORY,
                ("proc/self/cgroup", path),
                ("groups/memory.max", "300000\n"),
                ("groups/memory.current", "100000\n"),
            ];
            assert_eq!(left(&files), limited(200_000), "{path}");
        }
    }

    #[test]
    fn version_1_has_a_tree_for_memory_alone() {
        let files = [
            MEMORY,
            (
                "proc/self/cgroup",
                "9:cpu,cpuacct:/slurm\n4:hugetlb,memory:/slurm/uid_0/job_7\n0::/init.scope\n",
            ),
            (
                "groups/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            (
                "groups/memory/slurm/uid_0/job_7/memory.limit_in_bytes",
                "500000\n",
            ),
            (
                "groups/memory/slurm/uid_0/job_7/memory.usage_in_bytes",
                "300000\n",
            ),
            (
                "groups/memory/slurm/uid_0/job_7/memory.stat",
                "inactive_file 7\ntotal_inactive_file 50000\n",
            ),
        ];
        assert_eq!(left(&files), limited(250_000));
        assert_eq!(left(&files[..3]), host(1_024_000));
    }

    #[test]
    fn this_system_says_something() {
        assert!(free().is_some_and(|free| free.bytes > 0));
    }
}
