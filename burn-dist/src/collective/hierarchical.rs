//! Collectives over several nodes: the ranks of a node share memory, and what travels between nodes is of all of them.
//!
//! Of `n` nodes with `r` ranks each, the ranks that are in the same place on their nodes are a ring of nodes: `r` rings,
//! each for its part of the elements, all at once. A byte takes about as many hops as there are nodes, not ranks. Nothing
//! waits for a node's sums to be complete: when a piece of a sum comes to a rank, it adds what its node has there, read
//! from the memory of all of them, and results that come are written to all of them.
//!
//! A rank owns the same [`shard`] as everywhere. There are two [orders](Order) in which its sum can be taken:
//!
//! - As on the ring through all ranks: the sum begins at the rank after the owner, so it leaves the owner's node with what
//!   the ranks after the owner have, and gets the rest there at its end. All bits are as on one node. Of an all-reduce
//!   `(n r - 1) / (n r) + (n - 1) / n` of the bytes leave a node, where the ring through all ranks has
//!   `2 (n r - 1) / (n r)`.
//! - By nodes: the sum begins at the node after the owner's (as in Horovod's hierarchical all-reduce and BytePS). Of an
//!   all-reduce `2 (n - 1) / n` of the bytes leave a node, which is the least there can be. Floats differ from those of one
//!   node in their last bits.

use std::ops::Range;

use super::ring::{self, Contribution, Reduction, SEGMENT, Visit};
use super::{Failure, Memory, Neighbours, announce, compressed, one_after_the_other, shard_bytes};
use crate::buffer::Buffer;
use crate::collective::{Descriptor, Kind};
use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::{Cuts, shard, summands};
use crate::transport::shm::{Entered, Opened, Region, Results, SharedMemory};
use crate::transport::{Transport, Watch};

/// Bytes of every rank's shard that are staged at a time: with more of them, four ranks' stage leaves the cache before it
/// is read.
const SLOT: usize = 256 * 1024;

/// Most bytes that are staged at a time.
const STAGE: usize = 16 << 20;

/// Where the ranks of a group are: on several nodes, several and as many on each.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// By node, and by place on it: the rank in the group.
    ranks: Vec<Vec<usize>>,
    /// Where this rank is.
    node: usize,
    place: usize,
}

impl Layout {
    /// The layout around rank `rank`, if it is one, of ranks that are on these hosts.
    pub(crate) fn of(hosts: &[Vec<u8>], rank: usize) -> Option<Self> {
        let mut names: Vec<&Vec<u8>> = Vec::new();
        let mut ranks: Vec<Vec<usize>> = Vec::new();
        for (rank, host) in hosts.iter().enumerate() {
            match names.iter().position(|name| *name == host) {
                Some(node) => ranks[node].push(rank),
                None => {
                    names.push(host);
                    ranks.push(vec![rank]);
                }
            }
        }
        let on_each = ranks.first()?.len();
        if ranks.len() < 2 || on_each < 2 || ranks.iter().any(|node| node.len() != on_each) {
            return None;
        }
        let mut layout = Self {
            ranks,
            node: 0,
            place: 0,
        };
        (layout.node, layout.place) = layout.find(rank)?;
        Some(layout)
    }

    /// Whether the ranks of each node come one after the other.
    pub(crate) fn is_in_order(&self) -> bool {
        self.ranks.iter().flatten().is_sorted()
    }

    fn find(&self, rank: usize) -> Option<(usize, usize)> {
        let place = |ranks: &Vec<usize>| ranks.iter().position(|other| *other == rank);
        let mut nodes = self.ranks.iter().enumerate();
        nodes.find_map(|(node, ranks)| Some((node, place(ranks)?)))
    }

    fn nodes(&self) -> usize {
        self.ranks.len()
    }

    fn ranks(&self) -> usize {
        self.nodes() * self.on_each()
    }

    fn on_each(&self) -> usize {
        self.ranks[0].len()
    }

    /// The ranks of this rank's node, by their place there.
    pub(crate) fn mates(&self) -> &[usize] {
        &self.ranks[self.node]
    }

    /// The ranks in that place of each node.
    fn in_place(&self, place: usize) -> Vec<usize> {
        self.ranks.iter().map(|node| node[place]).collect()
    }

    /// The ranks in this rank's place of each node, by node.
    pub(crate) fn counterparts(&self) -> Vec<usize> {
        self.in_place(self.place)
    }
}

/// Ranks of several nodes, connected.
pub(crate) struct Nodes {
    layout: Layout,
    order: Order,
    node: Within,
    ring: Across,
    /// Through which private memory goes, once it is needed.
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
    /// Of memory that the ranks of the node share, and streams to the next node and from the previous one.
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

