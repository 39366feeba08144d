//! Variables that MPI launchers set, read before MPI itself runs: `mpirun` of Open MPI and of MPICH
//! and its relatives, `srun --mpi=pmi2` and `--mpi=pmix`.
//!
//! If launcher and library do not match, every process gets a world of one rank. So the announced
//! size is compared later with what MPI reports.

use super::environment::secret_from;
use super::slurm;
use super::variables::{LAUNCH, MASTER_ADDR, MASTER_PORT, optional, port};
use super::{Vars, WorldError};
use crate::backend::mpi::{self, NoSession, Session};
use crate::world::{FromLauncher, Launch, Master, Topology, World};

/// The variables of a launcher.
pub(super) struct Dialect {
    pub launcher: &'static str,
    pub rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

/// The nearest launcher first: under `mpirun` inside a Slurm job, Slurm's variables are set too.
const DIALECTS: [Dialect; 3] = [
    Dialect {
        launcher: "Open MPI's mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Dialect {
        launcher: "a PMI launcher (MPICH's mpirun, srun --mpi=pmi2)",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
    },
    // PMIx tells the size only to its library. Slurm knows it.
    Dialect {
        launcher: "a PMIx launcher (srun --mpi=pmix, prterun)",
        rank: "PMIX_RANK",
        size: slurm::STEP_NUM_TASKS,
        local_rank: slurm::LOCALID,
        local_size: "MPI_LOCALNRANKS",
    },
];

/// Names the launcher's job to which `PMIX_RANK` belongs.
const PMIX_NAMESPACE: &str = "PMIX_NAMESPACE";

/// Prefix of Slurm's namespaces (`slurm.pmix.JOB.STEP`); those of `prterun` and its relatives use
/// their own names.
const SLURM_NAMESPACE: &str = "slurm.";

impl Dialect {
    /// Number of ranks that the launcher has started, if it says so. Slurm's number of tasks is not
    /// that of a launcher that runs as one of its tasks.
    fn size(&self, vars: Vars) -> Result<Option<usize>, WorldError> {
        let other = |name: String| !name.is_empty() && !name.starts_with(SLURM_NAMESPACE);
        if self.size == slurm::STEP_NUM_TASKS && vars(PMIX_NAMESPACE).is_some_and(other) {
            return Ok(None);
        }
        optional(vars, self.size)
    }
}

/// The announcement of a launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Announced {
    pub launcher: &'static str,
    /// The variable with the rank.
    pub variable: &'static str,
    pub rank: usize,
    pub size: usize,
    local: Option<(usize, usize)>,
}

/// The announcement of the MPI launcher that started this process, if one did.
pub(super) fn announced(vars: Vars) -> Result<Option<Announced>, WorldError> {
    for dialect in &DIALECTS {
        let (Some(rank), Some(size)) = (optional(vars, dialect.rank)?, dialect.size(vars)?) else {
            continue;
        };
        let local_rank = optional(vars, dialect.local_rank)?;
        let local_size = optional(vars, dialect.local_size)?;
        return Ok(Some(Announced {
            launcher: dialect.launcher,
            variable: dialect.rank,
            rank,
            size,
            local: local_rank.zip(local_size),
        }));
    }
    Ok(None)
}

/// The launcher that started this process as one of several ranks without telling their number, by
/// its rank variable. MPI itself knows the number, if it is built in.
pub(super) fn started_without_size(vars: Vars) -> Option<&'static Dialect> {
    DIALECTS.iter().find(|dialect| {
        let is_set = vars(dialect.rank).is_some_and(|value| !value.is_empty());
        is_set && matches!(dialect.size(vars), Ok(None))
    })
}

/// The rank variables that are set, that of the nearest launcher first.
pub(super) fn rank_variables(vars: Vars) -> impl Iterator<Item = &'static str> {
    let is_set = move |name: &&str| vars(name).is_some_and(|value| !value.is_empty());
    DIALECTS.iter().map(|dialect| dialect.rank).filter(is_set)
}

