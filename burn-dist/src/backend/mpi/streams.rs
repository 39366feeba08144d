//! Byte streams over MPI's point-to-point messages, so that the ring uses the network that the
//! library drives.
//!
//! Outgoing bytes are copied into a slot and travel from there. Receives are posted ahead of time
//! into slots of their own, in order, and MPI keeps messages between two ranks in order. Most
//! libraries move long messages only while the program calls them, so a collective is over when its
//! slots are empty, not when they are filled ([`Transport::is_drained`]).

use std::ffi::{c_int, c_void};
use std::thread;
use std::time::{Duration, Instant};

use mpi::ffi;

use super::call::{MpiError, check};
use super::request::Request;
use super::session::{Communicator, failure};
use crate::transport::{Interest, Meanwhile, Reach, Transport, TransportError};

const NAME: &str = "mpi";
/// Bytes of one message to or from a neighbour (a segment of the ring), and the number of messages
/// in flight in each direction.
const NEAR: (usize, usize) = (256 * 1024, 8);
/// The same for ranks further away, which exchange many small messages, mostly in one piece.
const FAR: (usize, usize) = (32 * 1024, 2);
/// How long a wait for an answer spins, and then how long it yields the CPU, before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
const YIELD: Duration = Duration::from_micros(500);
const NAP: Duration = Duration::from_micros(50);
/// How long the end waits for messages in flight.
const FAREWELL: Duration = Duration::from_secs(1);

/// Streams to some ranks and from others, the nearest on the ring first.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Whether there is a stream to every other rank.
    meshed: bool,
    outgoing: Vec<Side>,
    incoming: Vec<Side>,
    communicator: Communicator,
}

/// One direction: a ring of slots, the oldest first.
#[derive(Debug)]
struct Side {
    peer: usize,
    slots: Vec<Slot>,
    /// The oldest slot in flight.
    oldest: usize,
    /// Number of slots in flight.
    busy: usize,
}

#[derive(Debug)]
struct Slot {
    bytes: Box<[u8]>,
    request: Request,
    /// Length of a received message once it has arrived, and how much of it has been handed on.
    arrived: Option<usize>,
    taken: usize,
}

impl Streams {
    /// Streams of rank `rank` among `size`, at least two, on a communicator of their own.
    pub fn new(
        communicator: Communicator,
        rank: usize,
        size: usize,
        reach: Reach,
    ) -> Result<Self, TransportError> {
        let side = |far: usize, peer: usize| match (far, reach) {
            (1, _) | (_, Reach::All) => Side::new(peer, NEAR),
            _ => Side::new(peer, FAR),
        };
        let mut streams = Self {
            meshed: reach.distances(size).count() + 1 == size,
            outgoing: reach
                .distances(size)
                .map(|far| side(far, (rank + far) % size))
                .collect(),
            incoming: reach
                .distances(size)
                .map(|far| side(far, (rank + size - far) % size))
                .collect(),
            communicator,
        };
        for side in &mut streams.incoming {
            for _ in 0..side.slots.len() {
                side.post(&streams.communicator)?;
            }
        }
        Ok(streams)
    }
}

impl Side {
    /// A side with this number of slots of this many bytes.
    fn new(peer: usize, (bytes, slots): (usize, usize)) -> Self {
        let slot = || Slot {
            bytes: vec![0; bytes].into_boxed_slice(),
            request: Request::none(),
            arrived: None,
            taken: 0,
        };
        Self {
            peer,
            slots: std::iter::repeat_with(slot).take(slots).collect(),
            oldest: 0,
            busy: 0,
        }
    }

    /// The first free slot, if any.
    fn free(&mut self) -> Option<&mut Slot> {
        let slots = self.slots.len();
        let free = self.busy < slots;
        free.then(|| &mut self.slots[(self.oldest + self.busy) % slots])
    }

    /// Frees the oldest slot.
    fn free_oldest(&mut self) {
        self.oldest = (self.oldest + 1) % self.slots.len();
        self.busy -= 1;
    }

    /// Posts a receive into the next free slot.
    fn post(&mut self, communicator: &Communicator) -> Result<(), TransportError> {
        let peer = self.peer;
        let Some(slot) = self.free() else {
            return Ok(());
        };
        (slot.arrived, slot.taken) = (None, 0);
        // SAFETY: the slot's memory stays in place and is not read until its request is done;
        // `drop` waits for that or leaks it.
        let posted = check("MPI_Irecv", unsafe {
            ffi::MPI_Irecv(
                slot.bytes.as_mut_ptr().cast::<c_void>(),
                slot.bytes.len() as c_int,
                ffi::RSMPI_UINT8_T,
                peer as c_int,
                0,
                communicator.raw(),
                slot.request.as_mut_ptr(),
            )
        });
        posted.map_err(|error| failed(peer, "receiving", error))?;
        self.busy += 1;
        Ok(())
    }

