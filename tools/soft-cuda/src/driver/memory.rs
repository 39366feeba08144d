//! "Memory Management": allocations. Stream-ordered allocations are made immediately.
#![allow(unsafe_code)] // Exports C functions.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;

use super::call::{Code, Out, call, put};
use super::context::current;
use super::device::device;
use super::queue::enqueue;
use super::stream::{device_of, ready};
use super::table::{self, Owner};
use super::{Error, Handle, pending};
use crate::machine::Buffer;
use crate::report::{lock, say};
use crate::settings::settings;

/// Host memory allocated by the driver.
static HOST: Mutex<BTreeMap<usize, Buffer>> = Mutex::new(BTreeMap::new());

/// The handle of device 0's pool.
const FIRST_POOL: Handle = 0x800;

fn allocate(device: usize, out: Out<u64>, bytes: usize) -> Result<(), Error> {
    let out = out.ok_or(Error::InvalidValue)?;
    out.write(table::write().add(device, Owner::Program, bytes, &[])?);
    Ok(())
}

fn free(address: u64) -> Result<(), Error> {
    if address == 0 {
        return Ok(());
    }
    let removed = table::write().remove(address, Owner::Program);
    if removed.is_err() {
        say(format_args!("{address:#x} is freed, and is no allocation"));
    }
    removed
}

/// Returns the free and the total bytes of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Code {
    call("cuMemGetInfo_v2", || {
        let used = table::read().used(current()?);
        put(free, settings().memory.saturating_sub(used) as usize)?;
        put(total, settings().memory as usize)
    })
}

/// Allocates device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(out: Out<u64>, bytes: usize) -> Code {
    call("cuMemAlloc_v2", || allocate(current()?, out, bytes))
}

/// Allocates device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(out: Out<u64>, bytes: usize, stream: Handle) -> Code {
    call("cuMemAllocAsync", || {
        let device = device_of(stream)?;
        // Memory that an earlier operation of a stream frees is available.
        if table::read().free(device) < bytes as u64 {
            ready(stream)?;
        }
        allocate(device, out, bytes)
    })
}

/// Waits for the work of the streams that may use some memory.
fn wait() {
    // Without a context there is no device to wait for.
    if let Ok(device) = current() {
        pending::wait_for_device(device);
    }
}

/// Frees device memory when the device's streams are idle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: u64) -> Code {
    call("cuMemFree_v2", || {
        wait();
        free(address)
    })
}

/// Frees device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: u64, stream: Handle) -> Code {
    call("cuMemFreeAsync", || {
        enqueue(device_of(stream)?, stream, move || free(address)).map(drop)
    })
}

/// Returns true if these bytes are host memory allocated by the driver.
pub(super) fn is_pinned(start: usize, bytes: usize) -> bool {
    let all = lock(&HOST);
    let before = all.range(..=start).next_back();
    before.is_some_and(|(_, buffer)| buffer.range().holds(start as u64, bytes))
}

fn allocate_host(out: Out<usize>, bytes: usize) -> Result<(), Error> {
    current()?;
    if bytes == 0 {
        return Err(Error::InvalidValue);
    }
    let buffer = Buffer::new(bytes).ok_or(Error::OutOfMemory)?;
    let start = buffer.range().start as usize;
    put(out, start)?;
    lock(&HOST).insert(start, buffer);
    Ok(())
}

/// Allocates host memory. Kernels cannot access it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(out: Out<usize>, bytes: usize) -> Code {
    call("cuMemAllocHost_v2", || allocate_host(out, bytes))
}

/// Allocates host memory. Kernels cannot access it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(out: Out<usize>, bytes: usize, _flags: c_uint) -> Code {
    call("cuMemHostAlloc", || allocate_host(out, bytes))
}

/// Frees host memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(address: usize) -> Code {
    call("cuMemFreeHost", || {
        wait();
        let freed = lock(&HOST).remove(&address);
        freed.map(drop).ok_or(Error::InvalidValue)
    })
}

/// Returns the pool of a device, which keeps nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(out: Out<Handle>, number: c_int) -> Code {
    call("cuDeviceGetDefaultMemPool", || {
        put(out, FIRST_POOL + device(number)?)
    })
}

/// Does the same as [`cuDeviceGetDefaultMemPool`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetMemPool(out: Out<Handle>, number: c_int) -> Code {
    // SAFETY: guaranteed by the caller.
    unsafe { cuDeviceGetDefaultMemPool(out, number) }
}

/// Sets how much a pool keeps; it always keeps nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(
    _pool: Handle,
    _attribute: c_int,
    _value: *mut c_void,
) -> Code {
    call("cuMemPoolSetAttribute", || Ok(()))
}

/// Frees the memory kept by a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolTrimTo(_pool: Handle, _bytes: usize) -> Code {
    call("cuMemPoolTrimTo", || Ok(()))
}
