//! Ring algorithms over byte streams: each rank sends to the next and receives from the one
//! before, both at once, and every byte crosses each link as rarely as it can (Patarasuk and Yuan,
//! "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
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
const SEGMENT: usize = 256 * 1024;

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
    pub send: Vec<Range<usize>>,
    pub receive: Vec<(Range<usize>, Arrival)>,
    first: usize,
}

/// What travels.
pub(super) trait Load {
    /// The bytes that are sent.
    fn bytes(&self) -> &[u8];

    /// The same, to be received into.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Adds this rank's elements to a partial sum that has arrived, so that the bytes `place` are the sum; the `last`
    /// one is complete.
    fn add(&mut self, place: Range<usize>, part: &[u8], is_last: bool);
}

/// Elements as they are.
struct Plain<'a> {
    data: &'a mut [u8],
    dtype: DType,
    op: ReduceOp,
    ranks: usize,
}

impl Load for Plain<'_> {
    fn bytes(&self) -> &[u8] {
        self.data
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.data
    }

    fn add(&mut self, place: Range<usize>, part: &[u8], is_last: bool) {
        let here = &mut self.data[place];
        reduce::accumulate(self.dtype, self.op, here, part);
        if is_last && self.op == ReduceOp::Mean {
            reduce::divide(self.dtype, here, self.ranks);
        }
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
    let owned = |rank| chunk(data.len(), dtype, &Cuts::Even, at.size, rank);
    let mut route = reducing(at, owned);
    let gather = gathering(at, owned);
    route.send.extend(gather.send);
    route.receive.extend(gather.receive);
    run_plain(transport, at, data, route, (dtype, op), watch)
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
    let route = reducing(at, |rank| chunk(len, dtype, cuts, at.size, rank));
    run_plain(transport, at, data, route, (dtype, op), watch)
}

/// Fills every rank's range of `data`, given by `owned` in bytes, with what that rank has there.
pub(super) fn all_gather(
    transport: &mut dyn Transport,
    at: Neighbours,
    data: &mut [u8],
    owned: impl Fn(usize) -> Range<usize>,
    watch: &Watch,
) -> Result<(), Failure> {
    let route = gathering(at, owned);
    run_plain(
        transport,
        at,
        data,
        route,
        (DType::U8, ReduceOp::Sum),
        watch,
    )
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
    };
    run_plain(
        transport,
        at,
        data,
        route,
        (DType::U8, ReduceOp::Sum),
        watch,
    )
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

/// Each chunk starts at the rank after its owner and arrives, summed up, at its owner.
pub(super) fn reducing(at: Neighbours, owned: impl Fn(usize) -> Range<usize>) -> Route {
    let chunk = |back: usize| owned(at.back(back));
    let hops = at.size - 1;
    let arrival = |hop: usize| {
        if hop == hops {
            Arrival::ReduceLast
        } else {
            Arrival::Reduce
        }
    };
    Route {
        send: (1..=hops).map(&chunk).collect(),
        receive: (1..=hops)
            .map(|hop| (chunk(hop + 1), arrival(hop)))
            .collect(),
        first: if hops == 0 { 0 } else { chunk(1).len() },
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
    }
}

fn run_plain(
    transport: &mut dyn Transport,
    at: Neighbours,
    data: &mut [u8],
    route: Route,
    (dtype, op): (DType, ReduceOp),
    watch: &Watch,
) -> Result<(), Failure> {
    let ranks = at.size;
    let mut load = Plain {
        data,
        dtype,
        op,
        ranks,
    };
    run(transport, at, &mut load, route, watch)
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
        at: 0,
        sent: 0,
        ready: route.first,
    };
    let mut incoming = Incoming::new(route.receive);
    loop {
        let sent = outgoing.go_on(transport, at, load.bytes())?;
        let received = incoming.go_on(transport, at, load)?;
        outgoing.ready += received.usable;
        if outgoing.is_done() && incoming.is_done() && transport.is_drained()? {
            return Ok(());
        }
        if sent + received.bytes > 0 {
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
        data: &[u8],
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
        let sent = transport.try_send(at.next(), &data[start..start + count])?;
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
            scratch: Buffer::zeroed(DType::U8, scratch),
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
            let here = &mut load.bytes_mut()[place];
            let bytes = transport.try_recv(at.previous(), here)?;
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
