//! Whose variables count when several launchers have left some.
//!
//! The nearest launcher is right: `mpirun` inside a Slurm job, `torchrun` under `srun`. Where two
//! contradict each other in a way that no nesting explains, nobody is believed: the alternative is
//! that every process trains alone, as rank 0 of 1.

use super::{mpi, slurm, torchrun};
use crate::world::{LAUNCH, Launch, Vars, World, WorldError};

/// The world that the variables describe.
pub(crate) fn decide(vars: Vars) -> Result<World, WorldError> {
    match vars(LAUNCH).as_deref() {
        None | Some("") => found(vars),
        Some("single") => Ok(alone(format!("{LAUNCH}=single"))),
        Some("local") => torchrun::world(vars, Launch::Local),
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

fn found(vars: Vars) -> Result<World, WorldError> {
    // torchrun says when it is the parent, whoever started it.
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
            let mut world = alone(format!("{starter} of Slurm job {job} has started it"));
            world.link.advice = Some(format!(
                "Slurm job {job} has {tasks} tasks, but this process is not one of them and trains \
                 alone; put srun before the command to use them"
            ));
            Ok(world)
        }
        None => Ok(World::single()),
    }
}

/// The world of a launcher that says nothing of the number of ranks; MPI itself will tell.
fn of_unknown_size(launcher: &str, reason: String) -> Result<World, WorldError> {
    match cfg!(feature = "mpi") {
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
                one: format!("{} announces a world of one rank", announced.launcher),
                other: format!("{step} has {} tasks", step.size),
                advice:
                    "every task would train alone; start the program with srun or with mpirun, \
                         not with one inside the other"
                        .into(),
            });
        }
        if (rank, size) == (step.rank, step.size) && !cfg!(feature = "mpi") {
            return step.world(vars);
        }
    }
    agree_with_torchrun_variables(vars, rank, size)?;
    match size {
        1 => Ok(alone(format!(
            "{} has started one rank",
            announced.launcher
        ))),
        _ => announced.world(vars),
    }
}

/// Scripts export RANK and WORLD_SIZE for whatever they start. That is good if it is true.
fn agree_with_torchrun_variables(vars: Vars, rank: usize, size: usize) -> Result<(), WorldError> {
    let number = |name| vars(name).and_then(|value| value.trim().parse::<usize>().ok());
    let said = (number(torchrun::RANK), number(torchrun::WORLD_SIZE));
    match said {
        (Some(other_rank), Some(other_size)) if (other_rank, other_size) != (rank, size) => {
            Err(WorldError::Contradiction {
                one: format!("RANK and WORLD_SIZE say rank {other_rank} of {other_size}"),
                other: format!("the launcher says rank {rank} of {size}"),
                advice: format!(
                    "unset RANK and WORLD_SIZE, or say whom to believe with {LAUNCH}=torchrun, \
                     slurm or mpi"
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
