//! Collectives over several nodes: shared memory within a node, streams between nodes.
//!
//! With `n` nodes of `r` ranks each, the ranks in the same place on their nodes form a ring of
//! nodes. So `r` rings run at once, each for its part of the elements. A byte takes about as many
//! hops as there are nodes, not ranks; small messages take [few rounds](super::bruck) instead.
//! Nothing waits for a node's sum to be complete: when a piece of a sum arrives, the rank adds the
//! elements of its node from shared memory, and writes arriving results to all ranks of the node.
//!
//! A rank owns the same [`shard`] as everywhere. Its sum can be taken in two [orders](Order):
//!
//! - As on the ring through all ranks: the sum begins at the rank after the owner, leaves the
//!   owner's node with the elements of the ranks after the owner, and gets the rest at its end. All
//!   bits are as on one node. In an all-reduce `(n r - 1) / (n r) + (n - 1) / n` of the bytes leave
//!   a node; in the ring through all ranks `2 (n r - 1) / (n r)` do.
//! - By nodes: the sum begins at the node after the owner's, as in Horovod's hierarchical
//!   all-reduce and BytePS. In an all-reduce `2 (n - 1) / n` of the bytes leave a node, the
//!   minimum. Floats differ from those of one node in their last bits.

mod layout;
mod share;
mod staging;

use std::ops::Range;

pub(crate) use layout::Layout;
pub(crate) use share::Order;

use super::bruck::Wanted;
use super::ring::{self, Reduction};
use super::{
    Descriptor, Failure, Kind, Neighbours, Operand, Ring, announce, bruck, compressed, gather,
    one_after_the_other, shard_bytes,
};
use crate::element::{DType, ReduceOp};
use crate::shard::{Cuts, shard};
use crate::transport::shm::{AllEntered, Region, Results, SharedMemory};
use crate::transport::{Transport, Watch};
use share::{Parts, Share};
use staging::Staging;

/// Bytes of every rank's shard that are staged at a time. With more, the stage of four ranks leaves
/// the cache before it is read.
const SLOT: usize = 256 * 1024;

/// Largest number of bytes that are staged at a time.
const STAGE: usize = 16 << 20;

/// Connected ranks of several nodes.
pub(crate) struct Nodes {
    layout: Layout,
    order: Order,
    node: Within,
    ring: Across,
    /// Staging buffer for private memory, once it is needed.
    stage: Option<Region>,
}

/// The ranks of this rank's node.
struct Within {
    shared: SharedMemory,
    at: Neighbours,
    /// Their ranks in the group.
    ranks: Vec<usize>,
}

/// The ranks in this rank's place of all nodes.
struct Across {
    transport: Box<dyn Transport>,
    at: Neighbours,
    /// Their ranks in the group.
    ranks: Vec<usize>,
}