    pub(super) fn memory(&mut self) -> &mut SharedMemory {
        &mut self.node.shared
    }

    /// Makes sure that all ranks enter the same collective.
    #[cfg(feature = "mpi")]
    pub(super) fn agree(&mut self, what: &Descriptor, watch: &Watch) -> Result<(), Failure> {
        let watch = &self.minding_streams(watch);
        self.enter(what, watch).map(drop)
    }

    /// Makes sure that all ranks enter the same collective; on this node all have when it returns.
    fn enter(&mut self, what: &Descriptor, watch: &Watch) -> Result<Entered, Failure> {
        let entered = self.node.enter(what, watch)?;
        self.announce(what, watch)?;
        Ok(entered)
    }

    fn announce(&mut self, what: &Descriptor, watch: &Watch) -> Result<(), Failure> {
        self.ring.run(watch, |transport, at, watch| {
            announce(transport, at, what, watch)
        })
    }

    /// A watch under which streams go on while a rank waits for its node: others may wait for what it has sent.
    fn minding_streams(&self, watch: &Watch) -> Watch {
        watch.doing(self.ring.transport.meanwhile())
    }

    /// Makes a bucket of `bytes` bytes, of which rank `i` owns `owned(i)` as a rule.
    pub(super) fn register(
        &mut self,
        what: &Descriptor,
        (bytes, owned): (usize, impl Fn(usize) -> Range<usize>),
        watch: &Watch,
    ) -> Result<Region, Failure> {
        let watch = &self.minding_streams(watch);
        self.announce(what, watch)?;
        let region = self.on_node((bytes, owned), what, watch)?;
        // All nodes have theirs now, or this rank hears that one has not.
        self.announce(what, watch)?;
        Ok(region)
    }

    /// A bucket of this node.
    fn on_node(
        &mut self,
        (bytes, owned): (usize, impl Fn(usize) -> Range<usize>),
        what: &Descriptor,
        watch: &Watch,
    ) -> Result<Region, Failure> {
        let mine: Vec<_> = self.ring.ranks.iter().map(|rank| owned(*rank)).collect();
        self.node.run(watch, |shared, _, watch| {
            Ok(shared.register(what.encode(), (bytes, &mine), watch)?)
        })
    }

    pub(super) fn run(
        &mut self,
        (what, cuts): (&Descriptor, &Cuts),
        memory: Memory<'_>,
        watch: &Watch,
    ) -> Result<(), Failure> {
        let watch = &self.minding_streams(watch);
        let ranks = self.layout.ranks();
        match (what.kind, memory) {
            (Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather, memory) => match memory {
                Memory::Bucket(region, len) if !is_sum_of_halves(what) => {
                    let entered = self.enter(what, watch)?;
                    let owned = |rank| shard_bytes((what, cuts), len, ranks, rank);
                    self.in_bucket((what, what.dtype), (entered, region), owned, watch)
                }
                memory => self.staged((what, cuts), memory.bytes(), watch),
            },
            (Kind::Broadcast, memory) => {
                self.enter(what, watch)?;
                self.broadcast(usize::from(what.root), memory.bytes(), watch)
            }
            (Kind::Barrier, _) => {
                self.enter(what, watch)?;
                self.barrier(watch)
            }
            (Kind::GatherBytes | Kind::Register, _) => Ok(()),
        }
    }

