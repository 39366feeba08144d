//! Ring algorithms over byte streams: each rank sends to the next and receives from the previous,
//! both at once. Every byte crosses each link as rarely as possible (Patarasuk and Yuan, "Bandwidth
//! optimal all-reduce algorithms for clusters of workstations", 2009).
//!
//! The members of a ring are the ranks of a group, or its nodes (see
//! [`hierarchical`](super::hierarchical)).
//!
//! Each collective is one pipeline. After its first chunk a rank sends what it has just received,
//! so it can forward the first half of a chunk while the second is in flight. Reduce-scatter and
//! all-gather overlap, and latency is paid once per hop, not once per chunk.

use std::ops::Range;

use super::{Failure, Neighbours, Ring};
use crate::buffer::Buffer;
use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::Cuts;
use crate::transport::Interest;

/// Bytes that are received before they are reduced and forwarded: large enough to make calls cheap,
/// small enough for the L2 cache.
pub(super) const SEGMENT: usize = 256 * 1024;

/// Processing of a chunk as it arrives.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Arrival {
    /// It is the final value.
    Copy,
    /// It is a partial sum, to which this rank's elements are added.
    Reduce,
    /// As `Reduce`; the sum is then complete.
    ReduceLast,
}

/// One rank's part in a ring collective: the byte ranges of its load that it sends and receives, in
/// order. The first `first` bytes to send are there from the start; the rest arrives first.
pub(super) struct Route {
    send: Vec<Range<usize>>,
    receive: Vec<(Range<usize>, Arrival)>,
    first: usize,
    /// Whether the first bytes to send begin a sum.
    begins: bool,
}

impl Route {
    /// The first range to send.
    pub fn head(&self) -> Range<usize> {
        self.send.first().cloned().unwrap_or_default()
    }

    /// Appends `next`, which first sends what this route receives last.
    pub fn go_on(&mut self, next: Self) {
        self.send.extend(next.send);
        self.receive.extend(next.receive);
    }
}

/// The data that travels.
pub(super) trait Load {
    /// The bytes `place`, to be sent.
    fn bytes(&self, place: Range<usize>) -> &[u8];

    /// The bytes `place` of a sum that begins here, or the first of them, to be sent. Places are
    /// consecutive.
    fn head(&mut self, place: Range<usize>) -> &[u8] {
        self.bytes(place)
    }

    /// The bytes `place`, to be received into.
    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8];

    /// Adds this member's elements to the partial sum `part`; the result goes into the bytes
    /// `place`. `is_last` means that the sum is then complete.
    fn add(&mut self, place: Range<usize>, part: &[u8], is_last: bool);

    /// Called when final values have been received into the bytes `place`.
    fn arrived(&mut self, place: Range<usize>) {
        let _ = place;
    }
}

/// Computes a result from elements.
#[derive(Clone, Copy)]
pub(super) struct Reduction {
    pub dtype: DType,
    pub op: ReduceOp,
    /// Number of ranks.
    pub ranks: usize,
}

impl Reduction {
    /// The reduction over all members of a ring of ranks.
    pub(super) fn over(at: Neighbours, dtype: DType, op: ReduceOp) -> Self {
        let ranks = at.size;
        Self { dtype, op, ranks }
    }

    /// Turns complete sums into the result.
    pub(super) fn complete(&self, sums: &mut [u8]) {
        if self.op == ReduceOp::Mean {
            reduce::divide(self.dtype, sums, self.ranks);
        }
    }
}

/// Position of a member on a sum's path.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Visit {
    /// The sum begins here.
    First,
    /// The sum passes.
    Middle,
    /// The sum is complete here.
    Last,
}

/// The elements of a member of the ring: of a rank, or of all ranks of a node.
pub(super) trait Contribution {
    /// The bytes `place`.
    fn bytes(&self, place: Range<usize>) -> &[u8];

