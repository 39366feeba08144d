//! "Execution Control".
#![allow(unsafe_code)] // Exports C functions, and reads arguments at addresses that it is given.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::call::{Code, Out, call, put};
use super::context::fail;
use super::device::{BLOCK, GRID, SHARED_BYTES, SHARED_BYTES_ALLOWED, THREADS};
use super::module::{Function, function};
use super::queue::enqueue;
use super::stream::device_of;
use super::{Error, Handle, priority, table};
use crate::machine::{FaultKind, Kernel, Launch, LaunchError};
use crate::ptx::ThreadLimit;
use crate::report::{say, time};
use crate::settings::settings;
use crate::tally;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const ALLOWED_SHARED: c_int = 8;

/// Returns the largest dynamic shared memory for a launch of a kernel.
fn most_dynamic_shared(function: &Function) -> usize {
    let allowed = function.allowed_shared.load(Ordering::Relaxed);
    let unasked = SHARED_BYTES.saturating_sub(function.kernel.shared);
    unasked.max(allowed.cast_unsigned() as usize)
}

fn most_threads(kernel: &Kernel) -> u64 {
    match kernel.threads {
        ThreadLimit::None => THREADS,
        ThreadLimit::AtMost(most) => most.min(THREADS),
        ThreadLimit::Exactly(each) => each.iter().product(),
    }
}

/// Sets the largest shared memory of a kernel. Other attributes are hints.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(
    handle: Handle,
    attribute: c_int,
    value: c_int,
) -> Code {
    call("cuFuncSetAttribute", || {
        let function = function(handle)?;
        if attribute == ALLOWED_SHARED {
            let bytes = usize::try_from(value).map_err(|_| Error::InvalidValue)?;
            if bytes + function.kernel.shared > SHARED_BYTES_ALLOWED {
                return Err(Error::InvalidValue);
            }
            function.allowed_shared.store(value, Ordering::Relaxed);
        }
        Ok(())
    })
}

/// Returns an attribute of a kernel (`CUfunction_attribute`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(
    out: Out<c_int>,
    attribute: c_int,
    handle: Handle,
) -> Code {
    call("cuFuncGetAttribute", || {
        let function = function(handle)?;
        let value = match attribute {
            0 => most_threads(&function.kernel) as c_int, // MAX_THREADS_PER_BLOCK
            1 => function.kernel.shared as c_int,         // SHARED_SIZE_BYTES
            3 => function.kernel.local as c_int,          // LOCAL_SIZE_BYTES
            ALLOWED_SHARED => most_dynamic_shared(&function) as c_int,
            _ => 0,
        };
        put(out, value)
    })
}

/// Returns true if a GPU would accept this launch.
fn possible(function: &Function, grid: [u32; 3], block: [u32; 3], shared: usize) -> bool {
    let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
    let within = |each: [u32; 3], most: [u32; 3]| {
        let mut pairs = each.iter().zip(most);
        pairs.all(|(&n, most)| (1..=most).contains(&n))
    };
    let suits = match function.kernel.threads {
        ThreadLimit::Exactly(each) => block.map(u64::from) == each,
        _ => threads <= most_threads(&function.kernel),
    };
    let suits = suits && threads <= THREADS && shared <= most_dynamic_shared(function);
    suits && within(grid, GRID) && within(block, BLOCK)
}

/// # Safety
/// `pointers` is null or has a pointer for each parameter, to as many bytes as it has.
unsafe fn arguments(kernel: &Kernel, pointers: *const *const u8) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; kernel.parameter_bytes];
    if pointers.is_null() && !kernel.parameters.is_empty() {
        return Err(Error::InvalidValue);
    }
    for (n, parameter) in kernel.parameters.iter().enumerate() {
        // SAFETY: there is a pointer for each parameter.
        let pointer = unsafe { pointers.add(n).read() };
        if pointer.is_null() {
            return Err(Error::InvalidValue);
        }
        let place = &mut bytes[parameter.offset..][..parameter.size];
        // SAFETY: both sides have this many bytes, and the destination is memory of this function.
        unsafe { pointer.copy_to_nonoverlapping(place.as_mut_ptr(), place.len()) };
    }
    Ok(bytes)
}

fn code(kind: FaultKind) -> Error {
    match kind {
        FaultKind::IllegalAddress { .. } => Error::IllegalAddress,
        FaultKind::Misaligned { .. } => Error::MisalignedAddress,
        FaultKind::Race { .. }
        | FaultKind::Unfenced
        | FaultKind::Descriptor
        | FaultKind::Deadlock
        | FaultKind::Trap => Error::LaunchFailed,
    }
}

fn launch(
    device: usize,
    function: &Function,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: usize,
    arguments: &[u8],
) -> Result<(), Error> {
    if settings().idle && settings().counts.is_none() {
        time(&function.kernel.name, Duration::ZERO);
        return Ok(());
    }
    let began = Instant::now();
    let table = table::read();
    let launch = Launch {
        kernel: &function.kernel,
        grid,
        block,
        dynamic_shared,
        arguments,
        globals: &function.globals.addresses,
        device: &table.ranges(),
    };
    // SAFETY: the table's memory is initialised, and not freed while the table is held. A program
    // that writes to it meanwhile, from another thread, would also race with a GPU.
    let ran = unsafe {
        match settings().counts {
            Some(_) => tally::launch(&launch),
            None if settings().races => launch.run_watched(),
            None => launch.run(),
        }
    };
    time(&function.kernel.name, began.elapsed());
    let Err(error) = ran else {
        return Ok(());
    };
    say(&error);
    match error {
        LaunchError::OutOfMemory => Err(Error::OutOfMemory),
        LaunchError::Failed(failure) => {
            fail(device, code(failure.kind));
            Err(code(failure.kind))
        }
    }
}

/// Launches a kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    handle: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Handle,
    parameters: *const *const u8,
    extra: *const *const c_void,
) -> Code {
    call("cuLaunchKernel", || {
        priority::raise();
        let device = device_of(stream)?;
        let function = function(handle)?;
        if !extra.is_null() {
            say("arguments in one piece are not implemented");
            return Err(Error::NotSupported);
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shared = shared as usize;
        if !possible(&function, grid, block, shared) {
            let name = &function.kernel.name;
            say(format_args!(
                "kernel `{name}` cannot have a grid {grid:?} of blocks {block:?} with {shared} bytes"
            ));
            return Err(Error::InvalidValue);
        }
        // SAFETY: guaranteed by this function's caller.
        let arguments = unsafe { arguments(&function.kernel, parameters) }?;
        let run = move || launch(device, &function, grid, block, shared, &arguments);
        enqueue(device, stream, run).map(drop)
    })
}