    /// On a bucket that the ranks of the node have entered, with elements of type `dtype`. Rank `i` has the bytes
    /// `owned(i)`.
    fn in_bucket(
        &mut self,
        (what, dtype): (&Descriptor, DType),
        (entered, bucket): (Entered, &mut Region),
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
        let own = Share::new(bucket, parts, (dtype, op));
        let counterparts = &self.ring.ranks.clone();
        let owned = |node: usize| owned(counterparts[node]);
        let ranks = self.layout.ranks();
        let reduction = Reduction { dtype, op, ranks };
        self.ring
            .run(watch, |transport, at, watch| match (what.kind, what.wire) {
                (Kind::AllGather, _) => ring::all_gather(transport, at, own, owned, watch),
                (Kind::ReduceScatter, None) => {
                    ring::reduce_owned(transport, at, (own, reduction), owned, watch)
                }
                (_, None) => ring::reduce_all(transport, at, (own, reduction), owned, watch),
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
                        Kind::ReduceScatter => {
                            compressed::reduce_owned(transport, at, (own, wire), owned, watch)
                        }
                        _ => compressed::reduce_all(transport, at, (own, wire), owned, watch),
                    }
                }
            })?;
        self.node.finish(watch)
    }

    /// On private memory: some of every rank's shard at a time, so that all rings have something to do.
    fn staged(
        &mut self,
        (what, cuts): (&Descriptor, &Cuts),
        data: &mut [u8],
        watch: &Watch,
    ) -> Result<(), Failure> {
        let ranks = self.layout.ranks();
        let len = data.len() / what.dtype.size();
        if len == 0 {
            return self.enter(what, watch).map(drop);
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

    /// Within the root's node, then between nodes in as many parts as there are rings, then within the others.
    fn broadcast(&mut self, root: usize, data: &mut [u8], watch: &Watch) -> Result<(), Failure> {
        let Some((node, place)) = self.layout.find(root) else {
            return Ok(());
        };
        let here = node == self.layout.node;
        if here {
            self.node.run(watch, |shared, at, watch| {
                ring::broadcast(shared, at, data, place, watch)
            })?;
        }
        let (len, parts) = (data.len(), self.layout.on_each());
        let part = |place: usize| shard(len, parts, place);
        let mine = &mut data[part(self.layout.place)];
        self.ring.run(watch, |transport, at, watch| {
            ring::broadcast(transport, at, mine, node, watch)
        })?;
        if here {
            return Ok(());
        }
        self.node.run(watch, |shared, at, watch| {
            ring::all_gather(shared, at, data, part, watch)
        })
    }

    /// After [`enter`](Self::enter) all of this node have come. When the ring has gone round, this is so on all nodes.
    fn barrier(&mut self, watch: &Watch) -> Result<(), Failure> {
        let mut bytes = vec![0; self.layout.nodes()];
        self.ring.run(watch, |transport, at, watch| {
            ring::all_gather(transport, at, &mut bytes[..], |node| node..node + 1, watch)
        })
    }

    /// Payloads lie in the order of places, and in each place of nodes: what a ring gathers is in one piece.
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
        self.gather(bytemuck::cast_slice_mut(&mut lengths), word, watch)?;
        let ranges = one_after_the_other(&lengths)?;
        let mut data = vec![0; ranges.last().map_or(0, |range| range.end)];
        data[ranges[own].clone()].copy_from_slice(payload);
        self.gather(&mut data, |index| ranges[index].clone(), watch)?;
        let mut all = vec![Vec::new(); nodes * places];
        for place in 0..places {
            let ranks = self.layout.in_place(place);
            for (rank, range) in ranks.into_iter().zip(&ranges[place * nodes..]) {
                all[rank] = data[range.clone()].to_vec();
            }
        }
        Ok(all)
    }

    /// Gathers what is of every rank in the range that `of` has for its number, which counts nodes first.
    fn gather(
        &mut self,
        data: &mut [u8],
        of: impl Fn(usize) -> Range<usize>,
        watch: &Watch,
    ) -> Result<(), Failure> {
        let (nodes, first) = (self.layout.nodes(), self.layout.place * self.layout.nodes());
        self.ring.run(watch, |transport, at, watch| {
            ring::all_gather(transport, at, &mut data[..], |node| of(first + node), watch)
        })?;
        let column = |place: usize| of(place * nodes).start..of(place * nodes + nodes - 1).end;
        self.node.run(watch, |shared, at, watch| {
            ring::all_gather(shared, at, data, column, watch)
        })
    }
}

impl Within {
    /// Does what names ranks by their places on the node.
    fn run<R>(
        &mut self,
        watch: &Watch,
        work: impl FnOnce(&mut SharedMemory, Neighbours, &Watch) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let result = work(&mut self.shared, self.at, &watch.among(&self.ranks));
        result.map_err(|failure| failure.renamed(|place| self.ranks[place]))
    }

    fn enter(&mut self, what: &Descriptor, watch: &Watch) -> Result<Entered, Failure> {
        self.run(watch, |shared, _, watch| {
            Ok(shared.enter(what.encode(), watch)?)
        })
    }

    fn finish(&mut self, watch: &Watch) -> Result<(), Failure> {
        self.run(watch, |shared, _, watch| Ok(shared.finish(watch)?))
    }
}

impl Across {
    /// Does what names ranks by their nodes.
    fn run<R>(
        &mut self,
        watch: &Watch,
        work: impl FnOnce(&mut dyn Transport, Neighbours, &Watch) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let result = work(self.transport.as_mut(), self.at, &watch.among(&self.ranks));
        result.map_err(|failure| failure.renamed(|node| self.ranks[node]))
    }
}