    /// The bytes `place`, for writing.
    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8];

    /// Whether a sum begins at the member where it ends. It then visits that member twice, and gets
    /// a part of its elements each time.
    fn begins_where_it_ends(&self) -> bool {
        false
    }

    /// Called when the sum of the bytes `place` begins here.
    fn begin(&mut self, place: Range<usize>) {
        let _ = place;
    }

    /// The bytes `place` of a sum that begins here, or the first of them. Places are consecutive.
    fn head(&mut self, place: Range<usize>) -> &[u8] {
        self.bytes(place)
    }

    /// The total that this member adds to the sum of the bytes `place`.
    fn share(&mut self, place: Range<usize>, visit: Visit) -> &[u8] {
        let _ = visit;
        self.bytes(place)
    }

    /// Adds this member's share to the partial sum `part`; the result goes into the bytes `place`.
    fn add(&mut self, place: Range<usize>, part: &[u8], visit: Visit, reduction: Reduction) {
        let _ = visit;
        reduce::accumulate(reduction.dtype, reduction.op, self.bytes_mut(place), part);
    }

    /// Called when the bytes `place` hold the result.
    fn hand_out(&mut self, place: Range<usize>) {
        let _ = place;
    }

    /// Number of separate summands, if they must not be added to each other first.
    fn summands(&self) -> usize {
        1
    }

    /// The bytes `place` of one summand.
    fn summand(&mut self, index: usize, place: Range<usize>) -> &[u8] {
        let _ = index;
        self.bytes(place)
    }

    /// The summands, in order, that a sum gets on this visit.
    fn summands_at(&self, visit: Visit) -> &[usize] {
        let _ = visit;
        &[0]
    }
}

impl Contribution for &mut [u8] {
    fn bytes(&self, place: Range<usize>) -> &[u8] {
        &self[place]
    }

    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8] {
        &mut self[place]
    }
}

/// Uncompressed elements.
struct Plain<C> {
    own: C,
    reduction: Reduction,
}

impl<C: Contribution> Load for Plain<C> {
    fn bytes(&self, place: Range<usize>) -> &[u8] {
        self.own.bytes(place)
    }

    fn head(&mut self, place: Range<usize>) -> &[u8] {
        self.own.head(place)
    }

    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8] {
        self.own.bytes_mut(place)
    }

    fn add(&mut self, place: Range<usize>, part: &[u8], is_last: bool) {
        let reduction = self.reduction;
        if !is_last {
            return self.own.add(place, part, Visit::Middle, reduction);
        }
        self.own.add(place.clone(), part, Visit::Last, reduction);
        reduction.complete(self.own.bytes_mut(place.clone()));
        self.own.hand_out(place);
    }

    fn arrived(&mut self, place: Range<usize>) {
        self.own.hand_out(place);
    }
}

/// Reduces `data` over all ranks, in place.
pub(super) fn all_reduce(
    ring: &mut Ring<'_>,
    data: &mut [u8],
    (dtype, op): (DType, ReduceOp),
) -> Result<(), Failure> {
    let at = ring.at;
    if let Some(mut sums) = reduce::widen(dtype, data) {
        // Partial sums travel in f32; otherwise every hop would round them.
        let bytes = bytemuck::cast_slice_mut(&mut sums);
        all_reduce(ring, bytes, (DType::F32, op))?;
        reduce::narrow(dtype, &sums, data);
        return Ok(());
    }
    let len = data.len();
    let owned = |rank| chunk(len, dtype, &Cuts::Even, at.size, rank);
    let reduction = Reduction::over(at, dtype, op);
    reduce_all(ring, (data, reduction), owned)
}

/// Reduces `data` over all ranks. Afterwards only this rank's shard is valid.
pub(super) fn reduce_scatter(
    ring: &mut Ring<'_>,
    data: &mut [u8],
    (dtype, op): (DType, ReduceOp),
    cuts: &Cuts,
) -> Result<(), Failure> {
    let at = ring.at;
    if let Some(mut sums) = reduce::widen(dtype, data) {
        let bytes = bytemuck::cast_slice_mut(&mut sums);
        reduce_scatter(ring, bytes, (DType::F32, op), cuts)?;
        reduce::narrow(dtype, &sums, data);
        return Ok(());
    }
    let len = data.len();
    let owned = |rank| chunk(len, dtype, cuts, at.size, rank);
    let reduction = Reduction::over(at, dtype, op);
    reduce_owned(ring, (data, reduction), owned)
}

/// Reduces the elements of all members; all get the result. Member `i` reduces the bytes
/// `owned(i)`.
pub(super) fn reduce_all(
    ring: &mut Ring<'_>,
    (mut own, reduction): (impl Contribution, Reduction),
    owned: impl Fn(usize) -> Range<usize>,
) -> Result<(), Failure> {
    let mut route = reducing(ring.at, own.begins_where_it_ends(), &owned);
    own.begin(route.head());
    route.go_on(gathering(ring.at, owned));
    run(ring, &mut Plain { own, reduction }, route)
}

