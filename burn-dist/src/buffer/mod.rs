//! The memory that a collective works on.
//!
//! Gradients should lie in memory that every rank of the host has mapped: an all-reduce is then one
//! pass without copies. So the transport owns the memory.
//! [`ProcessGroup::bucket`](crate::ProcessGroup::bucket) returns the best kind: registered if the
//! transport can share memory, else plain. A buffer moves into an asynchronous collective and comes
//! back from its handle, so that nobody can touch it in between.

mod recycled;

use std::ops::Range;

use crate::compression::Compression;
use crate::element::{DType, Element};
use crate::reduce;
use crate::shard::Cuts;
use crate::transport::shm::Region;
use crate::virtual_ranks::VirtualRanks;
use recycled::Recycled;

/// A cache line. Plain memory is allocated in lines, so that vector code finds it aligned.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

enum Backing {
    Plain(Vec<Line>),
    Recycled(Recycled),
    Registered(Region),
}

/// The sums of virtual ranks that lie in a buffer, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    pub virtual_ranks: VirtualRanks,
    /// Elements of each sum.
    pub len: usize,
}

impl Sums {
    /// Elements from the beginning of a sum to that of the next, so that each is aligned.
    pub fn stride(&self, dtype: DType) -> usize {
        lines(dtype, self.len) * size_of::<Line>() / dtype.size()
    }
}

/// Contiguous elements of one type, aligned to 64 bytes.
pub struct Buffer {
    dtype: DType,
    len: usize,
    cuts: Cuts,
    compression: Compression,
    number: u32,
    sums: Option<Sums>,
    memory: Backing,
}

/// The buffer holds another element type than requested.
#[derive(thiserror::Error, PartialEq, Eq)]
#[error("the buffer holds {held} elements, not {asked}; read it as the type it was created with")]
pub struct WrongType {
    /// The element type of the buffer.
    pub held: DType,
    /// The requested element type.
    pub asked: DType,
}

crate::debug_is_display!(WrongType);

impl Buffer {
    /// A plain buffer of `len` zeros.
    pub fn zeroed(dtype: DType, len: usize) -> Self {
        let lines = vec![Line([0; 64]); lines(dtype, len)];
        Self::backed_by(Backing::Plain(lines), dtype, len)
    }

    /// A plain buffer of `len` arbitrary values, for short use. Its memory is reused.
    pub(crate) fn recycled(dtype: DType, len: usize) -> Self {
        let memory = Recycled::new(lines(dtype, len));
        Self::backed_by(Backing::Recycled(memory), dtype, len)
    }

    /// A plain buffer with a copy of `data`.
    pub fn from_slice<T: Element>(data: &[T]) -> Self {
        let mut buffer = Self::zeroed(T::DTYPE, data.len());
        buffer
            .bytes_mut()
            .copy_from_slice(bytemuck::cast_slice(data));
        buffer
    }

    /// Memory that every rank of the host has mapped.
    pub(crate) fn registered(dtype: DType, len: usize, region: Region) -> Self {
        debug_assert!(region.len() >= len * dtype.size());
        Self::backed_by(Backing::Registered(region), dtype, len)
    }

    fn backed_by(memory: Backing, dtype: DType, len: usize) -> Self {
        Self {
            dtype,
            len,
            cuts: Cuts::Even,
            compression: Compression::None,
            number: 0,
            sums: None,
            memory,
        }
    }

    /// Leaves memory that other ranks have mapped to them, and continues with zeros in its own
    /// memory.
    pub(crate) fn leave_registered(&mut self) {
        if self.is_registered() {
            self.memory = Backing::Plain(vec![Line([0; 64]); lines(self.dtype, self.len)]);
        }
    }

    /// Sets the borders of the ranks' shards for reduce-scatter and all-gather; even by default.
    ///
    /// All ranks set the same.
    #[must_use]
    pub fn cut(mut self, cuts: Cuts) -> Self {
        self.cuts = cuts;
        self
    }