/// In which order the elements of all ranks are added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    /// That of the ring through all ranks, which has them on a node after each other.
    Ring,
    /// Those of a node first.
    NodeFirst,
}

/// Which ranks' elements a sum gets when it comes to their node, by their places there, in order.
struct Parts {
    order: Order,
    first: Vec<usize>,
    middle: Vec<usize>,
    last: Vec<usize>,
}

impl Parts {
    /// In the ring of the ranks in place `place` of `places`.
    fn new(order: Order, place: usize, places: usize) -> Self {
        let all: Vec<usize> = match order {
            Order::Ring => (0..places).collect(),
            Order::NodeFirst => summands(place, places).collect(),
        };
        let begins_where_it_ends = order == Order::Ring && place + 1 < places;
        let (first, last) = match begins_where_it_ends {
            true => ((place + 1..places).collect(), (0..=place).collect()),
            false => (all.clone(), all.clone()),
        };
        Self {
            order,
            first,
            middle: all,
            last,
        }
    }

    fn at(&self, visit: Visit) -> &[usize] {
        match visit {
            Visit::First => &self.first,
            Visit::Middle => &self.middle,
            Visit::Last => &self.last,
        }
    }
}

/// What the ranks of a node have in a bucket.
struct Share<'a> {
    bucket: Opened<'a>,
    parts: Parts,
    dtype: DType,
    op: ReduceOp,
    /// The beginning of a sum: the bytes of it that were made last, and what is left to be made.
    head: Head,
    /// A piece of a sum.
    sum: Buffer,
}

struct Head {
    piece: Buffer,
    /// Which bytes these are.
    made: Range<usize>,
    end: usize,
}

impl<'a> Share<'a> {
    fn new(bucket: Opened<'a>, parts: Parts, (dtype, op): (DType, ReduceOp)) -> Self {
        let op = match op {
            // It is divided when it is complete.
            ReduceOp::Mean => ReduceOp::Sum,
            other => other,
        };
        Self {
            bucket,
            parts,
            dtype,
            op,
            head: Head {
                piece: Buffer::zeroed(DType::U8, 0),
                made: 0..0,
                end: 0,
            },
            sum: Buffer::zeroed(DType::U8, 0),
        }
    }

    /// Puts what is added to the bytes `place` into `self.sum`, after `part`, if there is one.
    fn add_up(&mut self, place: &Range<usize>, part: Option<&[u8]>, visit: Visit) {
        if self.sum.len() < place.len() {
            self.sum = Buffer::recycled(DType::U8, place.len());
        }
        let sum = &mut self.sum.bytes_mut()[..place.len()];
        let own = self.bucket.parts(place, self.parts.at(visit));
        let one_by_one = self.parts.order == Order::Ring;
        let before = part.filter(|_| one_by_one);
        let parts: Vec<&[u8]> = before.into_iter().chain(own).collect();
        reduce::into(self.dtype, self.op, &parts, sum);
        if let Some(part) = part.filter(|_| !one_by_one) {
            reduce::accumulate(self.dtype, self.op, sum, part);
        }
    }
}

impl Contribution for Share<'_> {
    fn bytes(&self, place: Range<usize>) -> &[u8] {
        self.bucket.bytes(place)
    }

    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8] {
        self.bucket.bytes_mut(place)
    }

    fn begins_where_it_ends(&self) -> bool {
        self.parts.first.len() < self.parts.middle.len()
    }

    fn begin(&mut self, place: Range<usize>) {
        self.head = Head {
            piece: Buffer::recycled(DType::U8, place.len().min(SEGMENT)),
            made: place.start..place.start,
            end: place.end,
        };
    }

    fn head(&mut self, place: Range<usize>) -> &[u8] {
        let head = &mut self.head;
        if place.start >= head.made.end {
            // Whole elements, of which some may have been sent in part.
            let start = head.made.end;
            head.made = start..(start + SEGMENT).min(head.end);
            let own = self.bucket.parts(&head.made, self.parts.at(Visit::First));
            let piece = &mut head.piece.bytes_mut()[..head.made.len()];
            reduce::into(self.dtype, self.op, &own, piece);
        }
        let end = place.end.min(head.made.end);
        &head.piece.bytes()[place.start - head.made.start..end - head.made.start]
    }

    fn share(&mut self, place: Range<usize>, visit: Visit) -> &[u8] {
        self.add_up(&place, None, visit);
        &self.sum.bytes()[..place.len()]
    }

    fn add(&mut self, place: Range<usize>, part: &[u8], visit: Visit, _: Reduction) {
        self.add_up(&place, Some(part), visit);
        let sum = &self.sum.bytes()[..place.len()];
        self.bucket.bytes_mut(place).copy_from_slice(sum);
    }

    fn hand_out(&mut self, place: Range<usize>) {
        self.bucket.hand_out(place);
    }
}