impl Nodes {
    /// Uses memory shared within the node, and streams to and from other nodes.
    pub(crate) fn new(
        layout: Layout,
        order: Order,
        shared: SharedMemory,
        transport: Box<dyn Transport>,
    ) -> Self {
        let node = Within {
            shared,
            at: Neighbours {
                rank: layout.place,
                size: layout.on_each(),
            },
            ranks: layout.mates().to_vec(),
        };
        let ring = Across {
            transport,
            at: Neighbours {
                rank: layout.node,
                size: layout.nodes(),
            },
            ranks: layout.counterparts(),
        };
        Self {
            layout,
            order,
            node,
            ring,
            stage: None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self.ring.transport.name() {
            "mpi" => "shm+mpi",
            _ => "shm+tcp",
        }
    }

    pub(super) fn set_has_processor(&mut self, has_processor: bool) {
        self.node.shared.set_has_processor(has_processor);
        self.ring.transport.set_has_processor(has_processor);
    }

    pub(super) fn memory(&mut self) -> &mut SharedMemory {
        &mut self.node.shared
    }

    /// Checks that all ranks enter the same collective.
    pub(super) fn agree(&mut self, what: &Descriptor, watch: &Watch) -> Result<(), Failure> {
        let watch = &self.minding_streams(watch);
        self.node.enter(what, watch)?;
        self.announce(what, watch)
    }

    /// Checks that all ranks of this node enter the same collective, and all nodes too unless every
    /// message between nodes carries the descriptor.
    fn enter(&mut self, what: &Descriptor, watch: &Watch) -> Result<AllEntered, Failure> {
        let entered = self.node.enter(what, watch)?;
        if !bruck::suits(what, self.layout.ranks()) {
            self.announce(what, watch)?;
        }
        Ok(entered)
    }

    fn announce(&mut self, what: &Descriptor, watch: &Watch) -> Result<(), Failure> {
        self.ring.run(watch, |ring| announce(ring, what))
    }

    /// A watch that moves streams while a rank waits for its node: other nodes may wait for what it
    /// has sent.
    fn minding_streams(&self, watch: &Watch) -> Watch {
        watch.doing(self.ring.transport.meanwhile())
    }

    /// Allocates a bucket of `bytes` bytes. Rank `i` usually owns the range `owned(i)`.
    pub(super) fn register(
        &mut self,
        what: &Descriptor,
        (bytes, owned): (usize, impl Fn(usize) -> Range<usize>),
        watch: &Watch,
    ) -> Result<Region, Failure> {
        let watch = &self.minding_streams(watch);
        self.announce(what, watch)?;
        let region = self.on_node((bytes, owned), what, watch)?;
        // All nodes have their bucket now, or this rank hears that one has not.
        self.announce(what, watch)?;
        Ok(region)
    }

    /// Allocates a bucket on this node.
    fn on_node(
        &mut self,
        (bytes, owned): (usize, impl Fn(usize) -> Range<usize>),
        what: &Descriptor,
        watch: &Watch,
    ) -> Result<Region, Failure> {
        let mine: Vec<_> = self.ring.ranks.iter().map(|rank| owned(*rank)).collect();
        self.node.run(watch, |shared, watch| {
            Ok(shared.register(what.encode(), (bytes, &mine), watch)?)
        })
    }

    pub(super) fn run(
        &mut self,
        (what, cuts): (&Descriptor, &Cuts),
        memory: Operand<'_>,
        watch: &Watch,
    ) -> Result<(), Failure> {
        let watch = &self.minding_streams(watch);
        let ranks = self.layout.ranks();
        match (what.kind, memory) {
            (Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather, memory) => match memory {
                Operand::Bucket(region, len) if !is_sum_of_halves(what) => {
                    let entered = self.enter(what, watch)?;
                    let owned = |rank| shard_bytes((what, cuts), len, ranks, rank);
                    self.in_bucket((what, what.dtype), (entered, region), owned, watch)
                }
                memory => self.staged((what, cuts), memory.bytes(), watch),
            },
            (Kind::Broadcast, memory) => {
                self.enter(what, watch)?;
                self.broadcast(what, memory.bytes(), watch)
            }
            (Kind::Barrier, _) => {
                self.enter(what, watch)?;
                self.barrier(what, watch)
            }
            (Kind::GatherBytes | Kind::Register, _) => Ok(()),
        }
    }

    /// Runs the collective on a bucket that the node's ranks have entered, with elements of type
    /// `dtype`. Rank `i` owns the bytes `owned(i)`.
    fn in_bucket(
        &mut self,
        (what, dtype): (&Descriptor, DType),
        (entered, bucket): (AllEntered, &mut Region),
        owned: impl Fn(usize) -> Range<usize>,
        watch: &Watch,
    ) -> Result<(), Failure> {
        let op = what.op.unwrap_or(ReduceOp::Sum);
        let results = match what.kind {
            Kind::ReduceScatter => Results::Owners,
            _ => Results::Everybodys,
        };
        let len = bucket.len() / dtype.size();
        let bucket = self.node.shared.open(entered, bucket, results);
        let parts = Parts::new(self.order, self.node.at.rank, self.node.at.size);
        let mut own = Share::new(bucket, parts, (dtype, op));
        let counterparts = &self.ring.ranks.clone();
        let owned = |node: usize| owned(counterparts[node]);
        let ranks = self.layout.ranks();
        let reduction = Reduction { dtype, op, ranks };
        self.ring.run(watch, |ring| match (what.kind, what.wire) {
            (kind, _) if bruck::suits(what, ranks) => {
                let wanted = match kind {
                    Kind::AllGather => {
                        return bruck::all_gather(ring, what, &mut own, owned);
                    }
                    Kind::ReduceScatter => Wanted::Own,
                    _ => Wanted::All,
                };
                let own = (&mut own, reduction, wanted);
                bruck::reduce(ring, what, own, owned)
            }
            (Kind::AllGather, _) => ring::all_gather(ring, own, owned),
            (Kind::ReduceScatter, None) => ring::reduce_owned(ring, (own, reduction), owned),
            (_, None) => ring::reduce_all(ring, (own, reduction), owned),
            (kind, Some(wire)) => {
                let own = compressed::Own {
                    elements: own,
                    len,
                    divisor: compressed::divisor(op, ranks),
                };
                let factor = dtype.size() / wire.size();
                let owned = |node| {
                    let range = owned(node);
                    range.start / factor..range.end / factor
                };
                match kind {
                    Kind::ReduceScatter => compressed::reduce_owned(ring, (own, wire), owned),
                    _ => compressed::reduce_all(ring, (own, wire), owned),
                }
            }
        })?;
        self.node.finish(watch)
    }

    /// Runs the collective on private memory, with a part of every rank's shard at a time so that
    /// all rings are busy.
    fn staged(
        &mut self,
        (what, cuts): (&Descriptor, &Cuts),
        data: &mut [u8],
        watch: &Watch,
    ) -> Result<(), Failure> {
        let ranks = self.layout.ranks();
        let len = data.len() / what.dtype.size();
        if len == 0 {
            return self.agree(what, watch);
        }
        let slot = (STAGE / ranks / 64 * 64).clamp(64, SLOT);
        let mut bucket = match self.stage.take() {
            Some(bucket) => bucket,
            None => {
                let owned = |rank| rank * slot..(rank + 1) * slot;
                self.on_node((slot * ranks, owned), what, watch)?
            }
        };
        let shards = (0..ranks).map(|rank| cuts.shard(len, ranks, rank));
        let staging = Staging {
            what,
            dtype: match is_sum_of_halves(what) {
                true => DType::F32,
                false => what.dtype,
            },
            shards: shards.collect(),
            slot,
            rank: self.node.ranks[self.node.at.rank],
        };
        for round in 0..staging.rounds() {
            staging.fill(round, data, bucket.bytes_mut());
            let entered = match round {
                0 => self.enter(what, watch)?,
                _ => self.node.enter(what, watch)?,
            };
            let place = |rank| staging.place(round, rank);
            self.in_bucket((what, staging.dtype), (entered, &mut bucket), place, watch)?;
            staging.take(round, bucket.bytes(), data);
        }
        self.stage = Some(bucket);
        Ok(())
    }

    /// Sends within the root's node, then between nodes in one part for each ring, then within the
    /// other nodes.
    fn broadcast(
        &mut self,
        what: &Descriptor,
        data: &mut [u8],
        watch: &Watch,
    ) -> Result<(), Failure> {
        let Some((node, place)) = self.layout.find(usize::from(what.root)) else {
            return Ok(());
        };
        let here = node == self.layout.node;
        if here {
            self.node
                .run_ring(watch, |ring| ring::broadcast(ring, data, place))?;
        }
        let (len, parts) = (data.len(), self.layout.on_each());
        let part = |place: usize| shard(len, parts, place);
        let mut mine = &mut data[part(self.layout.place)];
        let ranks = self.layout.ranks();
        self.ring.run(watch, |ring| {
            if !bruck::suits(what, ranks) {
                return ring::broadcast(ring, mine, node);
            }
            let bytes = mine.len();
            let owned = |member| if member == node { 0..bytes } else { 0..0 };
            bruck::all_gather(ring, what, &mut mine, owned)
        })?;
        if here {
            return Ok(());
        }
        self.node
            .run_ring(watch, |ring| ring::all_gather(ring, data, part))
    }

    /// After [`enter`](Self::enter) all ranks of this node have come. When all nodes have heard of
    /// each other, so have all ranks.
    fn barrier(&mut self, what: &Descriptor, watch: &Watch) -> Result<(), Failure> {
        self.ring.run(watch, |ring| {
            bruck::all_gather(ring, what, &mut &mut [][..], |_| 0..0)
        })
    }

    /// Payloads lie in the order of places, and for each place in the order of nodes: a ring
    /// gathers one contiguous piece.
    pub(super) fn gather_bytes(
        &mut self,
        what: &Descriptor,
        payload: &[u8],
        watch: &Watch,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let watch = &self.minding_streams(watch);
        self.enter(what, watch)?;
        let (nodes, places) = (self.layout.nodes(), self.layout.on_each());
        let first = self.layout.place * nodes;
        let own = first + self.layout.node;
        let mut lengths = vec![0u64; nodes * places];
        lengths[own] = payload.len() as u64;
        let word = |index: usize| index * 8..index * 8 + 8;
        self.gather(what, bytemuck::cast_slice_mut(&mut lengths), word, watch)?;
        let ranges = one_after_the_other(&lengths)?;
        let mut data = vec![0; ranges.last().map_or(0, |range| range.end)];
        data[ranges[own].clone()].copy_from_slice(payload);
        self.gather(what, &mut data, |index| ranges[index].clone(), watch)?;
        let mut all = vec![Vec::new(); nodes * places];
        for place in 0..places {
            let ranks = self.layout.in_place(place);
            for (rank, range) in ranks.into_iter().zip(&ranges[place * nodes..]) {
                all[rank] = data[range.clone()].to_vec();
            }
        }
        Ok(all)
    }

    /// Gathers every rank's range of `data`. `of` returns it by a number that counts nodes first.
    fn gather(
        &mut self,
        what: &Descriptor,
        data: &mut [u8],
        of: impl Fn(usize) -> Range<usize>,
        watch: &Watch,
    ) -> Result<(), Failure> {
        let (nodes, first) = (self.layout.nodes(), self.layout.place * self.layout.nodes());
        self.ring.run(watch, |ring| {
            gather(ring, what, data, |node| of(first + node))
        })?;
        let column = |place: usize| of(place * nodes).start..of(place * nodes + nodes - 1).end;
        self.node
            .run_ring(watch, |ring| ring::all_gather(ring, data, column))
    }
}

impl Within {
    /// Runs `work`, which names ranks by their places on the node.
    fn run<R>(
        &mut self,
        watch: &Watch,
        work: impl FnOnce(&mut SharedMemory, &Watch) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let result = work(&mut self.shared, &watch.among(&self.ranks));
        result.map_err(|failure| failure.renamed(|place| self.ranks[place]))
    }

