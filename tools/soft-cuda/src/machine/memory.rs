//! Memory accesses of a lane, with bounds checks: [`Memory::place`] returns a [`Place`] only for an
//! allocated address.
#![allow(unsafe_code)] // The memory of a device is host memory at addresses that the program computes.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::counts::{Counter, Touched};
use super::fault::{Fault, FaultKind};
use super::watch::{How, Watch};
use crate::ptx::Space;

/// Addresses from `start` to before `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
}

impl Range {
    /// Creates a range of this many bytes from `start` on.
    pub fn new(start: u64, bytes: usize) -> Self {
        Self {
            start,
            end: start + bytes as u64,
        }
    }

    /// Returns true if all of these bytes are within it.
    #[inline]
    pub fn holds(&self, address: u64, bytes: usize) -> bool {
        let end = address.checked_add(bytes as u64);
        address >= self.start && end.is_some_and(|end| end <= self.end)
    }
}

/// Content of unwritten memory: NaN in every format.
pub const UNWRITTEN: u8 = 0xff;

/// Memory that is only accessed through its address.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is plain memory, which any thread may free.
unsafe impl Send for Buffer {}
// SAFETY: a reference to it only gives its address.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// For swizzled layouts in shared memory; more than `cuMemAlloc` guarantees.
    const ALIGN: usize = 1024;

    /// Allocates `UNWRITTEN` memory; `None` if there is not enough.
    pub fn new(bytes: usize) -> Option<Self> {
        let layout = Self::layout(bytes)?;
        // SAFETY: the layout is of at least one byte.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        // SAFETY: this many bytes were just allocated there.
        unsafe { start.write_bytes(UNWRITTEN, layout.size()) };
        Some(Self { start, layout })
    }

    /// Allocates zeros, whose pages the system creates on the first write; `None` if there is not
    /// enough.
    pub fn zeros(bytes: usize) -> Option<Self> {
        let layout = Self::layout(bytes)?;
        // SAFETY: the layout is of at least one byte.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.max(1), Self::ALIGN).ok()
    }

    /// Returns its address range.
    pub fn range(&self) -> Range {
        Range::new(
            self.start.as_ptr().expose_provenance() as u64,
            self.layout.size(),
        )
    }

    /// Copies as many bytes as fit to its start.
    pub fn write(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(self.layout.size());
        // SAFETY: there is room for this many, and they do not overlap the source, which is
        // borrowed.
        unsafe {
            self.start
                .copy_from_nonoverlapping(NonNull::from(bytes).cast(), n)
        };
    }
}

#[cfg(test)]
impl Buffer {
    /// Returns its content.
    pub fn read(&mut self) -> Vec<u8> {
        let bytes = self.layout.size();
        // SAFETY: this many bytes exist and are initialised, and nobody else accesses them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), bytes) }.to_vec()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// The memory of a block, as one thread sees it.
pub(super) struct Memory<'m> {
    /// The device's allocations in ascending order.
    device: &'m [Range],
    parameters: Range,
    shared: Range,
}

/// The memory of a warp.
#[derive(Debug, Default)]
pub(super) struct Private {
    /// Local memory of lane 0; that of the others follows.
    pub local: Range,
    /// Bytes of one lane.
    pub lane_bytes: usize,
    /// The allocation of the last access, which is often the next one's too.
    pub last: Range,
    /// Counts accesses, if requested.
    pub counter: Option<Box<Counter>>,
    /// Detects races, if requested.
    pub watch: Option<Box<Watch>>,
}

impl<'m> Memory<'m> {
    /// # Safety
    /// Each byte of these ranges is initialised memory that can be read and written for `'m`, and
    /// which nobody has a reference to. Parameters and shared memory are this thread's alone.
    /// Ranges of `device` are in ascending order.
    pub unsafe fn new(device: &'m [Range], parameters: Range, shared: Range) -> Self {
        Self {
            device,
            parameters,
            shared,
        }
    }

    /// Returns the block's shared memory.
    pub fn shared(&self) -> Range {
        self.shared
    }

    /// Returns the start of shared memory in the generic space.
    pub fn shared_base(&self) -> u64 {
        self.shared.start
    }

    /// Resets shared memory to unwritten.
    pub fn forget_shared(&self) {
        let bytes = (self.shared.end - self.shared.start) as usize;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.shared.start as usize);
        // SAFETY: the caller of `new` guaranteed that these bytes can be written, and are this
        // thread's alone.
        unsafe { start.write_bytes(UNWRITTEN, bytes) };
    }

