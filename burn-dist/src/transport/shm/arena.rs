//! Layout of the shared memory of each rank: its flags, its slots for messages in private memory,
//! and its byte streams to every other rank.
//!
//! Only the owner posts its flags and writes its streams. Peers write only the bell and the read
//! positions of the streams that come to them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::flag::Flag;
use super::mapping::Mapping;

/// Largest message, in bytes, that travels in one hop through a small slot.
pub(crate) const SMALL: usize = 1024;
/// Slots of the pipeline for messages in private memory.
pub(super) const SLOTS: usize = 4;
/// Bytes of a slot.
pub(super) const SLOT: usize = 512 * 1024;
/// Bytes in flight on one stream. A power of two.
pub(super) const STREAM: usize = 512 * 1024;

/// A rank's description of the collective that it enters; the transport only compares it.
pub(crate) type Announcement = [u64; 4];

/// Each flag has its own pair of cache lines, since CPUs fetch neighbours in pairs.
#[repr(C, align(128))]
pub(super) struct Aligned(pub Flag);

/// The entry flag, with the rank's announcement beside it: one transfer brings both.
#[repr(C, align(128))]
pub(super) struct Entry {
    pub flag: Flag,
    descriptors: [[AtomicU64; 4]; 2],
}

impl Entry {
    /// Stores the announcement number `epoch`. Two places suffice: no rank enters a collective
    /// before all ranks have read the announcement before the last one.
    pub fn describe(&self, epoch: u32, descriptor: Announcement) {
        let place = &self.descriptors[(epoch & 1) as usize];
        for (word, value) in place.iter().zip(descriptor) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The announcement number `epoch`.
    pub fn described(&self, epoch: u32) -> Announcement {
        let place = &self.descriptors[(epoch & 1) as usize];
        [0, 1, 2, 3].map(|word| place[word].load(Ordering::Relaxed))
    }
}

/// Bytes written to, or read from, a stream since the start.
#[repr(C, align(128))]
pub(super) struct Position(pub AtomicU64);

/// The fixed part at the start of an arena.
#[repr(C)]
pub(super) struct Head {
    pub enter: Entry,
    pub done: Aligned,
    /// Rung by peers when one of this rank's streams can proceed.
    pub bell: Aligned,
    /// Chunks put into the slots, and reduced, since the start.
    pub filled: Aligned,
    pub reduced: Aligned,
}

/// The fixed part at the start of each stream.
#[repr(C)]
pub(super) struct StreamHead {
    pub written: Position,
    pub read: Position,
}

const SMALL_AT: usize = size_of::<Head>();
const SLOTS_AT: usize = SMALL_AT + 2 * SMALL;
const STREAMS_AT: usize = SLOTS_AT + SLOTS * SLOT;
const STREAM_SIZE: usize = size_of::<StreamHead>() + STREAM;

/// One rank's arena, as mapped here.
pub(super) struct Arena(Mapping);

impl Arena {
    /// Bytes of each arena in a group of `size` ranks.
    pub const fn bytes(size: usize) -> usize {
        STREAMS_AT + size * STREAM_SIZE
    }

    /// Wraps a mapping of at least [`Arena::bytes`] bytes.
    pub fn new(mapping: Mapping, size: usize) -> Self {
        assert!(
            mapping.len() >= Self::bytes(size),
            "arena of {} bytes",
            mapping.len()
        );
        Self(mapping)
    }

    pub fn head(&self) -> &Head {
        // SAFETY: the mapping is page aligned and long enough. `Head` consists of atomics, for
        // which every bit pattern is valid and which may be shared.
        unsafe { &*self.0.as_ptr().cast() }
    }

    /// The small slot for collective number `epoch`.
    pub fn small(&self, epoch: u32) -> *mut u8 {
        self.at(SMALL_AT + (epoch & 1) as usize * SMALL)
    }

    /// The slot for chunk number `chunk`.
    pub fn slot(&self, chunk: u32) -> *mut u8 {
        self.at(SLOTS_AT + (chunk as usize % SLOTS) * SLOT)
    }

    /// The owner's stream to rank `to`: its positions and its bytes.
    pub fn stream(&self, to: usize) -> (&StreamHead, *mut u8) {
        let at = STREAMS_AT + to * STREAM_SIZE;
        assert!(at + STREAM_SIZE <= self.0.len(), "stream to rank {to}");
        let start = self.at(at);
        // SAFETY: in bounds by the assertion; aligned because every part before has a multiple of
        // 128 bytes. `StreamHead` consists of atomics.
        (
            unsafe { &*start.cast() },
            self.at(at + size_of::<StreamHead>()),
        )
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.0.len());
        // SAFETY: every caller's offset lies in the mapping, whose length `new` checked.
        unsafe { self.0.as_ptr().add(offset) }
    }
}

const _: () = assert!(SMALL_AT.is_multiple_of(128) && SLOTS_AT.is_multiple_of(128));
const _: () = assert!(STREAMS_AT.is_multiple_of(128) && STREAM_SIZE.is_multiple_of(128));
const _: () = assert!(STREAM.is_power_of_two());
