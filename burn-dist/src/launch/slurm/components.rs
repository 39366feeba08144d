//! Steps of heterogeneous jobs, which consist of components (`srun … : …`).
//!
//! A step over one component is like any other. For a step over several, Slurm 22.05 numbers tasks
//! and nodes jointly, component after component, but sorts the list of nodes and their numbers of
//! tasks by name: `SLURM_NODEID` is not an index into them. Components share no node.

use super::super::{Vars, WorldError};
use super::{NTASKS, STEP_NODELIST, Step, expand};
use crate::launch::variables::optional;

/// Number of components of the job.
const HET_SIZE: &str = "SLURM_HET_SIZE";
/// Prefixes of a component's node list, followed by its number. Not every `srun` sets the first.
const NODELISTS: [&str; 2] = [
    "SLURM_JOB_NODELIST_HET_GROUP_",
    "SLURM_JOB_NODELIST_PACK_GROUP_",
];
/// Name of this node.
const NODENAME: &str = "SLURMD_NODENAME";
/// Largest number of components that Slurm allows.
const MOST_COMPONENTS: usize = 128;

/// The nodes of a step of a heterogeneous job.
pub(super) struct Components {
    /// In the order of the step's list.
    hosts: Vec<String>,
    /// In the order of the components, which is that of `SLURM_NODEID`.
    in_order: Vec<String>,
    /// This node.
    own: Option<String>,
    /// Number of tasks in the variable that steps and jobs share.
    tasks: Option<usize>,
}

impl Components {
    /// Reads them; `None` if the job is not heterogeneous.
    pub fn of_step(vars: Vars) -> Result<Option<Self>, WorldError> {
        let size = optional(vars, HET_SIZE)?.unwrap_or(1);
        if size < 2 {
            return Ok(None);
        }
        let hosts = hosts(STEP_NODELIST, &vars(STEP_NODELIST).unwrap_or_default())?;
        let mut in_order = Vec::new();
        for number in 0..size.min(MOST_COMPONENTS) {
            let mut names = NODELISTS.iter().map(|name| format!("{name}{number}"));
            let list = names.find_map(|name| vars(&name));
            let of_component = match list {
                Some(list) => hosts_of_component(&list)?,
                None => Vec::new(),
            };
            in_order.extend(of_component.into_iter().filter(|host| hosts.contains(host)));
        }
        if in_order.is_empty() {
            in_order.clone_from(&hosts);
        }
        Ok(Some(Self {
            hosts,
            in_order,
            own: vars(NODENAME).filter(|name| !name.is_empty()),
            tasks: optional(vars, NTASKS)?,
        }))
    }

    /// Index in the lists of `step` of the node that Slurm numbers `node`.
    ///
    /// # Errors
    /// Fails if its tasks are not numbered jointly, or its nodes not as described above.
    pub fn place(&self, step: &Step, node: usize) -> Result<usize, WorldError> {
        let own = self.own.as_ref().or(self.in_order.get(node));
        let place = own.and_then(|own| self.hosts.iter().position(|host| host == own));
        let counted = self.tasks.is_none_or(|tasks| tasks == step.size) && step.rank < step.size;
        let in_order = self.in_order.len() == self.hosts.len() && self.in_order.get(node) == own;
        match place {
            Some(place) if counted && in_order => Ok(place),
            _ => Err(WorldError::Contradiction {
                one: format!("{step} belongs to a heterogeneous job"),
                other: format!(
                    "its components are not numbered together: rank {} of {} is on node {node}, \
                     {}, of {}",
                    step.rank,
                    self.tasks.unwrap_or(step.size),
                    own.map_or("without a name", String::as_str),
                    self.in_order.join(",")
                ),
                advice: "start the ranks on one component (srun --het-group=0), use MPI (feature \
                         `mpi`, srun --mpi=pmix), or set the torchrun variables"
                    .into(),
            }),
        }
    }

    /// Host of rank 0.
    pub fn first_host(self) -> String {
        self.in_order.into_iter().next().unwrap_or_default()
    }
}

fn hosts(name: &'static str, list: &str) -> Result<Vec<String>, WorldError> {
    expand(list).map_err(|source| WorldError::Hosts { name, source })
}

fn hosts_of_component(list: &str) -> Result<Vec<String>, WorldError> {
    hosts("SLURM_JOB_NODELIST_HET_GROUP_0 or a neighbour", list)
}