    /// Sets the number of this buffer, from 1: ranks that bring different buffers get an error.
    #[must_use]
    pub(crate) fn numbered(mut self, number: u32) -> Self {
        self.number = number;
        self
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Makes it a buffer of sums of virtual ranks.
    pub(crate) fn with_sums(mut self, sums: Sums) -> Self {
        self.sums = Some(sums);
        self
    }

    pub(crate) fn sums(&self) -> Option<Sums> {
        self.sums
    }

    /// Place of sum number `index` of a buffer of
    /// [`ProcessGroup::sums`](crate::ProcessGroup::sums); of any other buffer, all elements.
    pub fn sum_place(&self, index: usize) -> Range<usize> {
        let Some(sums) = self.sums else {
            return 0..self.len;
        };
        let start = index * sums.stride(self.dtype);
        start..start + sums.len
    }

    /// Replaces the sums number `index` and `index + 1` by their sum, number `index`. It is rounded
    /// to the element type.
    ///
    /// # Panics
    /// If there are no such sums.
    pub fn add_sums(&mut self, index: usize) {
        let (left, right) = (self.sum_place(index), self.sum_place(index + 1));
        let (dtype, size) = (self.dtype, self.dtype.size());
        let (before, after) = self.bytes_mut().split_at_mut(right.start * size);
        let left = &mut before[left.start * size..left.end * size];
        reduce::add(dtype, left, &after[..right.len() * size]);
    }

    /// Borders of the ranks' shards.
    pub fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Sets the number format in which reductions travel; uncompressed by default.
    ///
    /// All ranks set the same.
    #[must_use]
    pub fn compress(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Number format in which reductions travel.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether every rank of the host has mapped this memory.
    pub fn is_registered(&self) -> bool {
        matches!(self.memory, Backing::Registered(_))
    }

    /// The elements.
    ///
    /// # Errors
    /// Fails if `T` is not the element type of the buffer.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], WrongType> {
        self.check::<T>()?;
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The elements, for writing.
    ///
    /// # Errors
    /// Fails if `T` is not the element type of the buffer.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], WrongType> {
        self.check::<T>()?;
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let bytes = match &self.memory {
            Backing::Plain(lines) => bytemuck::cast_slice(lines),
            Backing::Recycled(memory) => bytemuck::cast_slice(memory.lines()),
            Backing::Registered(region) => region.bytes(),
        };
        &bytes[..self.len * self.dtype.size()]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = match &mut self.memory {
            Backing::Plain(lines) => bytemuck::cast_slice_mut(lines),
            Backing::Recycled(memory) => bytemuck::cast_slice_mut(memory.lines_mut()),
            Backing::Registered(region) => region.bytes_mut(),
        };
        &mut bytes[..self.len * self.dtype.size()]
    }

    pub(crate) fn region(&self) -> Option<&Region> {
        match &self.memory {
            Backing::Plain(_) | Backing::Recycled(_) => None,
            Backing::Registered(region) => Some(region),
        }
    }

    pub(crate) fn region_mut(&mut self) -> Option<&mut Region> {
        match &mut self.memory {
            Backing::Plain(_) | Backing::Recycled(_) => None,
            Backing::Registered(region) => Some(region),
        }
    }

    fn check<T: Element>(&self) -> Result<(), WrongType> {
        if T::DTYPE == self.dtype {
            return Ok(());
        }
        Err(WrongType {
            held: self.dtype,
            asked: T::DTYPE,
        })
    }
}

/// Number of lines that hold `len` elements.
fn lines(dtype: DType, len: usize) -> usize {
    (len * dtype.size()).div_ceil(size_of::<Line>())
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_registered() {
            "registered"
        } else {
            "plain"
        };
        write!(f, "Buffer({kind}, {} × {})", self.len, self.dtype)
    }
}
