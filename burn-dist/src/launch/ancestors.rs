//! The ancestor processes of this one, from `/proc`, to find the launcher.
//!
//! Variables alone are not enough: a shell keeps those of a launcher that ended long ago, and a
//! script exports them by hand.

use std::fs;

use rustix::process::{Pid, getppid};

/// Largest number of ancestors to look at, in case `/proc` is odd.
const MOST: usize = 64;

/// Programs that start ranks of MPI or Slurm, by the beginning of their names.
const LAUNCHERS: [&str; 16] = [
    "slurmstepd",
    "srun",
    "mpirun",
    "mpiexec",
    "orterun",
    "orted",
    "prterun",
    "prte",
    "hydra_",
    "pmi_proxy",
    "palsd",
    "palscmd",
    "apinit",
    "aprun",
    "flux-shell",
    "jsm",
];

/// Programs that pass on whatever their user has exported, and may end after starting something.
const SHELLS: [&str; 20] = [
    "sh",
    "bash",
    "dash",
    "ash",
    "ksh",
    "mksh",
    "zsh",
    "fish",
    "csh",
    "tcsh",
    "busybox",
    "env",
    "sudo",
    "su",
    "login",
    "sshd",
    "sshd-session",
    "tmux: server",
    "screen",
    "systemd",
];

/// An ancestor of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ancestor {
    pub pid: Pid,
    /// The beginning of its program's name.
    pub name: String,
}

impl Ancestor {
    /// Whether it starts ranks of MPI or Slurm.
    pub fn starts_ranks(&self) -> bool {
        LAUNCHERS
            .iter()
            .any(|launcher| self.name.starts_with(launcher))
    }

    /// Whether it belongs to Slurm, which starts batch scripts and shells as well as ranks.
    pub fn is_of_slurm(&self) -> bool {
        self.name.starts_with("slurmstepd")
    }

    /// Whether it is a shell, or another program that a process may outlive on purpose.
    pub fn is_shell(&self) -> bool {
        // The name of a login shell begins with a dash.
        let name = self.name.trim_start_matches('-');
        SHELLS.contains(&name) || self.pid == Pid::INIT
    }

    /// Whether it was itself started with this variable. False if its variables are hidden: they
    /// belong to another user, as those of Slurm's daemons do.
    fn has(&self, variable: &str) -> bool {
        let file = format!("/proc/{}/environ", self.pid.as_raw_nonzero());
        let environment = fs::read(file).unwrap_or_default();
        let mut entries = environment.split(|byte| *byte == 0);
        entries.any(|entry| {
            let rest = entry.strip_prefix(variable.as_bytes());
            rest.is_some_and(|rest| rest.first() == Some(&b'='))
        })
    }
}

/// The ancestors of this process, its parent first. Empty if `/proc` does not show them.
pub(super) fn all() -> impl Iterator<Item = Ancestor> {
    let parent = getppid().and_then(look_at);
    let next = |(_, parent): &(Ancestor, i32)| Pid::from_raw(*parent).and_then(look_at);
    std::iter::successors(parent, next)
        .map(|(ancestor, _)| ancestor)
        .take(MOST)
}

/// The ancestors from the parent to the one that set `variable`, which comes last: the launcher,
/// after programs between it and this process.
pub(super) fn up_to_who_set(variable: &str) -> Vec<Ancestor> {
    let mut found = Vec::new();
    for ancestor in all() {
        let is_last = !ancestor.has(variable);
        found.push(ancestor);
        if is_last {
            break;
        }
    }
    found
}

/// A process and its parent's id.
fn look_at(pid: Pid) -> Option<(Ancestor, i32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (name, parent) = read_stat(&stat)?;
    let name = name.to_owned();
    Some((Ancestor { pid, name }, parent))
}

/// Name and parent in a line such as `7 (tmux: server) S 1 …`; the name may contain parentheses.
fn read_stat(stat: &str) -> Option<(&str, i32)> {
    let (front, rest) = stat.rsplit_once(')')?;
    let (_, name) = front.split_once('(')?;
    let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
    Some((name, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_anything_in_them() {
        assert_eq!(read_stat("7 (a) b (c) S 3 7 7 0"), Some(("a) b (c", 3)));
        assert_eq!(
            read_stat("7 (tmux: server) S 1 7"),
            Some(("tmux: server", 1))
        );
        for wrong in ["", "7", "7 (a", "7 (a)", "7 (a) S", "7 (a) S x"] {
            assert_eq!(read_stat(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn launchers_and_shells_are_told_apart() {
        let named = |name: &str| Ancestor {
            pid: Pid::from_raw(7).unwrap(),
            name: name.to_owned(),
        };
        for name in ["mpirun.openmpi", "hydra_pmi_proxy", "slurmstepd", "orted"] {
            assert!(named(name).starts_ranks() && !named(name).is_shell());
        }
        for name in ["bash", "-bash", "tmux: server"] {
            assert!(!named(name).starts_ranks() && named(name).is_shell());
        }
        assert!(!named("python3").starts_ranks() && !named("python3").is_shell());
    }

    #[test]
    fn the_parent_comes_first() {
        let parent = all().next().unwrap();
        assert_eq!(Some(parent.pid), getppid());
        // No ancestor has the variable, so the parent must have set it.
        assert_eq!(up_to_who_set("BURN_DIST_TEST_OF_NOBODY"), [parent]);
    }
}