/// The same inside a task of Slurm, which is then the farther launcher.
pub(super) fn started_within_step(vars: Vars) -> Option<&'static Dialect> {
    started_without_size(vars).filter(|dialect| dialect.size == slurm::STEP_NUM_TASKS)
}

impl Announced {
    /// The announced world; MPI is asked later. Without MPI the ranks meet at the address in the
    /// variables.
    pub fn world(&self, vars: Vars) -> Result<World, WorldError> {
        let Self { rank, size, .. } = *self;
        let (local_rank, local_size) = self.local.unwrap_or((rank, size));
        // Only a guess if nodes have different sizes; the group asks the ranks later.
        let nodes = size.div_ceil(local_size.max(1)).max(1);
        let mut world = World {
            rank,
            size,
            topology: Topology {
                local_rank,
                local_size,
                node: (rank / local_size.max(1)).min(nodes - 1),
                nodes,
            },
            launch: Launch::Mpi,
            master: None,
            secret: secret_from(vars)?,
            reason: format!("{} is set by {}", self.variable, self.launcher),
            from_launcher: FromLauncher {
                assumes_local_size: self.local.is_none(),
                ..FromLauncher::default()
            },
        };
        if mpi::BUILT {
            return Ok(world);
        }
        let host = vars(MASTER_ADDR).filter(|host| !host.is_empty());
        let (Some(host), Some(port), Some(_)) = (host, port(vars)?, &world.secret) else {
            return Err(WorldError::NoMpi {
                launcher: self.launcher.into(),
                size,
            });
        };
        world.reason = format!(
            "{}, without MPI: {MASTER_ADDR} and {MASTER_PORT}",
            world.reason
        );
        world.master = Some(Master::new(host, port));
        world.checked()
    }
}

/// Asks MPI itself for this rank, if it is built in. All ranks call it.
pub(super) fn asked(announced: World) -> Result<World, WorldError> {
    let Some(library) = mpi::library() else {
        return Ok(announced);
    };
    check_launcher(&library)?;
    let session = Session::start()
        .map_err(|NoSession { action, reason }| WorldError::Mpi { action, reason })?;
    check_size(&announced, session.size(), &library)?;
    let world = World {
        rank: session.rank(),
        size: session.size(),
        topology: session.topology(),
        launch: Launch::Mpi,
        master: None,
        secret: announced.secret.clone(),
        reason: format!("{library}; {}", announced.reason),
        from_launcher: FromLauncher {
            companion: Some(session),
            assumes_local_size: false,
            ..announced.from_launcher
        },
    };
    world.checked()
}

/// Checks that the launcher can be reached. Otherwise Open MPI would end the process from within,
/// with a page of advice that is not about this cluster.
fn check_launcher(library: &str) -> Result<(), WorldError> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let only_pmi = is_set("PMI_RANK") && !is_set("PMIX_RANK") && !is_set("OMPI_COMM_WORLD_RANK");
    if !only_pmi || !library.contains("Open MPI") || is_set(LAUNCH) {
        return Ok(());
    }
    Err(WorldError::Contradiction {
        one: "the launcher speaks PMI-1 or PMI-2 (PMI_RANK is set)".into(),
        other: format!("{library} usually speaks PMIx only"),
        advice: format!(
            "use srun --mpi=pmix or its own mpirun; if yours was built for PMI-2, set {LAUNCH}=mpi"
        ),
    })
}

/// Checks that launcher and library match. If not, every process gets a world of its own.
fn check_size(announced: &World, found: usize, library: &str) -> Result<(), WorldError> {
    let said = announced.size();
    // Size 1 is announced if the launcher is unknown.
    if said == found || said == 1 {
        return Ok(());
    }
    let advice = match library.contains("Open MPI") {
        true => {
            "launcher and MPI library do not match. With Open MPI use srun --mpi=pmix or its own \
             mpirun"
        }
        false => {
            "launcher and MPI library do not match. With MPICH and its derivatives use srun \
             --mpi=pmi2 or their own mpirun"
        }
    };
    Err(WorldError::Contradiction {
        one: format!("{} ({said} ranks)", announced.reason),
        other: format!("{library} sees {found}"),
        advice: format!("{advice}. Otherwise every process trains alone"),
    })
}
