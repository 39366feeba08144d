//! Decides which variables count if several launchers have set some.
//!
//! The nearest launcher wins: `mpirun` inside a Slurm job, `torchrun` under `srun`. If two
//! contradict each other and no nesting explains it, the launch fails. Otherwise every process
//! might train alone as rank 0 of 1.

use super::ancestors::Ancestor;
use super::variables::LAUNCH;
use super::{Vars, WorldError};
use super::{ancestors, mpi, slurm, torchrun};
use crate::backend::mpi::BUILT;
use crate::world::{Launch, World};

/// The world that the variables describe.
pub(super) fn decide(vars: Vars) -> Result<World, WorldError> {
    match vars(LAUNCH).as_deref() {
        None | Some("") => found(vars),
        Some("single") => Ok(alone(format!("{LAUNCH}=single"))),
        Some("local") => torchrun::world(vars, Launch::Local),
        Some("agent") => torchrun::world(vars, Launch::Agent),
        Some("torchrun") => torchrun::world(vars, Launch::Torchrun),
        Some("slurm") => slurm::world(vars),
        Some("mpi") => match mpi::announced(vars)? {
            Some(announced) => announced.world(vars),
            None => of_unknown_size(&format!("{LAUNCH}=mpi"), format!("{LAUNCH}=mpi")),
        },
        Some(other) => Err(WorldError::UnknownLaunch {
            value: other.into(),
        }),
    }
}

/// The world of a process that is asked to start ranks itself. Variables of launchers that have
/// ended do not count.
///
/// RANK and WORLD_SIZE count if they are complete: scripts that set them for one process on each
/// node may have ended.
pub(super) fn decide_to_launch(vars: Vars) -> Result<World, WorldError> {
    let is_told = vars(LAUNCH).is_some_and(|launch| !launch.is_empty());
    let setter = |name: &str| ancestors::up_to_who_set(name).pop();
    let ancestors: Vec<Ancestor> = ancestors::all().collect();
    if is_told || is_started(vars, &ancestors, &setter) {
        return decide(vars);
    }
    let mut world = alone("--nproc starts ranks".to_owned());
    world.from_launcher.advice = passed_over(vars);
    Ok(world)
}

/// The ignored variables, set by a launcher that has ended or by hand, in words.
fn passed_over(vars: Vars) -> Option<String> {
    let only = vars(torchrun::WORLD_SIZE).is_some_and(|size| size.trim() == "1");
    let of_torchrun = torchrun::variables(vars).filter(|_| !only);
    let names: Vec<&str> = of_torchrun.chain(mpi::rank_variables(vars)).collect();
    match &*names {
        [] => None,
        [name] => Some(format!("--nproc starts ranks: {name} is ignored")),
        [names @ .., last] => Some(format!(
            "--nproc starts ranks: {} and {last} are ignored",
            names.join(", ")
        )),
    }
}

/// Whether the variables come from a launcher that started this process as one of several ranks.
/// `ancestors` are the ancestors of this process, and `setter` finds the one that set a variable.
fn is_started(
    vars: Vars,
    ancestors: &[Ancestor],
    setter: &dyn Fn(&str) -> Option<Ancestor>,
) -> bool {
    let is_only = vars(torchrun::WORLD_SIZE).is_some_and(|size| size.trim() == "1");
    // Only torchrun gives a run an id, and torchrun is not a shell.
    let is_left =
        || torchrun::is_parent(vars) && setter(torchrun::RUN_ID).is_none_or(|one| one.is_shell());
    if torchrun::are_complete(vars) && !is_only && !is_left() {
        return true;
    }
    let in_step = slurm::step_of_srun(vars).is_some();
    let of_step = in_step.then_some(slurm::STEP_ID);
    // A batch script is a descendant of Slurm's daemon too.
    let counts = |one: &Ancestor| one.starts_ranks() && (in_step || !one.is_of_slurm());
    of_step
        .into_iter()
        .chain(mpi::rank_variables(vars))
        .any(|name| {
            let by_hand = setter(name).is_some_and(|one| one.is_shell());
            !by_hand && ancestors.iter().any(counts)
        })
}

fn found(vars: Vars) -> Result<World, WorldError> {
    // torchrun says that it is the parent, whatever started it.
    if torchrun::is_parent(vars) {
        return torchrun::world(vars, Launch::Torchrun);
    }
    let step = slurm::Step::read(vars)?;
    if let Some(announced) = mpi::announced(vars)? {
        return by_mpi_launcher(vars, &announced, step.as_ref());
    }
    if let Some(dialect) = mpi::started_within_step(vars) {
        return of_unknown_size(dialect.launcher, format!("{} is set", dialect.rank));
    }
    if let Some(step) = step {
        agree_with_torchrun_variables(vars, step.rank, step.size)?;
        return match step.size {
            1 => Ok(alone(format!("{step} has one task"))),
            _ => step.world(vars),
        };
    }
    if torchrun::detected(vars) {
        return torchrun::world(vars, Launch::Torchrun);
    }
    if let Some(dialect) = mpi::started_without_size(vars) {
        return of_unknown_size(dialect.launcher, format!("{} is set", dialect.rank));
    }
    match slurm::outside_of_tasks(vars) {
        Some(slurm::Outside {
            job,
            tasks,
            starter,
        }) => {
            let mut world = alone(format!("{starter} of Slurm job {job} started it"));
            world.from_launcher.advice = Some(format!(
                "Slurm job {job} has {tasks} tasks, but this process is none of them and trains \
                 alone. Put srun before the command to use all tasks"
            ));
            Ok(world)
        }
        None => Ok(World::single()),
    }
}

