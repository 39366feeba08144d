//! Ring algorithms over byte streams: each rank sends to the next and receives from the one
//! before, both at once, and every byte crosses each link as rarely as it can (Patarasuk and Yuan,
//! "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
//!
//! The members of a ring are the ranks of a group, or its nodes (see
//! [`hierarchical`](super::hierarchical)).
//!
//! All of them are one pipeline. What a rank sends after its first chunk is what it received just
//! before, so it may forward the first half of a chunk while the second is still on its way:
//! reduce-scatter and all-gather overlap, and latency is paid once per hop, not once per chunk.

use std::ops::Range;

use super::{Failure, Neighbours};
use crate::buffer::Buffer;
use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::Cuts;
use crate::transport::{Interest, Transport, Watch};

/// Bytes that are received before they are reduced, and then forwarded: large enough that calls
/// cost nothing, small enough to stay in the second-level cache.
pub(super) const SEGMENT: usize = 256 * 1024;

/// What happens to a chunk as it arrives.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Arrival {
    /// It is the final value.
    Copy,
    /// It is a partial sum to which this rank's elements are added.
    Reduce,
    /// As `Reduce`, and the sum is then complete.
    ReduceLast,
}

/// One rank's part in a ring collective: what it sends and what it receives, in order, as ranges
/// of bytes of its load. `first` bytes of the sending are there from the start; the rest is what
/// arrived before.
pub(super) struct Route {
    send: Vec<Range<usize>>,
    receive: Vec<(Range<usize>, Arrival)>,
    first: usize,
    /// Whether what is sent first is the beginning of a sum.
    begins: bool,
}

impl Route {
    /// What is sent first.
    pub fn head(&self) -> Range<usize> {
        self.send.first().cloned().unwrap_or_default()
    }

    /// Goes on with `next`, which sends first what this route receives last.
    pub fn go_on(&mut self, next: Self) {
        self.send.extend(next.send);
        self.receive.extend(next.receive);
    }
}

/// What travels.
pub(super) trait Load {
    /// The bytes `place`, to be sent.
    fn bytes(&self, place: Range<usize>) -> &[u8];

    /// Of the sum that begins here, the bytes `place`, to be sent, or the first of them. Places
    /// follow each other.
    fn head(&mut self, place: Range<usize>) -> &[u8] {
        self.bytes(place)
    }

    /// The bytes `place`, to be received into.
    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8];

    /// Adds the elements of this member of the ring to a partial sum that has arrived, so that the
    /// bytes `place` are the sum; the `last` one is complete.
    fn add(&mut self, place: Range<usize>, part: &[u8], is_last: bool);

    /// Final values have been received into the bytes `place`.
    fn arrived(&mut self, place: Range<usize>) {
        let _ = place;
    }
}

/// How elements become a result.
#[derive(Clone, Copy)]
pub(super) struct Reduction {
    pub dtype: DType,
    pub op: ReduceOp,
    /// Of how many ranks.
    pub ranks: usize,
}

impl Reduction {
    /// Of all members of a ring of ranks.
    pub(super) fn over(at: Neighbours, dtype: DType, op: ReduceOp) -> Self {
        let ranks = at.size;
        Self { dtype, op, ranks }
    }

    /// Makes complete sums the result.
    pub(super) fn complete(&self, sums: &mut [u8]) {
        if self.op == ReduceOp::Mean {
            reduce::divide(self.dtype, sums, self.ranks);
        }
    }
}

/// When a sum comes to a member of the ring.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Visit {
    /// It begins there.
    First,
    /// It passes by.
    Middle,
    /// It is complete then.
    Last,
}

/// What a member of the ring brings: the elements of a rank, or those of all ranks of a node.
pub(super) trait Contribution {
    /// The bytes `place`.
    fn bytes(&self, place: Range<usize>) -> &[u8];

