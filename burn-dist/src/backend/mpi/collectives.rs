//! The algorithm `mpi`: the library's own non-blocking collectives, for networks that implement
//! them in hardware and for comparison with ours.
//!
//! With a dead peer an MPI operation never ends, and MPI does not give its buffer back. So an
//! operation owns its memory: buffers move in and out, slices are copied, and after a timeout the
//! library keeps the memory for good.

use std::ffi::{c_int, c_void};
use std::thread;
use std::time::{Duration, Instant};

use mpi::ffi;

use super::call::check;
use super::request::Request;
use super::session::{Communicator, failure};
use crate::buffer::Buffer;
use crate::collective::{Descriptor, Failure, Kind};
use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::Cuts;
use crate::transport::{TransportError, Watch};

const NAME: &str = "mpi";
/// Buffers kept for later operations of the same lengths.
const SPARES: usize = 8;
/// As for streams: spin first, then yield the CPU, then sleep.
const SPIN: Duration = Duration::from_micros(20);
const YIELD: Duration = Duration::from_micros(500);
const NAP: Duration = Duration::from_micros(50);

/// MPI's collectives on a communicator of their own.
#[derive(Debug)]
pub(crate) struct Collectives {
    communicator: Communicator,
    spares: Vec<Buffer>,
}

/// Memory that an operation reads and writes, and its counts.
struct Working {
    from: Buffer,
    to: Buffer,
    counts: Vec<c_int>,
    starts: Vec<c_int>,
}

impl Collectives {
    /// Uses `communicator` alone.
    pub fn new(communicator: Communicator) -> Self {
        Self {
            communicator,
            spares: Vec::new(),
        }
    }

    /// Whether MPI can run the collective.
    ///
    /// Lengths are C integers in MPI, and libraries reduce bytes differently: sums saturate at 255
    /// in Open MPI 4.1 with AVX instead of wrapping, and MPICH 4.0 compares bytes as signed.
    pub fn can(what: &Descriptor) -> bool {
        let bytes = what.len.saturating_mul(what.dtype.size() as u64);
        let moves_data = matches!(
            what.kind,
            Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather | Kind::Broadcast
        );
        let reduces_bytes = what.dtype == DType::U8 && what.op.is_some();
        moves_data && !reduces_bytes && bytes <= c_int::MAX as u64
    }

    /// Runs the collective on a copy of `data`.
    pub fn run_on_slice(
        &mut self,
        (what, cuts): (&Descriptor, &Cuts),
        data: &mut [u8],
        watch: &Watch,
    ) -> Result<(), Failure> {
        let mut buffer = self.spare(what.dtype, what.len as usize);
        buffer.bytes_mut().copy_from_slice(data);
        self.run((what, cuts), &mut buffer, watch)?;
        data.copy_from_slice(buffer.bytes());
        self.keep(buffer);
        Ok(())
    }

    /// Runs the collective on `data`, which is empty after a failure.
    pub fn run(
        &mut self,
        (what, cuts): (&Descriptor, &Cuts),
        data: &mut Buffer,
        watch: &Watch,
    ) -> Result<(), Failure> {
        if what.op.is_some()
            && let Some(sums) = reduce::widen(what.dtype, data.bytes())
        {
            // Sums of half-precision elements are taken in f32.
            let mut wide = Buffer::from_slice(&sums);
            let what_wide = Descriptor {
                dtype: DType::F32,
                ..*what
            };
            self.run((&what_wide, cuts), &mut wide, watch)?;
            reduce::narrow(
                what.dtype,
                bytemuck::cast_slice(wide.bytes()),
                data.bytes_mut(),
            );
            return Ok(());
        }
        let (cut, compression) = (data.cuts().clone(), data.compression());
        let working = Working {
            from: std::mem::replace(data, Buffer::zeroed(what.dtype, 0)),
            to: self.spare(what.dtype, what.len as usize),
            counts: Vec::new(),
            starts: Vec::new(),
        };
        let Working { from, mut to, .. } = self.complete((what, cuts), working, watch)?;
        if what.op == Some(ReduceOp::Mean) {
            reduce::divide(what.dtype, to.bytes_mut(), self.communicator.size);
        }
        if what.kind == Kind::Broadcast {
            *data = from;
            self.keep(to);
        } else {
            *data = to.cut(cut).compress(compression);
            self.keep(from);
        }
        Ok(())
    }

    fn complete(
        &mut self,
        what: (&Descriptor, &Cuts),
        mut working: Working,
        watch: &Watch,
    ) -> Result<Working, Failure> {
        let mut request = Request::none();
        let started = self.start(what, &mut working, &mut request);
        let ended = started.and_then(|()| self.wait(&mut request, watch));
        match ended {
            Ok(()) => Ok(working),
            Err(error) => {
                // The library may still write to it.
                std::mem::forget(working);
                failure::note();
                Err(error)
            }
        }
    }