/// Reduces the elements of all members; member `i` gets the bytes `owned(i)` of the result.
pub(super) fn reduce_owned(
    ring: &mut Ring<'_>,
    (mut own, reduction): (impl Contribution, Reduction),
    owned: impl Fn(usize) -> Range<usize>,
) -> Result<(), Failure> {
    let route = reducing(ring.at, own.begins_where_it_ends(), owned);
    own.begin(route.head());
    run(ring, &mut Plain { own, reduction }, route)
}

/// Sends the bytes `owned(i)` of each member `i` to all members.
pub(super) fn all_gather(
    ring: &mut Ring<'_>,
    mut own: impl Contribution,
    owned: impl Fn(usize) -> Range<usize>,
) -> Result<(), Failure> {
    let route = gathering(ring.at, owned);
    own.hand_out(route.head());
    run_copying(ring, own, route)
}

/// Copies `data` from `root` to all ranks, along the ring.
pub(super) fn broadcast(ring: &mut Ring<'_>, data: &mut [u8], root: usize) -> Result<(), Failure> {
    let at = ring.at;
    let whole = 0..data.len();
    let sends = at.next() != root;
    let receives = at.rank != root;
    let route = Route {
        send: if sends { vec![whole.clone()] } else { vec![] },
        receive: if receives {
            vec![(whole, Arrival::Copy)]
        } else {
            vec![]
        },
        first: if receives { 0 } else { data.len() },
        begins: false,
    };
    run_copying(ring, data, route)
}

/// Bytes of rank `rank`'s shard.
pub(super) fn chunk(
    bytes: usize,
    dtype: DType,
    cuts: &Cuts,
    size: usize,
    rank: usize,
) -> Range<usize> {
    let range = cuts.shard(bytes / dtype.size(), size, rank);
    range.start * dtype.size()..range.end * dtype.size()
}

/// The route of a reduction. Each chunk starts at the member after its owner, or at its owner, and
/// arrives complete at its owner.
pub(super) fn reducing(
    at: Neighbours,
    at_owner: bool,
    owned: impl Fn(usize) -> Range<usize>,
) -> Route {
    let chunk = |back: usize| owned(at.back(back % at.size));
    let hops = at.size - usize::from(!at_owner);
    let start = usize::from(!at_owner);
    let arrival = |hop: usize| {
        if hop == hops {
            Arrival::ReduceLast
        } else {
            Arrival::Reduce
        }
    };
    Route {
        send: (start..start + hops).map(&chunk).collect(),
        receive: (1..=hops)
            .map(|hop| (chunk(start + hop), arrival(hop)))
            .collect(),
        first: if hops == 0 { 0 } else { chunk(start).len() },
        begins: true,
    }
}

/// The route of a gather. Each chunk starts at its owner.
pub(super) fn gathering(at: Neighbours, owned: impl Fn(usize) -> Range<usize>) -> Route {
    let chunk = |back: usize| owned(at.back(back));
    let hops = at.size - 1;
    Route {
        send: (0..hops).map(chunk).collect(),
        receive: (1..=hops).map(|hop| (chunk(hop), Arrival::Copy)).collect(),
        first: if hops == 0 { 0 } else { chunk(0).len() },
        begins: false,
    }
}

/// Runs a route without reductions.
fn run_copying(ring: &mut Ring<'_>, own: impl Contribution, route: Route) -> Result<(), Failure> {
    let reduction = Reduction::over(ring.at, DType::U8, ReduceOp::Sum);
    run(ring, &mut Plain { own, reduction }, route)
}

/// Runs a route to its end.
pub(super) fn run(ring: &mut Ring<'_>, load: &mut impl Load, route: Route) -> Result<(), Failure> {
    let at = ring.at;
    let mut outgoing = Outgoing {
        ranges: route.send,
        begins: route.begins,
        at: 0,
        sent: 0,
        ready: route.first,
    };
    let mut incoming = Incoming::new(route.receive);
    loop {
        let sent = outgoing.go_on(ring, load)?;
        let received = incoming.go_on(ring, load)?;
        outgoing.ready += received.usable;
        if outgoing.is_done() && incoming.is_done() && ring.transport.is_drained()? {
            return Ok(());
        }
        if sent + received.bytes > 0 {
            ring.watch.moved();
            continue;
        }
        let interest = Interest {
            send_to: outgoing.is_ready().then_some(at.next()),
            recv_from: (!incoming.is_done()).then_some(at.previous()),
        };
        // Everything is received and nothing is left to send, but sent bytes are still in flight.
        let peer = interest.recv_from.or(interest.send_to).unwrap_or(at.next());
        let limit = ring
            .watch
            .slice(peer)
            .map_err(|interrupt| Failure::Waiting {
                rank: peer,
                interrupt,
            })?;
        ring.transport.wait(interest, limit)?;
    }
}

