//! Shared memory between the ranks of one host.
//!
//! It is two things: a [`Transport`] whose streams are rings in shared memory, so that every
//! algorithm runs on it; and [`SharedMemory`], collectives that work directly on memory that all
//! ranks have mapped (`direct` on registered buckets, `slots` and `small` on private memory).

mod arena;
mod direct;
mod flag;
mod mapping;
mod slots;
mod small;
mod stream;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::process::Pid;

use super::{Interest, Interrupt, Transport, TransportError, Watch};
use arena::Arena;
pub(crate) use arena::{Announcement, SMALL};
pub(crate) use direct::{Opened, PartialSums, Results};
use flag::Eagerness;
use mapping::{Mapping, Ticket};

const NAME: &str = "shm";

/// This rank's part of a registered bucket.
///
/// Its bytes are this rank's alone while it holds the region. While the buffer is in a collective,
/// each slice's owner writes to it.
pub struct Region {
    /// One for each rank. They are dropped with the region: peers have mappings of their own and
    /// may still read them.
    mappings: Arc<Vec<Mapping>>,
    rank: usize,
    bucket: usize,
}

impl Region {
    pub(crate) fn len(&self) -> usize {
        self.own().len()
    }

    fn own(&self) -> &Mapping {
        &self.mappings[self.rank]
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has that many bytes. Peers write to them only inside a collective
        // that all ranks have entered with this bucket. To enter it, the buffer that owns this
        // region is moved in or borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.own().as_ptr(), self.own().len()) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; regions are not cloned, so this is the only view in the process.
        unsafe { std::slice::from_raw_parts_mut(self.own().as_ptr(), self.own().len()) }
    }
}

/// The reason why a collective on shared memory stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// This rank did not come, or stayed away too long.
    Waiting { rank: usize, interrupt: Interrupt },
    /// This rank entered another collective.
    Mismatch { rank: usize, theirs: Announcement },
    /// The memory could not be allocated or mapped.
    Setup(TransportError),
}

/// Proof that all ranks are in the collective with this number.
#[derive(Debug)]
pub(crate) struct AllEntered(u32);

/// The shared-memory transport of one rank.
pub struct SharedMemory {
    rank: usize,
    eager: Eagerness,
    arenas: Vec<Arena>,
    /// Registered buckets. Dropped ones keep their number.
    buckets: Vec<Weak<Vec<Mapping>>>,
    entered: u32,
    finished: u32,
    chunks: u32,
}

/// A rank's own arena, before the peers have mapped it.
pub struct Offer {
    mapping: Mapping,
    /// Peers open the memory through this descriptor, so it stays open until they have.
    file: OwnedFd,
    ticket: Ticket,
}

impl Offer {
    /// Allocates this rank's arena for a group of `size` ranks.
    ///
    /// # Errors
    /// Fails if the system has no shared memory left.
    pub fn new(size: usize) -> io::Result<Self> {
        let (mapping, file, ticket) = Mapping::create(Arena::bytes(size), false)?;
        Ok(Self {
            mapping,
            file,
            ticket,
        })
    }

    /// The bytes that peers need to find it.
    pub fn ticket(&self) -> Vec<u8> {
        self.ticket.encode().to_vec()
    }

    /// Maps the arenas of all ranks.
    ///
    /// The offer must outlive this call on every other rank, so the caller exchanges a message
    /// afterwards.
    ///
    /// # Errors
    /// Names the rank whose memory could not be opened: it belongs to another user, or is not on
    /// this host.
    pub fn accept(
        self,
        rank: usize,
        tickets: &[Vec<u8>],
    ) -> Result<(SharedMemory, OwnedFd), TransportError> {
        let size = tickets.len();
        let mut mine = Some(self.mapping);
        let mut arenas = Vec::with_capacity(size);
        for (peer, ticket) in tickets.iter().enumerate() {
            let mapping = match mine.take_if(|_| peer == rank) {
                Some(mapping) => mapping,
                None => open(peer, ticket, Arena::bytes(size), &[])?,
            };
            arenas.push(Arena::new(mapping, size));
        }
        let shared = SharedMemory {
            rank,
            eager: Eagerness::new(false),
            arenas,
            buckets: Vec::new(),
            entered: 0,
            finished: 0,
            chunks: 0,
        };
        Ok((shared, self.file))
    }
}

/// The process that made the memory of a ticket.
pub(crate) fn process_of(ticket: &[u8]) -> Option<Pid> {
    Ticket::decode(ticket)?.process()
}

fn open(
    peer: usize,
    ticket: &[u8],
    len: usize,
    prefault: &[Range<usize>],
) -> Result<Mapping, TransportError> {
    let fail = |reason: String| TransportError::Peer {
        transport: NAME,
        rank: peer,
        reason,
    };
    let ticket = Ticket::decode(ticket).ok_or_else(|| fail("sent a malformed ticket".into()))?;
    Mapping::open(&ticket, len, prefault)
        .map_err(|error| fail(format!("cannot map its shared memory: {error}")))
}

impl SharedMemory {
    pub(crate) fn size(&self) -> usize {
        self.arenas.len()
    }

    /// Announces the collective that this rank enters, and waits until all have entered the same.
    /// This is the barrier before every collective, and finds ranks that disagree.
    pub(crate) fn enter(
        &mut self,
        descriptor: Announcement,
        watch: &Watch,
    ) -> Result<AllEntered, Stop> {
        self.entered = self.entered.wrapping_add(1);
        let epoch = self.entered;
        let mine = &self.arenas[self.rank].head().enter;
        mine.describe(epoch, descriptor);
        mine.flag.post(epoch);
        for rank in self.peers() {
            let entry = &self.arenas[rank].head().enter;
            entry.flag.wait(rank, epoch, &self.eager, watch)?;
            let theirs = entry.described(epoch);
            if theirs != descriptor {
                return Err(Stop::Mismatch { rank, theirs });
            }
        }
        Ok(AllEntered(epoch))
    }