    /// The same on the ring of these ranks.
    fn run_ring(
        &mut self,
        watch: &Watch,
        work: impl FnOnce(&mut Ring<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let at = self.at;
        self.run(watch, |transport, watch| {
            work(&mut Ring {
                transport,
                at,
                watch,
            })
        })
    }

    fn enter(&mut self, what: &Descriptor, watch: &Watch) -> Result<AllEntered, Failure> {
        self.run(watch, |shared, watch| {
            Ok(shared.enter(what.encode(), watch)?)
        })
    }

    fn finish(&mut self, watch: &Watch) -> Result<(), Failure> {
        self.run(watch, |shared, watch| Ok(shared.finish(watch)?))
    }
}

impl Across {
    /// Runs `work`, which names ranks by their nodes.
    fn run(
        &mut self,
        watch: &Watch,
        work: impl FnOnce(&mut Ring<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let result = work(&mut Ring {
            transport: self.transport.as_mut(),
            at: self.at,
            watch: &watch.among(&self.ranks),
        });
        result.map_err(|failure| failure.renamed(|node| self.ranks[node]))
    }
}

/// Whether the sums must be taken in `f32` and rounded once, because elements are half precision.
fn is_sum_of_halves(what: &Descriptor) -> bool {
    what.op.is_some() && matches!(what.dtype, DType::F16 | DType::BF16)
}
