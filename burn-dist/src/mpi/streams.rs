//! Byte streams over MPI's point-to-point messages, so that the ring rides on whatever network the
//! library drives.
//!
//! What is sent is copied into a slot and travels from there; receives are posted ahead of time into
//! slots of their own, in order, and MPI keeps messages between two ranks in order. Most libraries
//! move long messages only while the program calls them, so a collective is over when its slots are
//! empty, not when they are filled ([`Transport::is_drained`]).

use std::ffi::{c_int, c_void};
use std::thread;
use std::time::{Duration, Instant};

use mpi::ffi;

use super::call::{MpiError, check};
use super::request::Request;
use super::session::{Communicator, failure};
use crate::transport::{Interest, Meanwhile, Transport, TransportError};

const NAME: &str = "mpi";
/// Bytes of one message: a segment of the ring.
const SLOT: usize = 256 * 1024;
/// Messages under way in each direction.
const SLOTS: usize = 8;
/// How long the wait for an answer keeps the processor, and how long it then gives it to whoever
/// wants it, before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
const YIELD: Duration = Duration::from_micros(500);
const NAP: Duration = Duration::from_micros(50);
/// How long the end waits for messages that are still under way.
const FAREWELL: Duration = Duration::from_secs(1);

/// Streams to the next rank on the ring and from the previous one.
#[derive(Debug)]
pub(crate) struct Streams {
    next: Side,
    previous: Side,
    communicator: Communicator,
}

/// One direction: slots in a ring, the oldest first.
#[derive(Debug)]
struct Side {
    peer: usize,
    slots: Vec<Slot>,
    /// The oldest slot under way.
    oldest: usize,
    /// How many are under way.
    busy: usize,
}

#[derive(Debug)]
struct Slot {
    bytes: Box<[u8]>,
    request: Request,
    /// Of a received message: its length, once it is there, and how much has been handed on.
    arrived: Option<usize>,
    taken: usize,
}

impl Streams {
    /// Streams of rank `rank` among `size`, at least two, on a communicator of their own.
    pub fn new(
        communicator: Communicator,
        rank: usize,
        size: usize,
    ) -> Result<Self, TransportError> {
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let mut streams = Self {
            next: Side::new(next),
            previous: Side::new(previous),
            communicator,
        };
        for _ in 0..SLOTS {
            streams.post()?;
        }
        Ok(streams)
    }

    /// Posts a receive into the next free slot.
    fn post(&mut self) -> Result<(), TransportError> {
        let side = &mut self.previous;
        let at = (side.oldest + side.busy) % SLOTS;
        let slot = &mut side.slots[at];
        (slot.arrived, slot.taken) = (None, 0);
        // SAFETY: the slot's memory stays where it is, and is not looked at, until its request is
        // done; `drop` waits for that or leaks it.
        let posted = check("MPI_Irecv", unsafe {
            ffi::MPI_Irecv(
                slot.bytes.as_mut_ptr().cast::<c_void>(),
                SLOT as c_int,
                ffi::RSMPI_UINT8_T,
                side.peer as c_int,
                0,
                self.communicator.raw(),
                slot.request.as_mut_ptr(),
            )
        });
        posted.map_err(|error| failed(side.peer, "receiving", error))?;
        side.busy += 1;
        Ok(())
    }

    /// Length of the oldest message, once it is there.
    fn arrived(&mut self) -> Result<Option<usize>, TransportError> {
        let side = &mut self.previous;
        let slot = &mut side.slots[side.oldest];
        if slot.arrived.is_none() {
            let tested = slot.request.test();
            slot.arrived = tested.map_err(|error| failed(side.peer, "receiving", error))?;
        }
        Ok(slot.arrived)
    }

    /// Takes the slots back whose messages have left.
    fn reclaim(&mut self) -> Result<(), TransportError> {
        let side = &mut self.next;
        while side.busy > 0 {
            let tested = side.slots[side.oldest].request.test();
            if tested
                .map_err(|error| failed(side.peer, "sending", error))?
                .is_none()
            {
                break;
            }
            (side.oldest, side.busy) = ((side.oldest + 1) % SLOTS, side.busy - 1);
        }
        Ok(())
    }

    fn is_ready(&mut self, interest: Interest) -> Result<bool, TransportError> {
        self.reclaim()?;
        let receives = interest.recv_from.is_some() && self.arrived()?.is_some();
        let sends = interest.send_to.is_some() && self.next.busy < SLOTS;
        // Nothing to wait for but messages that have yet to leave.
        let neither = interest.send_to.is_none() && interest.recv_from.is_none();
        Ok(receives || sends || (neither && self.next.busy == 0))
    }
}

impl Side {
    fn new(peer: usize) -> Self {
        let slot = || Slot {
            bytes: vec![0; SLOT].into_boxed_slice(),
            request: Request::none(),
            arrived: None,
            taken: 0,
        };
        Self {
            peer,
            slots: std::iter::repeat_with(slot).take(SLOTS).collect(),
            oldest: 0,
            busy: 0,
        }
    }

    fn check(&self, asked: usize) -> Result<(), TransportError> {
        if self.peer == asked {
            return Ok(());
        }
        Err(TransportError::NoStream {
            peer: asked,
            transport: NAME,
        })
    }
}

impl Transport for Streams {
    fn name(&self) -> &'static str {
        NAME
    }

    fn try_send(&mut self, to: usize, bytes: &[u8]) -> Result<usize, TransportError> {
        self.next.check(to)?;
        self.reclaim()?;
        let side = &mut self.next;
        if side.busy == SLOTS || bytes.is_empty() {
            return Ok(0);
        }
        let slot = &mut side.slots[(side.oldest + side.busy) % SLOTS];
        let count = bytes.len().min(SLOT);
        slot.bytes[..count].copy_from_slice(&bytes[..count]);
        // SAFETY: as for receives; the slot is not written before its message has left.
        let sent = check("MPI_Isend", unsafe {
            ffi::MPI_Isend(
                slot.bytes.as_ptr().cast::<c_void>(),
                count as c_int,
                ffi::RSMPI_UINT8_T,
                side.peer as c_int,
                0,
                self.communicator.raw(),
                slot.request.as_mut_ptr(),
            )
        });
        sent.map_err(|error| failed(to, "sending", error))?;
        side.busy += 1;
        Ok(count)
    }

    fn try_recv(&mut self, from: usize, bytes: &mut [u8]) -> Result<usize, TransportError> {
        self.previous.check(from)?;
        let Some(length) = self.arrived()? else {
            return Ok(0);
        };
        let side = &mut self.previous;
        let slot = &mut side.slots[side.oldest];
        let count = bytes.len().min(length - slot.taken);
        bytes[..count].copy_from_slice(&slot.bytes[slot.taken..slot.taken + count]);
        slot.taken += count;
        if slot.taken == length {
            (side.oldest, side.busy) = ((side.oldest + 1) % SLOTS, side.busy - 1);
            self.post()?;
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
        self.reclaim()?;
        Ok(self.next.busy == 0)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for slot in &mut self.previous.slots {
            slot.request.cancel();
        }
        let deadline = Instant::now() + FAREWELL;
        for side in [&mut self.next, &mut self.previous] {
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