    /// Sends the part of `bytes` that a free slot holds, and returns its length.
    fn send(&mut self, communicator: &Communicator, bytes: &[u8]) -> Result<usize, TransportError> {
        self.reclaim()?;
        let peer = self.peer;
        let Some(slot) = self.free().filter(|_| !bytes.is_empty()) else {
            return Ok(0);
        };
        let count = bytes.len().min(slot.bytes.len());
        slot.bytes[..count].copy_from_slice(&bytes[..count]);
        // SAFETY: as for receives; the slot is not written before its message has left.
        let sent = check("MPI_Isend", unsafe {
            ffi::MPI_Isend(
                slot.bytes.as_ptr().cast::<c_void>(),
                count as c_int,
                ffi::RSMPI_UINT8_T,
                peer as c_int,
                0,
                communicator.raw(),
                slot.request.as_mut_ptr(),
            )
        });
        sent.map_err(|error| failed(peer, "sending", error))?;
        self.busy += 1;
        Ok(count)
    }

    /// Length of the oldest message, once it has arrived.
    fn arrived(&mut self) -> Result<Option<usize>, TransportError> {
        let slot = &mut self.slots[self.oldest];
        if slot.arrived.is_none() {
            let tested = slot.request.test();
            slot.arrived = tested.map_err(|error| failed(self.peer, "receiving", error))?;
        }
        Ok(slot.arrived)
    }

    /// Frees the slots whose messages have left.
    fn reclaim(&mut self) -> Result<(), TransportError> {
        while self.busy > 0 {
            let tested = self.slots[self.oldest].request.test();
            if tested
                .map_err(|error| failed(self.peer, "sending", error))?
                .is_none()
            {
                break;
            }
            self.free_oldest();
        }
        Ok(())
    }
}

/// The side of a rank.
fn find(sides: &mut [Side], peer: usize) -> Result<&mut Side, TransportError> {
    let found = sides.iter_mut().find(|side| side.peer == peer);
    found.ok_or(TransportError::NoStream {
        peer,
        transport: NAME,
    })
}

impl Transport for Streams {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_meshed(&self) -> bool {
        self.meshed
    }

    fn try_send(&mut self, to: usize, bytes: &[u8]) -> Result<usize, TransportError> {
        find(&mut self.outgoing, to)?.send(&self.communicator, bytes)
    }

    fn try_recv(&mut self, from: usize, bytes: &mut [u8]) -> Result<usize, TransportError> {
        let side = find(&mut self.incoming, from)?;
        let Some(length) = side.arrived()? else {
            return Ok(0);
        };
        let slot = &mut side.slots[side.oldest];
        let count = bytes.len().min(length - slot.taken);
        bytes[..count].copy_from_slice(&slot.bytes[slot.taken..slot.taken + count]);
        slot.taken += count;
        if slot.taken == length {
            side.free_oldest();
            side.post(&self.communicator)?;
        }
        Ok(count)
    }

    fn wait(&mut self, interest: Interest, limit: Duration) -> Result<(), TransportError> {
        let start = Instant::now();
        while !self.is_ready(interest)? {
            let waited = start.elapsed();
            if waited > limit {
                break;
            }
            match waited {
                waited if waited < SPIN => std::hint::spin_loop(),
                waited if waited < YIELD => thread::yield_now(),
                _ => thread::sleep(NAP),
            }
        }
        Ok(())
    }

    fn meanwhile(&self) -> Option<Meanwhile> {
        Some(self.communicator.progress())
    }

    fn is_drained(&mut self) -> Result<bool, TransportError> {
        for side in &mut self.outgoing {
            side.reclaim()?;
        }
        Ok(self.outgoing.iter().all(|side| side.busy == 0))
    }
}

impl Streams {
    fn is_ready(&mut self, interest: Interest) -> Result<bool, TransportError> {
        let drained = self.is_drained()?;
        let sends = match interest.send_to {
            Some(to) => find(&mut self.outgoing, to)?.free().is_some(),
            None => false,
        };
        let receives = match interest.recv_from {
            Some(from) => find(&mut self.incoming, from)?.arrived()?.is_some(),
            None => false,
        };
        // Only messages that have yet to leave are waited for.
        let neither = interest.send_to.is_none() && interest.recv_from.is_none();
        Ok(receives || sends || (neither && drained))
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for slot in self.incoming.iter_mut().flat_map(|side| &mut side.slots) {
            slot.request.cancel();
        }
        let deadline = Instant::now() + FAREWELL;
        for side in self.outgoing.iter_mut().chain(&mut self.incoming) {
            for slot in &mut side.slots {
                let done = slot.arrived.is_some() || completes(&mut slot.request, deadline);
                if !done {
                    // The library may write to it as long as the process lives.
                    std::mem::forget(std::mem::take(&mut slot.bytes));
                    failure::note();
                }
            }
        }
    }
}

/// Whether a request ends before `deadline`.
fn completes(request: &mut Request, deadline: Instant) -> bool {
    loop {
        match request.test() {
            Ok(Some(_)) => return true,
            Ok(None) if Instant::now() < deadline => thread::sleep(NAP),
            _ => return false,
        }
    }
}

fn failed(peer: usize, action: &'static str, error: MpiError) -> TransportError {
    TransportError::Stream {
        peer,
        transport: NAME,
        action,
        source: error.into(),
    }
}
