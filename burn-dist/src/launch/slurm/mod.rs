//! Variables that Slurm's `srun` sets for its tasks, from which they find each other.
//!
//! `srun(1)` describes them under OUTPUT ENVIRONMENT VARIABLES. Rank 0's host is the first one of
//! SLURM_STEP_NODELIST, or of the host file if that places the tasks. The secret is derived from
//! the numbers of job and step and the user's key, and the port from the secret, so nothing has to
//! be exchanged. MASTER_ADDR, MASTER_PORT and BURN_DIST_SECRET override the derived values.

mod components;
mod hostlist;
mod tasks;

pub use hostlist::{HostlistError, MOST_HOSTS, expand};

use std::fmt;
use std::fs::File;
use std::io::Read;

use components::Components;

use super::environment::secret_from;
use super::variables::{LAUNCH, MASTER_ADDR, optional, port, required};
use super::{Vars, WorldError};
use super::{ports, user_key};
use crate::wire::Secret;
use crate::world::{FromLauncher, Launch, Master, Topology, World};

const JOB_ID: &str = "SLURM_JOB_ID";
pub(super) const STEP_ID: &str = "SLURM_STEP_ID";
const PROCID: &str = "SLURM_PROCID";
const NTASKS: &str = "SLURM_NTASKS";
const NODEID: &str = "SLURM_NODEID";
const STEP_NUM_NODES: &str = "SLURM_STEP_NUM_NODES";
const STEP_NODELIST: &str = "SLURM_STEP_NODELIST";
const STEP_TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
const DISTRIBUTION: &str = "SLURM_DISTRIBUTION";
const HOSTFILE: &str = "SLURM_HOSTFILE";
const RESTART_COUNT: &str = "SLURM_RESTART_COUNT";
/// Steps that `srun` did not start: the shell of `salloc` (`use_interactive_step`), the batch
/// script, and the step of external processes. They are Slurm's `SLURM_INTERACTIVE_STEP`,
/// `SLURM_BATCH_SCRIPT` and `SLURM_EXTERN_CONT`.
const STEPS_WITHOUT_SRUN: [&str; 3] = ["4294967290", "4294967291", "4294967292"];
pub(super) const STEP_NUM_TASKS: &str = "SLURM_STEP_NUM_TASKS";
pub(super) const LOCALID: &str = "SLURM_LOCALID";

/// One task of a job step, as described by its variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    job: usize,
    step: String,
    restarts: usize,
    pub rank: usize,
    pub size: usize,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slurm step {}.{}", self.job, self.step)?;
        match self.restarts {
            0 => Ok(()),
            count => write!(f, ", restart {count}"),
        }
    }
}

/// The world of a task of `srun`, which must have started this process.
pub(super) fn world(vars: Vars) -> Result<World, WorldError> {
    if let (Some(step), None) = (vars(STEP_ID), step_of_srun(vars)) {
        return Err(WorldError::Contradiction {
            one: format!("{} asks for an srun task", LAUNCH),
            other: format!("{STEP_ID}={step} is not one"),
            advice: "put srun before the command".into(),
        });
    }
    Step::read(vars)?
        .ok_or(WorldError::Missing {
            name: STEP_ID,
            because: LAUNCH,
            meaning: "the job step number, set by srun",
        })?
        .world(vars)
}

/// A process of a job with several tasks that is itself not a task.
pub(super) struct Outside {
    pub job: String,
    pub tasks: usize,
    /// The part of the job that started it.
    pub starter: &'static str,
}

/// Job and number of tasks, if this process is a batch script or the shell of `salloc`, or was
/// started by one without `srun`.
pub(super) fn outside_of_tasks(vars: Vars) -> Option<Outside> {
    let job = vars(JOB_ID)?;
    let tasks = vars(NTASKS)?.trim().parse().ok()?;
    let starter = match vars(STEP_ID).as_deref() {
        Some("4294967290") => "the shell",
        _ => "the batch script",
    };
    (tasks > 1 && step_of_srun(vars).is_none()).then_some(Outside {
        job,
        tasks,
        starter,
    })
}

/// Number of the step, if `srun` started it.
pub(super) fn step_of_srun(vars: Vars) -> Option<String> {
    vars(STEP_ID).filter(|step| !STEPS_WITHOUT_SRUN.contains(&step.trim()))
}

impl Step {
    /// Reads the variables; `None` if `srun` has not set them. A batch script has a SLURM_PROCID
    /// but no step, and the shell of `salloc` has a step of its own.
    pub fn read(vars: Vars) -> Result<Option<Self>, WorldError> {
        let Some(step) = step_of_srun(vars) else {
            return Ok(None);
        };
        let rank = required(
            vars,
            PROCID,
            STEP_ID,
            "this task's number, from 0, set by srun",
        )?;
        let size = match optional(vars, STEP_NUM_TASKS)? {
            Some(size) => size,
            None => required(vars, NTASKS, STEP_ID, "the number of tasks, set by srun")?,
        };
        Ok(Some(Self {
            job: required(vars, JOB_ID, STEP_ID, "the job number, set by srun")?,
            step,
            restarts: optional(vars, RESTART_COUNT)?.unwrap_or(0),
            rank,
            size,
        }))
    }