/// The sending side of a route.
struct Outgoing {
    ranges: Vec<Range<usize>>,
    /// Whether the first range begins a sum.
    begins: bool,
    /// Index of the range being sent; `sent` bytes of it are.
    at: usize,
    sent: usize,
    /// Number of bytes that may be sent from here.
    ready: usize,
}

impl Outgoing {
    fn go_on(&mut self, ring: &mut Ring<'_>, load: &mut impl Load) -> Result<usize, Failure> {
        // A range may be empty if there are more ranks than elements.
        while self
            .ranges
            .get(self.at)
            .is_some_and(|range| range.len() == self.sent)
        {
            (self.at, self.sent) = (self.at + 1, 0);
        }
        let Some(range) = self.ranges.get(self.at) else {
            return Ok(0);
        };
        // One segment at a time: bytes that fill the whole stream at once leave the cache before
        // the peer reads them.
        let start = range.start + self.sent;
        let count = (range.end - start).min(self.ready).min(SEGMENT);
        if count == 0 {
            return Ok(0);
        }
        let place = start..start + count;
        let bytes = match self.begins && self.at == 0 {
            true => load.head(place),
            false => load.bytes(place),
        };
        let sent = ring.transport.try_send(ring.at.next(), bytes)?;
        self.sent += sent;
        self.ready -= sent;
        Ok(sent)
    }

    fn is_ready(&self) -> bool {
        self.ready > 0 && !self.is_done()
    }

    fn is_done(&self) -> bool {
        self.at == self.ranges.len()
    }
}

/// The receiving side of a route.
struct Incoming {
    ranges: Vec<(Range<usize>, Arrival)>,
    /// Index of the range being received; `taken` bytes of it are processed.
    at: usize,
    taken: usize,
    /// Partial sums that have arrived and are not added yet.
    scratch: Buffer,
    held: usize,
}

/// Result of one round of receiving: bytes from the stream, and bytes that may be sent on.
#[derive(Clone, Copy, Default)]
struct Received {
    bytes: usize,
    usable: usize,
}

impl Incoming {
    fn new(ranges: Vec<(Range<usize>, Arrival)>) -> Self {
        let reduced = ranges
            .iter()
            .filter(|(_, arrival)| *arrival != Arrival::Copy);
        let scratch = reduced
            .map(|(range, _)| range.len())
            .max()
            .unwrap_or(0)
            .min(SEGMENT);
        let mut incoming = Self {
            ranges,
            at: 0,
            taken: 0,
            scratch: Buffer::recycled(DType::U8, scratch),
            held: 0,
        };
        incoming.skip_complete();
        incoming
    }

    fn skip_complete(&mut self) {
        while self
            .ranges
            .get(self.at)
            .is_some_and(|(range, _)| range.len() == self.taken)
        {
            (self.at, self.taken) = (self.at + 1, 0);
        }
    }

    fn go_on(&mut self, ring: &mut Ring<'_>, load: &mut impl Load) -> Result<Received, Failure> {
        let nothing = Received::default();
        let Some((range, arrival)) = self.ranges.get(self.at).cloned() else {
            return Ok(nothing);
        };
        // One segment at a time, so that sending goes on in between.
        let start = range.start + self.taken;
        let count = (range.end - start).min(SEGMENT);
        let place = start..start + count;
        if arrival == Arrival::Copy {
            let here = load.bytes_mut(place);
            let bytes = ring.transport.try_recv(ring.at.previous(), here)?;
            load.arrived(start..start + bytes);
            self.take(bytes);
            return Ok(Received {
                bytes,
                usable: bytes,
            });
        }
        let scratch = &mut self.scratch.bytes_mut()[..count];
        let bytes = ring
            .transport
            .try_recv(ring.at.previous(), &mut scratch[self.held..])?;
        self.held += bytes;
        if self.held < count {
            return Ok(Received { bytes, ..nothing });
        }
        load.add(place, scratch, arrival == Arrival::ReduceLast);
        self.held = 0;
        self.take(count);
        Ok(Received {
            bytes,
            usable: count,
        })
    }

    fn take(&mut self, bytes: usize) {
        self.taken += bytes;
        self.skip_complete();
    }

    fn is_done(&self) -> bool {
        self.at == self.ranges.len()
    }
}