    /// The same, to be written to.
    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8];

    /// Whether a sum begins at the member where it ends, and so comes there twice, with a part of
    /// the elements each time.
    fn begins_where_it_ends(&self) -> bool {
        false
    }

    /// A sum begins here, that of the bytes `place`.
    fn begin(&mut self, place: Range<usize>) {
        let _ = place;
    }

    /// Of the sum that begins here, the bytes `place`, or the first of them. Places follow each
    /// other.
    fn head(&mut self, place: Range<usize>) -> &[u8] {
        self.bytes(place)
    }

    /// What is added to the sum of the bytes `place`, added up.
    fn share(&mut self, place: Range<usize>, visit: Visit) -> &[u8] {
        let _ = visit;
        self.bytes(place)
    }

    /// Adds it to a partial sum, which the bytes `place` are then.
    fn add(&mut self, place: Range<usize>, part: &[u8], visit: Visit, reduction: Reduction) {
        let _ = visit;
        reduce::accumulate(reduction.dtype, reduction.op, self.bytes_mut(place), part);
    }

    /// The bytes `place` are the result.
    fn hand_out(&mut self, place: Range<usize>) {
        let _ = place;
    }

    /// How many summands it is, where they are not to be added to each other before the sum that
    /// they are part of.
    fn summands(&self) -> usize {
        1
    }

    /// One of them: the bytes `place`.
    fn summand(&mut self, index: usize, place: Range<usize>) -> &[u8] {
        let _ = index;
        self.bytes(place)
    }

    /// Which of them, in order, a sum gets when it comes to a member.
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

/// Elements as they are.
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
    transport: &mut dyn Transport,
    at: Neighbours,
    data: &mut [u8],
    (dtype, op): (DType, ReduceOp),
    watch: &Watch,
) -> Result<(), Failure> {
    if let Some(mut sums) = reduce::widen(dtype, data) {
        // Partial sums travel in f32, or they would be rounded at every hop.
        let bytes = bytemuck::cast_slice_mut(&mut sums);
        all_reduce(transport, at, bytes, (DType::F32, op), watch)?;
        reduce::narrow(dtype, &sums, data);
        return Ok(());
    }
    let len = data.len();
    let owned = |rank| chunk(len, dtype, &Cuts::Even, at.size, rank);
    let reduction = Reduction::over(at, dtype, op);
    reduce_all(transport, at, (data, reduction), owned, watch)
}

/// Reduces `data` over all ranks so that this rank's shard of it is right; the rest is undefined.
pub(super) fn reduce_scatter(
    transport: &mut dyn Transport,
    at: Neighbours,
    data: &mut [u8],
    (dtype, op): (DType, ReduceOp),
    cuts: &Cuts,
    watch: &Watch,
) -> Result<(), Failure> {
    if let Some(mut sums) = reduce::widen(dtype, data) {
        let bytes = bytemuck::cast_slice_mut(&mut sums);
        reduce_scatter(transport, at, bytes, (DType::F32, op), cuts, watch)?;
        reduce::narrow(dtype, &sums, data);
        return Ok(());
    }
    let len = data.len();
    let owned = |rank| chunk(len, dtype, cuts, at.size, rank);
    let reduction = Reduction::over(at, dtype, op);
    reduce_owned(transport, at, (data, reduction), owned, watch)
}

/// Reduces what all members bring, so that all have the result. Member `i` reduces the bytes
/// `owned(i)`.
pub(super) fn reduce_all(
    transport: &mut dyn Transport,
    at: Neighbours,
    (mut own, reduction): (impl Contribution, Reduction),
    owned: impl Fn(usize) -> Range<usize>,
    watch: &Watch,
) -> Result<(), Failure> {
    let mut route = reducing(at, own.begins_where_it_ends(), &owned);
    own.begin(route.head());
    route.go_on(gathering(at, owned));
    run(transport, at, &mut Plain { own, reduction }, route, watch)
}

/// Reduces what all members bring, so that member `i` has the result's bytes `owned(i)`.
pub(super) fn reduce_owned(
    transport: &mut dyn Transport,
    at: Neighbours,
    (mut own, reduction): (impl Contribution, Reduction),
    owned: impl Fn(usize) -> Range<usize>,
    watch: &Watch,
) -> Result<(), Failure> {
    let route = reducing(at, own.begins_where_it_ends(), owned);
    own.begin(route.head());
    run(transport, at, &mut Plain { own, reduction }, route, watch)
}