/// Sums of halves are taken in `f32`, and rounded once.
fn is_sum_of_halves(what: &Descriptor) -> bool {
    what.op.is_some() && matches!(what.dtype, DType::F16 | DType::BF16)
}

/// How private memory goes through the stage: in every round a slot of it for each rank's shard.
struct Staging<'a> {
    what: &'a Descriptor,
    /// Of the elements in the stage.
    dtype: DType,
    /// In elements.
    shards: Vec<Range<usize>>,
    /// Bytes of a slot.
    slot: usize,
    /// This rank.
    rank: usize,
}

impl Staging<'_> {
    fn rounds(&self) -> usize {
        let longest = self.shards.iter().map(Range::len).max().unwrap_or(0);
        longest.div_ceil(self.slot / self.dtype.size())
    }

    /// The elements of a rank's shard that are in a round, in bytes of the private memory.
    fn piece(&self, round: usize, rank: usize) -> Range<usize> {
        let (shard, count) = (&self.shards[rank], self.slot / self.dtype.size());
        let start = (shard.start + round * count).min(shard.end);
        let (end, element) = ((start + count).min(shard.end), self.what.dtype.size());
        start * element..end * element
    }

    /// Where they are on the stage, in bytes.
    fn place(&self, round: usize, rank: usize) -> Range<usize> {
        let start = rank * self.slot;
        let elements = self.piece(round, rank).len() / self.what.dtype.size();
        start..start + elements * self.dtype.size()
    }

    fn fill(&self, round: usize, data: &[u8], stage: &mut [u8]) {
        let gathers = self.what.kind == Kind::AllGather;
        let ranks = (0..self.shards.len()).filter(|rank| !gathers || *rank == self.rank);
        for rank in ranks {
            let from = &data[self.piece(round, rank)];
            let to = &mut stage[self.place(round, rank)];
            if to.len() == from.len() {
                to.copy_from_slice(from);
            } else if let Some(wide) = reduce::widen(self.what.dtype, from) {
                to.copy_from_slice(bytemuck::cast_slice(&wide));
            }
        }
    }

    fn take(&self, round: usize, stage: &[u8], data: &mut [u8]) {
        let ranks = (0..self.shards.len()).filter(|rank| match self.what.kind {
            Kind::ReduceScatter => *rank == self.rank,
            Kind::AllGather => *rank != self.rank,
            _ => true,
        });
        for rank in ranks {
            let from = &stage[self.place(round, rank)];
            let to = &mut data[self.piece(round, rank)];
            if from.len() == to.len() {
                to.copy_from_slice(from);
            } else {
                reduce::narrow(self.what.dtype, bytemuck::cast_slice(from), to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &str) -> Vec<Vec<u8>> {
        names.bytes().map(|name| vec![name]).collect()
    }

    #[test]
    fn ranks_are_found_wherever_they_are() {
        let layout = Layout::of(&hosts("baabba"), 4).unwrap();
        assert_eq!(layout.mates(), [0, 3, 4]);
        assert_eq!(layout.counterparts(), [4, 5]);
        assert_eq!(layout.find(2), Some((1, 1)));
        assert_eq!(layout.find(6), None);
        assert!(!layout.is_in_order());
        assert!(Layout::of(&hosts("bbbaaa"), 0).unwrap().is_in_order());
    }

    #[test]
    fn a_sum_gets_every_part_once() {
        for order in [Order::Ring, Order::NodeFirst] {
            for (place, places) in [(0, 2), (1, 2), (0, 5), (2, 5), (4, 5)] {
                let parts = Parts::new(order, place, places);
                let twice = parts.first.len() < places;
                assert_eq!(twice, order == Order::Ring && place + 1 < places);
                let mut own = parts.last.clone();
                if twice {
                    own.extend(&parts.first);
                }
                for mut all in [own, parts.middle] {
                    all.sort_unstable();
                    assert!(all.into_iter().eq(0..places));
                }
            }
        }
    }

    #[test]
    fn one_ring_is_left_where_nodes_have_one_rank_or_not_as_many() {
        for flat in ["aaaa", "abcd", "aab", "aabbc", ""] {
            assert!(Layout::of(&hosts(flat), 0).is_none(), "{flat}");
        }
    }
}