    /// The world of this task.
    pub fn world(&self, vars: Vars) -> Result<World, WorldError> {
        let Self { rank, size, .. } = *self;
        if size == 0 {
            return Err(WorldError::EmptyWorld);
        }
        let world = World {
            rank,
            size,
            topology: self.topology(vars)?,
            launch: Launch::Slurm,
            master: None,
            secret: None,
            reason: self.to_string(),
            from_launcher: FromLauncher::default(),
        };
        if size == 1 {
            return world.checked();
        }
        let secret = match secret_from(vars)? {
            Some(secret) => secret,
            None => user_key::load(vars).map_err(|source| WorldError::Key { source })?,
        };
        let secret = secret.derive(self.to_string().as_bytes());
        let world = World {
            master: Some(self.master(vars, &secret)?),
            secret: Some(secret),
            ..world
        };
        world.checked()
    }

    /// Never computed from the rank: `-N2 -n4` may put three tasks on one node and one on the
    /// other.
    fn topology(&self, vars: Vars) -> Result<Topology, WorldError> {
        let local_rank = required(
            vars,
            LOCALID,
            STEP_ID,
            "the task's number on its node, from 0",
        )?;
        let node = required(vars, NODEID, STEP_ID, "the node's number, from 0")?;
        let per_node = vars(STEP_TASKS_PER_NODE).ok_or(WorldError::Missing {
            name: STEP_TASKS_PER_NODE,
            because: STEP_ID,
            meaning: "the number of tasks on each node",
        })?;
        let tasks = tasks::expand(&per_node).ok_or(WorldError::TasksPerNode {
            name: STEP_TASKS_PER_NODE,
            value: per_node.clone(),
        })?;
        let nodes = optional(vars, STEP_NUM_NODES)?.unwrap_or(tasks.len());
        let all: usize = tasks.iter().sum();
        if tasks.len() != nodes || all != self.size {
            return Err(WorldError::Contradiction {
                one: format!(
                    "{STEP_TASKS_PER_NODE}={per_node} is {all} tasks on {} nodes",
                    tasks.len()
                ),
                other: format!("{self} has {} tasks on {nodes} nodes", self.size),
                advice: "do not set Slurm's variables by hand".into(),
            });
        }
        if node >= nodes {
            return Err(WorldError::NodeOutOfRange { node, nodes });
        }
        let place = match Components::of_step(vars)? {
            Some(components) => components.place(self, node)?,
            None => node,
        };
        let local_size = *tasks
            .get(place)
            .ok_or(WorldError::NodeOutOfRange { node, nodes })?;
        Ok(Topology {
            local_rank,
            local_size,
            node,
            nodes,
        })
    }

    fn master(&self, vars: Vars, secret: &Secret) -> Result<Master, WorldError> {
        let host = match vars(MASTER_ADDR).filter(|host| !host.is_empty()) {
            Some(host) => host,
            None => first_host(vars)?,
        };
        Ok(match port(vars)? {
            Some(port) => Master::new(host, port),
            None => ports::master(host, secret, &self.to_string()),
        })
    }
}

/// Bytes of the host file in which the first host must appear.
const HOST_WITHIN: u64 = 4096;

/// The host of rank 0: the first of the sorted node list, or the first line of the host file with
/// `--distribution=arbitrary`.
fn first_host(vars: Vars) -> Result<String, WorldError> {
    let is_placed = vars(DISTRIBUTION).is_some_and(|how| how == "arbitrary");
    let file = vars(HOSTFILE).filter(|_| is_placed);
    if let Some(host) = file.and_then(|file| first_line(&file)) {
        return Ok(host);
    }
    let list = vars(STEP_NODELIST).ok_or(WorldError::Missing {
        name: STEP_NODELIST,
        because: STEP_ID,
        meaning: "the node names",
    })?;
    let hosts = expand(&list).map_err(|source| WorldError::Hosts {
        name: STEP_NODELIST,
        source,
    })?;
    if let Some(components) = Components::of_step(vars)? {
        return Ok(components.first_host());
    }
    // `expand` returns at least one host or an error.
    Ok(hosts.into_iter().next().unwrap_or_default())
}

/// The first host of a file. A line is a name and perhaps a count: `node3*2`.
fn first_line(file: &str) -> Option<String> {
    let mut text = String::new();
    let file = File::open(file).ok()?;
    file.take(HOST_WITHIN).read_to_string(&mut text).ok()?;
    let hosts = text.lines().map(str::trim);
    let mut hosts = hosts.filter(|host| !host.is_empty() && !host.starts_with('#'));
    let host = hosts.next()?.split('*').next()?.trim();
    (!host.is_empty()).then(|| host.to_owned())
}

#[cfg(test)]
mod tests;
