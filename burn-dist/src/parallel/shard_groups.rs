//! The ranks that share one set of shards, and the ranks with the same shard in other sets.
//!
//! With shards inside a node and replicas between nodes, parameters are gathered over fast links
//! only. Slow links carry one shard of the gradients per step. This is PyTorch's `HYBRID_SHARD`,
//! <https://pytorch.org/docs/stable/fsdp.html>.

use burn::tensor::Device;

use super::{ParallelError, ShardWithin};
use crate::bucket::{DeviceStore, GradientStore, HostStore, Partition, Resident};
use crate::{ProcessGroup, backend, device};

/// The two groups of a rank.
pub(super) struct ShardGroups {
    /// The ranks that together hold everything once.
    pub(super) within: ProcessGroup,
    /// The ranks that hold the same shard in the other sets; `None` with a single set.
    pub(super) across: Option<ProcessGroup>,
}

impl ShardGroups {
    /// Divides `group`, which has passed [`ShardWithin::check`]. A collective call.
    pub(super) fn of(group: &ProcessGroup, within: ShardWithin) -> Result<Self, ParallelError> {
        let set = match within {
            ShardWithin::All => 0,
            ShardWithin::Node => node_of(group)?,
            ShardWithin::Ranks(ranks) => group.rank() / ranks.get(),
        };
        let sets = match within {
            ShardWithin::All => 1,
            ShardWithin::Node => group.nodes(),
            ShardWithin::Ranks(ranks) => group.size() / ranks.get(),
        };
        if sets == 1 {
            return Ok(Self {
                within: group.clone(),
                across: None,
            });
        }
        let within = group.split(set as u64, group.rank() as u64)?;
        let across = group.split(within.rank() as u64, set as u64)?;
        Ok(Self {
            within,
            across: Some(across),
        })
    }

    /// The store for the gradients of a model on `device`. A collective call.
    pub(super) fn store(
        &self,
        device: Device,
        partition: Partition,
    ) -> Result<Box<dyn GradientStore>, ParallelError> {
        if backend::is_host(&device) {
            return Ok(Box::new(HostStore::new(partition)?));
        }
        let mut shared = device::Shared::default();
        let mut over = |group: &ProcessGroup| {
            device::collectives(&device, group, partition.compression, &mut shared)
        };
        let on = Resident {
            within: over(&self.within)?,
            across: self.across.as_ref().map(over).transpose()?,
            device,
        };
        Ok(Box::new(DeviceStore::new(partition, on)))
    }

    /// Whether this rank speaks for the ranks with the same shard.
    pub(super) fn is_first(&self) -> bool {
        self.across.as_ref().is_none_or(|group| group.rank() == 0)
    }
}

/// Index of this rank's node, if all nodes have the same number of ranks.
fn node_of(group: &ProcessGroup) -> Result<usize, ParallelError> {
    let nodes = group.gather_bytes(&(group.node() as u64).to_le_bytes())?;
    let mut ranks = vec![0usize; group.nodes()];
    for node in &nodes {
        let node = <[u8; 8]>::try_from(node.as_slice()).map(u64::from_le_bytes);
        let node = node.ok().and_then(|node| usize::try_from(node).ok());
        if let Some(count) = node.and_then(|node| ranks.get_mut(node)) {
            *count += 1;
        }
    }
    match ranks.iter().all(|count| Some(count) == ranks.first()) {
        true => Ok(group.node()),
        false => Err(ParallelError::UnevenNodes { ranks }),
    }
}