/// Gives every member what each has in the bytes that `owned` says are its own.
pub(super) fn all_gather(
    transport: &mut dyn Transport,
    at: Neighbours,
    mut own: impl Contribution,
    owned: impl Fn(usize) -> Range<usize>,
    watch: &Watch,
) -> Result<(), Failure> {
    let route = gathering(at, owned);
    own.hand_out(route.head());
    run_copying(transport, at, own, route, watch)
}

/// Copies `data` from `root` to all ranks, along the ring.
pub(super) fn broadcast(
    transport: &mut dyn Transport,
    at: Neighbours,
    data: &mut [u8],
    root: usize,
    watch: &Watch,
) -> Result<(), Failure> {
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
    run_copying(transport, at, data, route, watch)
}

/// The bytes of rank `rank`'s shard.
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

/// Each chunk starts at the member after its owner, or at its owner, and arrives, summed up, at its
/// owner.
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

/// Each chunk starts at its owner.
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

/// Runs a route on which nothing is reduced.
fn run_copying(
    transport: &mut dyn Transport,
    at: Neighbours,
    own: impl Contribution,
    route: Route,
    watch: &Watch,
) -> Result<(), Failure> {
    let reduction = Reduction::over(at, DType::U8, ReduceOp::Sum);
    run(transport, at, &mut Plain { own, reduction }, route, watch)
}

/// Runs a route to its end.
pub(super) fn run(
    transport: &mut dyn Transport,
    at: Neighbours,
    load: &mut impl Load,
    route: Route,
    watch: &Watch,
) -> Result<(), Failure> {
    let mut outgoing = Outgoing {
        ranges: route.send,
        begins: route.begins,
        at: 0,
        sent: 0,
        ready: route.first,
    };
    let mut incoming = Incoming::new(route.receive);
    loop {
        let sent = outgoing.go_on(transport, at, load)?;
        let received = incoming.go_on(transport, at, load)?;
        outgoing.ready += received.usable;
        if outgoing.is_done() && incoming.is_done() && transport.is_drained()? {
            return Ok(());
        }
        if sent + received.bytes > 0 {
            watch.moved();
            continue;
        }
        let interest = Interest {
            send_to: outgoing.is_ready().then_some(at.next()),
            recv_from: (!incoming.is_done()).then_some(at.previous()),
        };
        // With nothing to send and everything received, what was sent is still on its way.
        let peer = interest.recv_from.or(interest.send_to).unwrap_or(at.next());
        let limit = watch.slice(peer).map_err(|interrupt| Failure::Waiting {
            rank: peer,
            interrupt,
        })?;
        transport.wait(interest, limit)?;
    }
}

/// The sending side of a route.
struct Outgoing {
    ranges: Vec<Range<usize>>,
    /// Whether the first of them is the beginning of a sum.
    begins: bool,
    /// The range being sent, and how much of it is.
    at: usize,
    sent: usize,
    /// How many bytes may be sent, from where it stands.
    ready: usize,
}

impl Outgoing {
    fn go_on(
        &mut self,
        transport: &mut dyn Transport,
        at: Neighbours,
        load: &mut impl Load,
    ) -> Result<usize, Failure> {
        // A range may be empty, where there are more ranks than elements.
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
        // One segment at a time: what fills the whole stream at once has left the cache before
        // the peer reads it.
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
        let sent = transport.try_send(at.next(), bytes)?;
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
    /// The range being received, and how much of it has been taken in.
    at: usize,
    taken: usize,
    /// Partial sums that have arrived and are not yet added.
    scratch: Buffer,
    held: usize,
}

/// What one round of receiving brought: bytes from the stream, and bytes that may be sent on.
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

    fn go_on(
        &mut self,
        transport: &mut dyn Transport,
        at: Neighbours,
        load: &mut impl Load,
    ) -> Result<Received, Failure> {
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
            let bytes = transport.try_recv(at.previous(), here)?;
            load.arrived(start..start + bytes);
            self.take(bytes);
            return Ok(Received {
                bytes,
                usable: bytes,
            });
        }
        let scratch = &mut self.scratch.bytes_mut()[..count];
        let bytes = transport.try_recv(at.previous(), &mut scratch[self.held..])?;
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
