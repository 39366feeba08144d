//! The processes that this one descends from, as `/proc` shows them: which of them is the launcher.
//!
//! Variables alone do not tell. A shell keeps those of a launcher that has long ended, and a script
//! exports them by hand.

use std::fs;

use rustix::process::{Pid, getppid};

/// Most processes that are looked at: a limit on what a strange `/proc` can make us do.
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

/// Programs that hand on whatever their user has exported, and may end when they have started
/// something.
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

/// A process that this one descends from.
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

    /// Whether it is Slurm's, which starts batch scripts and shells as well as ranks.
    pub fn is_of_slurm(&self) -> bool {
        self.name.starts_with("slurmstepd")
    }

    /// Whether it is a shell, or something else of which a process may be meant to be independent.
    pub fn is_shell(&self) -> bool {
        // Of a login shell the name begins with a dash.
        let name = self.name.trim_start_matches('-');
        SHELLS.contains(&name) || self.pid == Pid::INIT
    }

    /// Whether it was itself started with this variable. One whose variables are hidden was not: it
    /// is another user's, as Slurm's daemons are.
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

/// The processes that this one descends from, its parent first. None where `/proc` does not show
/// them.
pub(super) fn all() -> impl Iterator<Item = Ancestor> {
    let parent = getppid().and_then(look_at);
    let next = |(_, parent): &(Ancestor, i32)| Pid::from_raw(*parent).and_then(look_at);
    std::iter::successors(parent, next)
        .map(|(ancestor, _)| ancestor)
        .take(MOST)
}

/// Those from the parent to the one that has set `variable`, which comes last: the launcher, and
/// programs between it and this process.
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

/// A process and the number of its parent.
fn look_at(pid: Pid) -> Option<(Ancestor, i32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (name, parent) = read_stat(&stat)?;
    let name = name.to_owned();
    Some((Ancestor { pid, name }, parent))
}

/// Name and parent in a line such as `7 (tmux: server) S 1 …`; the name may have parentheses in it.
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
        // Nobody above this process has it, so that its parent would have set it.
        assert_eq!(up_to_who_set("BURN_DIST_TEST_OF_NOBODY"), [parent]);
    }
}
