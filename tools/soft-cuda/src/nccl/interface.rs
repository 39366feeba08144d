//! The C interface of NCCL (<https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html>).
//! As in the driver, handles are numbers that are looked up, not pointers that are dereferenced.
#![allow(unsafe_code)] // Exports C functions.
#![allow(non_snake_case)] // The names are NCCL's.
#![allow(clippy::missing_safety_doc)] // For each, pointers are null or what NCCL's manual says.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::collective::{Collective, Job};
use super::communicator::Communicator;
use super::error::{Code, Error, words};
use super::reduce::{Operation, Type};
use super::shared::Id;
use crate::driver::handles::Handles;
use crate::driver::{Handle, Out};
use crate::report::{count, say};
use crate::settings::settings;

/// The simulated version: 2.27.3.
const VERSION: c_int = 22_703;

static COMMUNICATORS: Handles<Communicator> = Handles::new(0x6_0000_0000);

thread_local! {
    /// Number of open groups of this thread.
    static GROUPS: Cell<u32> = const { Cell::new(0) };
}

/// Runs the body of a call. Catches panics.
fn call(name: &'static str, work: impl FnOnce() -> Result<(), Error>) -> c_int {
    count(name);
    let done = catch_unwind(AssertUnwindSafe(work));
    let panicked = |_| Err(Error::new(Code::Internal, "a mistake of soft-cuda itself"));
    match done.unwrap_or_else(panicked) {
        Ok(()) => 0,
        Err(error) => {
            say(format_args!("{name}: {}", error.reason));
            error.code as c_int
        }
    }
}

fn put<T>(out: Out<'_, T>, value: T) -> Result<(), Error> {
    let null = || Error::argument("there is no place for the result");
    out.ok_or_else(null)?.write(value);
    Ok(())
}

fn communicator(handle: Handle) -> Result<Arc<Communicator>, Error> {
    let unknown = |_| Error::argument(format!("{handle:#x} is no communicator"));
    COMMUNICATORS.get(handle).map_err(unknown)
}

/// Returns the version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(out: Out<c_int>) -> c_int {
    call("ncclGetVersion", || put(out, VERSION))
}

/// Returns the meaning of a code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    words(code).as_ptr()
}

/// Returns the place where ranks can meet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(out: Out<Id>) -> c_int {
    call("ncclGetUniqueId", || put(out, Id::unique()))
}

/// Creates a communicator after all ranks have come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    out: Out<Handle>,
    size: c_int,
    id: Id,
    rank: c_int,
) -> c_int {
    call("ncclCommInitRank", || {
        let place = out.ok_or_else(|| Error::argument("there is no place for the result"))?;
        let invalid = |_| Error::argument(format!("rank {rank} of {size}"));
        let size_and_rank = usize::try_from(size).and_then(|s| Ok((s, usize::try_from(rank)?)));
        let (size, rank) = size_and_rank.map_err(invalid)?;
        if rank >= size {
            return Err(Error::argument(format!("rank {rank} of {size}")));
        }
        let limit = Duration::from_secs(settings().nccl_seconds);
        let made = Communicator::connect(&id, size, rank, limit)?;
        place.write(COMMUNICATORS.add(made));
        Ok(())
    })
}

/// Destroys a communicator after all enqueued work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(handle: Handle) -> c_int {
    call("ncclCommDestroy", || end(handle, Communicator::destroy))
}

/// Ends a communicator and its enqueued work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(handle: Handle) -> c_int {
    call("ncclCommAbort", || end(handle, Communicator::abort))
}

fn end(handle: Handle, how: fn(&Communicator)) -> Result<(), Error> {
    how(&*communicator(handle)?);
    // Removed last: one thread may abort what another waits for. Then both get here.
    let _ = COMMUNICATORS.remove(handle);
    Ok(())
}

/// Returns an error that occurred after calls returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(handle: Handle, out: Out<c_int>) -> c_int {
    call("ncclCommGetAsyncError", || {
        let error = communicator(handle)?.error();
        put(out, error.map_or(0, |code| code as c_int))
    })
}

/// Starts a group. Its calls are enqueued immediately, in order, which makes no difference here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> c_int {
    call("ncclGroupStart", || {
        GROUPS.set(GROUPS.get() + 1);
        Ok(())
    })
}

/// Ends a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> c_int {
    call("ncclGroupEnd", || {
        let left = GROUPS.get().checked_sub(1);
        let none = || Error::new(Code::InvalidUsage, "no group was started");
        GROUPS.set(left.ok_or_else(none)?);
        Ok(())
    })
}

/// Arguments of all collectives.
struct Arguments {
    from: u64,
    to: u64,
    count: usize,
    kind: c_int,
    handle: Handle,
    stream: Handle,
}

impl Arguments {
    fn enqueue(
        self,
        name: &'static str,
        collective: impl FnOnce() -> Result<Collective, Error>,
    ) -> c_int {
        call(name, || {
            let communicator = communicator(self.handle)?;
            let job = Job {
                collective: collective()?,
                from: self.from,
                to: self.to,
                count: self.count,
                kind: Type::of(self.kind)?,
            };
            communicator.enqueue(job, self.stream)
        })
    }
}

fn root(number: c_int) -> Result<usize, Error> {
    let negative = |_| Error::argument(format!("root {number}"));
    usize::try_from(number).map_err(negative)
}

macro_rules! collectives {
    ($($(#[$doc:meta])* $name:ident($($argument:ident),*) $collective:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            from: u64,
            to: u64,
            count: usize,
            kind: c_int,
            $($argument: c_int,)*
            handle: Handle,
            stream: Handle,
        ) -> c_int {
            let all = Arguments { from, to, count, kind, handle, stream };
            let collective: fn($(collectives!(@int $argument)),*) -> Result<Collective, Error> =
                $collective;
            all.enqueue(stringify!($name), || collective($($argument),*))
        }
    )*};
    (@int $argument:ident) => { c_int };
}

collectives! {
    /// Reduces the elements of all ranks; all get the result.
    ncclAllReduce(operation) |operation| Ok(Collective::AllReduce(Operation::of(operation)?));
    /// Does the same as [`ncclAllReduce`]; each rank gets its part of the result.
    ncclReduceScatter(operation)
        |operation| Ok(Collective::ReduceScatter(Operation::of(operation)?));
    /// Gives the elements of all ranks to all.
    ncclAllGather() || Ok(Collective::AllGather);
    /// Gives the elements of one rank to all.
    ncclBroadcast(to_all) |to_all| Ok(Collective::Broadcast { root: root(to_all)? });
    /// Does the same as [`ncclAllReduce`]; only one rank gets the result.
    ncclReduce(operation, target)
        |operation, target| Ok(Collective::Reduce(Operation::of(operation)?, root(target)?));
}