    /// Returns the memory at an address of a space, if the lane may access all of it.
    #[inline]
    pub fn place(
        &self,
        private: &mut Private,
        lane: usize,
        space: Space,
        address: u64,
        bytes: usize,
        how: How,
    ) -> Result<Place<'m>, Fault> {
        let at = match space {
            // Addresses of shared memory are offsets of 32 bits.
            Space::Shared => self.shared.start + (address & 0xffff_ffff),
            _ => address,
        };
        let fault = |kind| Err(Fault { kind, lane });
        // A power of two; a division would take half of this function's time.
        if at & (bytes as u64).wrapping_sub(1) != 0 {
            return fault(FaultKind::Misaligned { address, bytes });
        }
        if self.allows(private, lane, space, at, bytes) {
            if private.counter.is_some() || private.watch.is_some() {
                self.note(private, lane, space, at, bytes, how)?;
            }
            return Ok(Place {
                at,
                bytes,
                memory: PhantomData,
            });
        }
        fault(FaultKind::IllegalAddress { address, bytes })
    }

    /// Reports an access to the counter and the race detector.
    fn note(
        &self,
        private: &mut Private,
        lane: usize,
        space: Space,
        at: u64,
        bytes: usize,
        how: How,
    ) -> Result<(), Fault> {
        if space == Space::Param || self.parameters.holds(at, bytes) {
            return Ok(());
        }
        // A read with an open end was counted when it began.
        let counted = !matches!(how, How::ReadSince(_));
        if let Some(counter) = private.counter.as_mut().filter(|_| counted) {
            let shared = self.shared.holds(at, bytes);
            counter.touch(Touched { shared, at, bytes });
        }
        // A lane's local memory is its own.
        let local = space == Space::Local || private.of_lane(lane).holds(at, bytes);
        match &mut private.watch {
            Some(watch) if !local => watch.touch(lane, at, bytes, how),
            _ => Ok(()),
        }
    }

    #[inline]
    fn allows(&self, own: &mut Private, lane: usize, space: Space, at: u64, bytes: usize) -> bool {
        match space {
            Space::Shared => self.shared.holds(at, bytes),
            Space::Global => own.last.holds(at, bytes) || self.look_up(own, at, bytes),
            Space::Param => self.parameters.holds(at, bytes),
            Space::Local => own.of_lane(lane).holds(at, bytes),
            Space::Generic => {
                own.last.holds(at, bytes)
                    || self.shared.holds(at, bytes)
                    || self.look_up(own, at, bytes)
                    || own.of_lane(lane).holds(at, bytes)
                    || self.parameters.holds(at, bytes)
            }
        }
    }

    fn look_up(&self, private: &mut Private, at: u64, bytes: usize) -> bool {
        let after = self.device.partition_point(|range| range.start <= at);
        let found = after.checked_sub(1).map(|i| self.device[i]);
        let found = found.filter(|range| range.holds(at, bytes));
        private.last = found.unwrap_or(private.last);
        found.is_some()
    }
}

impl Private {
    fn of_lane(&self, lane: usize) -> Range {
        let start = self.local.start + (lane * self.lane_bytes) as u64;
        Range::new(start, self.lane_bytes)
    }
}

/// Bytes that a lane may access. Integers are read and written as atomics: lanes of other blocks,
/// on other threads, may do so at the same time, and on x86 it is no slower.
#[derive(Clone, Copy)]
pub(super) struct Place<'m> {
    at: u64,
    bytes: usize,
    memory: PhantomData<&'m [u8]>,
}

impl Place<'_> {
    /// Returns the number of `size` bytes, a power of two up to 8, at index `index` of this place.
    #[inline]
    pub fn load(self, index: usize, size: usize) -> u64 {
        let at = self.element(index, size);
        // SAFETY: `element` is within a range guaranteed to `Memory::new`, and aligned: the place
        // is aligned to its size, which is a power of two and no less than the element's.
        unsafe {
            match size {
                1 => (*at.cast::<AtomicU8>()).load(Ordering::Relaxed).into(),
                2 => (*at.cast::<AtomicU16>()).load(Ordering::Relaxed).into(),
                4 => (*at.cast::<AtomicU32>()).load(Ordering::Relaxed).into(),
                _ => (*at.cast::<AtomicU64>()).load(Ordering::Relaxed),
            }
        }
    }

    /// Writes the low bytes of a value, as [`Self::load`] reads them.
    #[inline]
    pub fn store(self, index: usize, size: usize, value: u64) {
        let at = self.element(index, size);
        // SAFETY: as in `load`.
        unsafe {
            match size {
                1 => (*at.cast::<AtomicU8>()).store(value as u8, Ordering::Relaxed),
                2 => (*at.cast::<AtomicU16>()).store(value as u16, Ordering::Relaxed),
                4 => (*at.cast::<AtomicU32>()).store(value as u32, Ordering::Relaxed),
                _ => (*at.cast::<AtomicU64>()).store(value, Ordering::Relaxed),
            }
        }
    }

    /// Atomically replaces a number of 2, 4 or 8 bytes by the result of `change`, and returns the
    /// old one.
    pub fn update(self, size: usize, change: impl Fn(u64) -> u64) -> u64 {
        let at = self.element(0, size);
        let order = Ordering::AcqRel;
        // SAFETY: as in `load`.
        unsafe {
            match size {
                2 => (*at.cast::<AtomicU16>())
                    .fetch_update(order, Ordering::Acquire, |old| {
                        Some(change(old.into()) as u16)
                    })
                    .map_or(0, u64::from),
                4 => (*at.cast::<AtomicU32>())
                    .fetch_update(order, Ordering::Acquire, |old| {
                        Some(change(old.into()) as u32)
                    })
                    .map_or(0, u64::from),
                _ => (*at.cast::<AtomicU64>())
                    .fetch_update(order, Ordering::Acquire, |old| Some(change(old)))
                    .unwrap_or(0),
            }
        }
    }

    #[inline]
    fn element(self, index: usize, size: usize) -> *const u8 {
        let offset = index * size;
        assert!(
            offset + size <= self.bytes && size <= 8,
            "outside of a place"
        );
        std::ptr::with_exposed_provenance(self.at as usize + offset)
    }
}
