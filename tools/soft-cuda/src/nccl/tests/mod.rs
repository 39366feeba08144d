//! The C functions from a program's side, with ranks that are threads. Tests share devices; a test
//! that waits for all streams of one has it alone.
#![allow(unsafe_code)] // Calls C functions.

mod collectives;
mod failures;

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::thread;

use half::{bf16, f16};

use super::shared::Id;
use super::*;
use crate::driver::*;

/// Returns the result of a call, or its code.
fn get<T>(call: impl FnOnce(Out<T>) -> c_int) -> Result<T, c_int> {
    let mut out = MaybeUninit::uninit();
    match call(Some(&mut out)) {
        // SAFETY: a call without an error has written its result.
        0 => Ok(unsafe { out.assume_init() }),
        code => Err(code),
    }
}

fn unique_id() -> Id {
    // SAFETY: the pointer is of this function.
    get(|out| unsafe { ncclGetUniqueId(out) }).unwrap()
}

/// Makes a device current for this thread.
fn start(device: c_int) {
    // SAFETY: pointers are of this function.
    unsafe {
        assert_eq!(cuInit(0), 0);
        let context = get(|out| cuDevicePrimaryCtxRetain(out, device)).unwrap();
        assert_eq!(cuCtxSetCurrent(context), 0);
    }
}

fn init(id: Id, size: usize, rank: usize) -> Result<Handle, c_int> {
    // SAFETY: the pointer is of this function.
    get(|out| unsafe { ncclCommInitRank(out, size as c_int, id, rank as c_int) })
}

/// A rank with its communicator and a stream.
struct Rank {
    rank: usize,
    size: usize,
    comm: Handle,
    stream: Handle,
}

/// Runs a function on a thread for each rank; all have the same device.
fn world(device: c_int, size: usize, work: impl Fn(&Rank) + Sync) {
    let (id, work) = (unique_id(), &work);
    thread::scope(|scope| {
        for rank in 0..size {
            scope.spawn(move || {
                start(device);
                let comm = init(id, size, rank).unwrap();
                // SAFETY: the pointer is of this function.
                let stream = get(|out| unsafe { cuStreamCreate(out, 1) }).unwrap();
                let rank = Rank {
                    rank,
                    size,
                    comm,
                    stream,
                };
                work(&rank);
            });
        }
    });
    assert!(!id.path().unwrap().exists(), "a file is left");
}

impl Rank {
    fn query(&self) -> c_int {
        // SAFETY: there are no pointers.
        unsafe { cuStreamQuery(self.stream) }
    }

    fn synchronize(&self) -> c_int {
        // SAFETY: there are no pointers.
        unsafe { cuStreamSynchronize(self.stream) }
    }

    fn error(&self) -> Result<c_int, c_int> {
        // SAFETY: the pointer is of this function.
        get(|out| unsafe { ncclCommGetAsyncError(self.comm, out) })
    }

    fn destroy(&self) -> c_int {
        // SAFETY: there are no pointers.
        unsafe { ncclCommDestroy(self.comm) }
    }

    fn abort(&self) -> c_int {
        // SAFETY: there are no pointers.
        unsafe { ncclCommAbort(self.comm) }
    }

    fn sum(&self, from: u64, to: u64, count: usize) -> c_int {
        // SAFETY: no pointers are dereferenced unchecked.
        unsafe { ncclAllReduce(from, to, count, f32::NUMBER, 0, self.comm, self.stream) }
    }
}

/// Element type of the tests' arithmetic.
trait Element: Copy + PartialEq + std::fmt::Debug {
    const NUMBER: c_int;
    fn of(number: i64) -> Self;
}

impl Element for f32 {
    const NUMBER: c_int = 7;
    fn of(number: i64) -> Self {
        number as Self
    }
}

impl Element for f16 {
    const NUMBER: c_int = 6;
    fn of(number: i64) -> Self {
        Self::from_f32(number as f32)
    }
}

impl Element for bf16 {
    const NUMBER: c_int = 9;
    fn of(number: i64) -> Self {
        Self::from_f32(number as f32)
    }
}

impl Element for i64 {
    const NUMBER: c_int = 4;
    fn of(number: i64) -> Self {
        number
    }
}

/// Allocates device memory with these elements.
fn upload<T: Element>(elements: &[T]) -> u64 {
    let bytes = size_of_val(elements);
    // SAFETY: pointers are of this function, and there are this many bytes.
    unsafe {
        let address = get(|out| cuMemAlloc_v2(out, bytes.max(1))).unwrap();
        let from = elements.as_ptr().cast();
        assert_eq!(cuMemcpyHtoD_v2(address, from, bytes), 0);
        address
    }
}

/// Returns the content of device memory after a stream's work, and frees it.
fn download<T: Element>(address: u64, count: usize, stream: Handle) -> Vec<T> {
    let mut elements = vec![T::of(0); count];
    let to = elements.as_mut_ptr().cast();
    // SAFETY: there is room for this many bytes.
    unsafe {
        let bytes = count * size_of::<T>();
        assert_eq!(cuMemcpyDtoHAsync_v2(to, address, bytes, stream), 0);
        assert_eq!(cuMemFreeAsync(address, stream), 0);
    }
    elements
}