    fn start(
        &self,
        (what, cuts): (&Descriptor, &Cuts),
        working: &mut Working,
        request: &mut Request,
    ) -> Result<(), Failure> {
        let (rank, size) = (self.communicator.rank, self.communicator.size);
        let len = what.len as usize;
        let Working {
            from,
            to,
            counts,
            starts,
        } = working;
        let (element, bytes) = (what.dtype.size(), len * what.dtype.size());
        let ranges = (0..size).map(|rank| cuts.shard(len, size, rank));
        let mine = cuts.shard(len, size, rank);
        let (raw, request) = (self.communicator.raw(), request.as_mut_ptr());
        let (source, target) = (from.bytes_mut().as_mut_ptr(), to.bytes_mut().as_mut_ptr());
        let operation = operation(what.op.unwrap_or(ReduceOp::Sum));
        // SAFETY: both buffers have `bytes` bytes. The counts and starts are those of shards that
        // tile them. All four live until the request is done or for ever (see `complete`).
        let (call, code) = unsafe {
            match what.kind {
                Kind::AllReduce => (
                    "MPI_Iallreduce",
                    ffi::MPI_Iallreduce(
                        source.cast::<c_void>(),
                        target.cast::<c_void>(),
                        len as c_int,
                        datatype(what.dtype),
                        operation,
                        raw,
                        request,
                    ),
                ),
                Kind::ReduceScatter => {
                    counts.extend(ranges.map(|range| range.len() as c_int));
                    (
                        "MPI_Ireduce_scatter",
                        ffi::MPI_Ireduce_scatter(
                            source.cast::<c_void>(),
                            target.add(mine.start * element).cast::<c_void>(),
                            counts.as_ptr(),
                            datatype(what.dtype),
                            operation,
                            raw,
                            request,
                        ),
                    )
                }
                Kind::AllGather => {
                    for range in ranges {
                        counts.push((range.len() * element) as c_int);
                        starts.push((range.start * element) as c_int);
                    }
                    (
                        "MPI_Iallgatherv",
                        ffi::MPI_Iallgatherv(
                            source.add(mine.start * element).cast::<c_void>(),
                            (mine.len() * element) as c_int,
                            ffi::RSMPI_UINT8_T,
                            target.cast::<c_void>(),
                            counts.as_ptr(),
                            starts.as_ptr(),
                            ffi::RSMPI_UINT8_T,
                            raw,
                            request,
                        ),
                    )
                }
                _ => (
                    "MPI_Ibcast",
                    ffi::MPI_Ibcast(
                        source.cast::<c_void>(),
                        bytes as c_int,
                        ffi::RSMPI_UINT8_T,
                        c_int::from(what.root),
                        raw,
                        request,
                    ),
                ),
            }
        };
        check(call, code).map_err(|error| {
            Failure::Transport(TransportError::Setup {
                transport: NAME,
                action: "starting a collective".into(),
                source: error.into(),
            })
        })
    }

    fn wait(&self, request: &mut Request, watch: &Watch) -> Result<(), Failure> {
        let (rank, size) = (self.communicator.rank, self.communicator.size);
        // The error names the ring's neighbour; the store finds out which rank is late.
        let rank = (rank + size - 1) % size;
        let start = Instant::now();
        loop {
            let tested = request.test().map_err(|error| {
                Failure::Transport(TransportError::Stream {
                    peer: rank,
                    transport: NAME,
                    action: "a collective",
                    source: error.into(),
                })
            })?;
            if tested.is_some() {
                return Ok(());
            }
            match start.elapsed() {
                waited if waited < SPIN => std::hint::spin_loop(),
                waited if waited < YIELD => thread::yield_now(),
                _ => {
                    let limit = watch
                        .slice(rank)
                        .map_err(|interrupt| Failure::Waiting { rank, interrupt })?;
                    thread::sleep(limit.min(NAP));
                }
            }
        }
    }

    fn spare(&mut self, dtype: DType, len: usize) -> Buffer {
        let fits = |spare: &Buffer| spare.dtype() == dtype && spare.len() == len;
        match self.spares.iter().position(fits) {
            Some(at) => self.spares.swap_remove(at),
            None => Buffer::zeroed(dtype, len),
        }
    }

    fn keep(&mut self, buffer: Buffer) {
        if self.spares.len() == SPARES {
            self.spares.remove(0);
        }
        self.spares.push(buffer);
    }
}

fn datatype(dtype: DType) -> ffi::MPI_Datatype {
    // SAFETY: reads constants of the library.
    unsafe {
        match dtype {
            DType::F32 => ffi::RSMPI_FLOAT,
            DType::F64 => ffi::RSMPI_DOUBLE,
            DType::I32 => ffi::RSMPI_INT32_T,
            DType::I64 => ffi::RSMPI_INT64_T,
            // Half-precision elements are never reduced as such, only moved as bytes.
            DType::U8 | DType::F16 | DType::BF16 => ffi::RSMPI_UINT8_T,
        }
    }
}

fn operation(op: ReduceOp) -> ffi::MPI_Op {
    // SAFETY: reads constants of the library.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => ffi::RSMPI_SUM,
            ReduceOp::Min => ffi::RSMPI_MIN,
            ReduceOp::Max => ffi::RSMPI_MAX,
        }
    }
}