/// The world of a launcher that does not tell the number of ranks; MPI itself will.
fn of_unknown_size(launcher: &str, reason: String) -> Result<World, WorldError> {
    match BUILT {
        true => Ok(World {
            launch: Launch::Mpi,
            ..alone(reason)
        }),
        false => Err(WorldError::UnknownSize {
            launcher: launcher.to_owned(),
        }),
    }
}

fn by_mpi_launcher(
    vars: Vars,
    announced: &mpi::Announced,
    step: Option<&slurm::Step>,
) -> Result<World, WorldError> {
    let mpi::Announced { rank, size, .. } = *announced;
    if rank >= size {
        return Err(WorldError::RankOutOfRange { rank, size });
    }
    if let Some(step) = step {
        if size == 1 && step.size > 1 {
            return Err(WorldError::Contradiction {
                one: format!("{} announces a world size of 1", announced.launcher),
                other: format!("{step} has {} tasks", step.size),
                advice:
                    "every task would train alone. Start the program with srun or with mpirun, not \
                     with one inside the other"
                        .into(),
            });
        }
        if (rank, size) == (step.rank, step.size) && !BUILT {
            return step.world(vars);
        }
    }
    agree_with_torchrun_variables(vars, rank, size)?;
    match size {
        1 => Ok(alone(format!("{} started one rank", announced.launcher))),
        _ => announced.world(vars),
    }
}

/// Checks RANK and WORLD_SIZE, which scripts export for the processes that they start.
fn agree_with_torchrun_variables(vars: Vars, rank: usize, size: usize) -> Result<(), WorldError> {
    let number = |name| vars(name).and_then(|value| value.trim().parse::<usize>().ok());
    let said = (number(torchrun::RANK), number(torchrun::WORLD_SIZE));
    match said {
        (Some(other_rank), Some(other_size)) if (other_rank, other_size) != (rank, size) => {
            Err(WorldError::Contradiction {
                one: format!("RANK and WORLD_SIZE say rank {other_rank} of {other_size}"),
                other: format!("the launcher says rank {rank} of {size}"),
                advice: format!(
                    "unset RANK and WORLD_SIZE, or choose a launcher with {LAUNCH}=torchrun, slurm \
                     or mpi"
                ),
            })
        }
        _ => Ok(()),
    }
}

fn alone(reason: String) -> World {
    World {
        reason,
        ..World::single()
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::*;

    /// Whether a process with these variables and `ancestors` is a rank. The ancestor at `setter`
    /// set the variables.
    fn of_launcher(set: &[(&str, &str)], ancestors: &[&str], setter: usize) -> bool {
        let vars = |name: &str| {
            let found = set.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.to_string())
        };
        let named = |name: &&str| Ancestor {
            pid: Pid::from_raw(7).unwrap(),
            name: (*name).to_owned(),
        };
        let ancestors: Vec<Ancestor> = ancestors.iter().map(named).collect();
        let setter = |_: &str| ancestors.get(setter).cloned();
        is_started(&vars, &ancestors, &setter)
    }

    #[test]
    fn what_a_launcher_left_behind_starts_nothing() {
        let mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
        let slurm = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0")];
        for (set, launcher) in [(&mpi, "orted"), (&slurm, "slurmstepd")] {
            assert!(!of_launcher(set, &["bash", "sshd", "systemd"], 0));
            assert!(!of_launcher(set, &["python3"], 0));
            assert!(!of_launcher(set, &[], 0));
            assert!(of_launcher(set, &["bash", launcher, "slurmd"], 1));
            // Set by hand, in a process that a launcher started for another purpose.
            assert!(!of_launcher(set, &["bash", launcher], 0));
        }
        // Variables that `sbatch` took over from the shell that called it.
        assert!(!of_launcher(&mpi, &["bash", "slurmstepd", "slurmd"], 1));
        let in_shell = [&mpi[..], &[("SLURM_STEP_ID", "4294967290")]].concat();
        assert!(!of_launcher(&in_shell, &["bash", "slurmstepd"], 1));
        let in_task = [("PMI_RANK", "0"), ("SLURM_STEP_ID", "0")];
        assert!(of_launcher(&in_task, &["slurmstepd"], 0));
        assert!(!of_launcher(&[], &["mpirun"], 0));
    }

    #[test]
    fn torchruns_variables_count_unless_a_shell_kept_them() {
        let half = [("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")];
        assert!(!of_launcher(&half, &["bash"], 0));
        let meeting = [("MASTER_ADDR", "a"), ("MASTER_PORT", "29500")];
        let set = [&half[..], &meeting].concat();
        assert!(of_launcher(&set, &["bash"], 0));
        let of_run = [&set[..], &[("TORCHELASTIC_RUN_ID", "7")]].concat();
        assert!(of_launcher(&of_run, &["bash", "python3"], 1));
        assert!(!of_launcher(&of_run, &["bash", "sshd"], 0));
        // The only rank of one may start others.
        let only = [("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")];
        let only = [&only[..], &meeting].concat();
        assert!(!of_launcher(&only, &["bash"], 0));
    }

    #[test]
    fn what_is_ignored_is_named() {
        let said = |set: &[(&str, &str)]| {
            passed_over(&|name| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| value.to_string())
            })
        };
        assert_eq!(said(&[("RANK", "0"), ("WORLD_SIZE", "1")]), None);
        let one = said(&[("RANK", "0")]).unwrap();
        assert_eq!(one, "--nproc starts ranks: RANK is ignored");
        let some = said(&[("OMPI_COMM_WORLD_RANK", "0"), ("WORLD_SIZE", "4")]).unwrap();
        assert!(some.ends_with("WORLD_SIZE and OMPI_COMM_WORLD_RANK are ignored"));
    }
}