    /// The barrier after a collective in which ranks wrote to each other's memory.
    pub(crate) fn finish(&mut self, watch: &Watch) -> Result<(), Stop> {
        self.finished = self.finished.wrapping_add(1);
        self.arenas[self.rank].head().done.0.post(self.finished);
        for rank in self.peers() {
            self.arenas[rank]
                .head()
                .done
                .0
                .wait(rank, self.finished, &self.eager, watch)?;
        }
        Ok(())
    }

    /// All other ranks, the next one first, so that not all ranks poll the same flag.
    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank, self.size());
        (1..size).map(move |distance| (rank + distance) % size)
    }

    /// Allocates a bucket of `len` bytes that all ranks map. All ranks call it.
    ///
    /// A rank touches only the parts `mine` of its peers' memory, which it reduces. So only these
    /// parts count as its own memory.
    ///
    /// # Errors
    /// Names the rank that is out of memory or could not map a peer's.
    pub(crate) fn register(
        &mut self,
        descriptor: Announcement,
        (len, mine): (usize, &[Range<usize>]),
        watch: &Watch,
    ) -> Result<Region, Stop> {
        let created = Mapping::create(len, true);
        let ticket = match &created {
            Ok((_, _, ticket)) => ticket.encode(),
            Err(_) => [0; Ticket::BYTES],
        };
        let tickets = self.exchange(descriptor, &ticket, watch)?;
        let opened = created.map_err(|source| TransportError::Setup {
            transport: NAME,
            action: format!("allocating a bucket of {len} bytes"),
            source,
        });
        let opened = opened.and_then(|(own, file, _)| {
            let mut own = Some(own);
            let mappings = tickets.iter().enumerate().map(|(rank, ticket)| {
                let own = own.take_if(|_| rank == self.rank);
                own.map_or_else(|| open(rank, ticket, len, mine), Ok)
            });
            Ok((mappings.collect::<Result<Vec<_>, TransportError>>()?, file))
        });
        // The files are closed after this exchange: every rank has then opened them.
        let fine = self.exchange(descriptor, &[u8::from(opened.is_ok())], watch)?;
        let (mappings, _files) = opened.map_err(Stop::Setup)?;
        if let Some(rank) = fine.iter().position(|word| word != &[1]) {
            let reason = format!("has no memory for a bucket of {len} bytes, or cannot map it");
            return Err(Stop::Setup(TransportError::Peer {
                transport: NAME,
                rank,
                reason,
            }));
        }
        let mappings = Arc::new(mappings);
        self.buckets.push(Arc::downgrade(&mappings));
        Ok(Region {
            mappings,
            rank: self.rank,
            bucket: self.buckets.len() - 1,
        })
    }

    /// Whether `region` is a bucket of this group.
    pub(crate) fn owns(&self, region: &Region) -> bool {
        self.buckets
            .get(region.bucket)
            .is_some_and(|mappings| std::ptr::eq(mappings.as_ptr(), Arc::as_ptr(&region.mappings)))
    }

    /// The bucket's number, the same on every rank.
    pub(crate) fn bucket_number(region: &Region) -> u32 {
        region.bucket as u32
    }
}

/// Rank `rank`'s slice of `len` bytes, cut at cache lines.
fn slice_of(len: usize, size: usize, rank: usize) -> Range<usize> {
    let lines = len.div_ceil(64);
    let cut = |rank: usize| (lines * rank / size * 64).min(len);
    cut(rank)..cut(rank + 1)
}

impl Transport for SharedMemory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_meshed(&self) -> bool {
        true
    }

    fn set_has_processor(&mut self, has_processor: bool) {
        self.eager = Eagerness::new(has_processor);
    }

    fn try_send(&mut self, to: usize, bytes: &[u8]) -> Result<usize, TransportError> {
        let peer = self.peer(to)?;
        let count = stream::write(&self.arenas[self.rank], to, bytes);
        if count > 0 {
            peer.head().bell.0.ring();
        }
        Ok(count)
    }

    fn try_recv(&mut self, from: usize, bytes: &mut [u8]) -> Result<usize, TransportError> {
        let peer = self.peer(from)?;
        let count = stream::read(peer, self.rank, bytes);
        if count > 0 {
            peer.head().bell.0.ring();
        }
        Ok(count)
    }

    fn wait(&mut self, interest: Interest, limit: Duration) -> Result<(), TransportError> {
        let ready = || {
            interest
                .send_to
                .is_some_and(|to| stream::can_write(&self.arenas[self.rank], to))
                || interest
                    .recv_from
                    .is_some_and(|from| stream::can_read(&self.arenas[from], self.rank))
        };
        if self.eager.is_soon(ready) {
            return Ok(());
        }
        let bell = &self.arenas[self.rank].head().bell.0;
        let rung = bell.epoch();
        if !ready() {
            bell.sleep(rung, limit);
        }
        Ok(())
    }

    fn shared(&mut self) -> Option<&mut SharedMemory> {
        Some(self)
    }
}

impl SharedMemory {
    fn peer(&self, rank: usize) -> Result<&Arena, TransportError> {
        let missing = TransportError::NoStream {
            peer: rank,
            transport: NAME,
        };
        self.arenas
            .get(rank)
            .filter(|_| rank != self.rank)
            .ok_or(missing)
    }
}
