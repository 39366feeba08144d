//! "Initialization", "Version Management" and "Device Management".
#![allow(unsafe_code)] // Exports C functions.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use super::call::{Code, Out, call, put};
use super::{Error, Handle};
use crate::settings::settings;

static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// Default shared memory of a block, which every GPU has.
pub(super) const SHARED_BYTES: usize = 48 << 10;
/// Largest shared memory that a kernel can be allowed.
pub(super) const SHARED_BYTES_ALLOWED: usize = 227 << 10;
/// Threads of a block, in total and along each axis.
pub(super) const THREADS: u64 = 1024;
pub(super) const BLOCK: [u32; 3] = [1024, 1024, 64];
pub(super) const GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// Returns the device of the caller's number, counted among this process's visible devices.
pub(super) fn device(number: c_int) -> Result<usize, Error> {
    if !INITIALIZED.load(Ordering::Relaxed) {
        return Err(Error::NotInitialized);
    }
    let device = usize::try_from(number).map_err(|_| Error::InvalidDevice)?;
    if device < settings().devices.len() {
        Ok(device)
    } else {
        Err(Error::InvalidDevice)
    }
}

/// Starts the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> Code {
    call("cuInit", || {
        if flags != 0 {
            return Err(Error::InvalidValue);
        }
        if settings().devices.is_empty() {
            return Err(Error::NoDevice);
        }
        INITIALIZED.store(true, Ordering::Relaxed);
        Ok(())
    })
}

/// Returns the CUDA version that the driver supports.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(out: Out<c_int>) -> Code {
    call("cuDriverGetVersion", || put(out, settings().driver))
}

/// Returns a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(out: Out<c_int>, number: c_int) -> Code {
    call("cuDeviceGet", || {
        device(number)?;
        put(out, number)
    })
}

/// Returns the number of devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(out: Out<c_int>) -> Code {
    call("cuDeviceGetCount", || {
        device(0)?;
        put(out, settings().devices.len() as c_int)
    })
}

/// Writes a C string, cut off at the available space.
unsafe fn put_text(out: *mut c_char, room: c_int, text: &str) -> Result<(), Error> {
    let room = usize::try_from(room).map_err(|_| Error::InvalidValue)?;
    if out.is_null() || room == 0 {
        return Err(Error::InvalidValue);
    }
    let text = &text.as_bytes()[..text.len().min(room - 1)];
    // SAFETY: the caller guarantees this much space, and the text is shorter by one.
    unsafe {
        out.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// Returns the name of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(out: *mut c_char, room: c_int, number: c_int) -> Code {
    call("cuDeviceGetName", || {
        device(number)?;
        // SAFETY: guaranteed by this function's caller.
        unsafe { put_text(out, room, &settings().name) }
    })
}

/// Returns a device's simulated place on a bus.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(out: *mut c_char, room: c_int, number: c_int) -> Code {
    call("cuDeviceGetPCIBusId", || {
        let bus = settings().devices[device(number)?] + 1;
        // SAFETY: guaranteed by this function's caller.
        unsafe { put_text(out, room, &format!("0000:{bus:02x}:00.0")) }
    })
}

/// Returns a unique number of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(out: Out<[u8; 16]>, number: c_int) -> Code {
    call("cuDeviceGetUuid", || {
        let device = settings().devices[device(number)?];
        put(out, std::array::from_fn(|i| (i + device) as u8))
    })
}

/// Does the same as [`cuDeviceGetUuid`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, number: c_int) -> Code {
    // SAFETY: guaranteed by the caller.
    unsafe { cuDeviceGetUuid(out, number) }
}

/// Returns the memory of a device in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(out: Out<usize>, number: c_int) -> Code {
    call("cuDeviceTotalMem_v2", || {
        device(number)?;
        put(out, settings().memory as usize)
    })
}

/// Returns a `CUdevice_attribute` of an H200; only attributes that programs request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    out: Out<c_int>,
    attribute: c_int,
    number: c_int,
) -> Code {
    call("cuDeviceGetAttribute", || {
        device(number)?;
        put(out, self::attribute(attribute)?)
    })
}

fn attribute(attribute: c_int) -> Result<c_int, Error> {
    let arch = settings().arch as c_int;
    Ok(match attribute {
        ..1 => return Err(Error::InvalidValue),
        1 => THREADS as c_int, // MAX_THREADS_PER_BLOCK
        2..=4 => BLOCK[attribute as usize - 2] as c_int, // MAX_BLOCK_DIM_X to _Z
        5..=7 => GRID[attribute as usize - 5] as c_int, // MAX_GRID_DIM_X to _Z
        8 => SHARED_BYTES as c_int, // MAX_SHARED_MEMORY_PER_BLOCK
        10 => 32,              // WARP_SIZE
        12 | 82 => 65_536,     // MAX_REGISTERS_PER_BLOCK, _PER_MULTIPROCESSOR
        13 => 1_980_000,       // CLOCK_RATE
        16 => 132,             // MULTIPROCESSOR_COUNT
        36 => 3_201_000,       // MEMORY_CLOCK_RATE
        37 => 6144,            // GLOBAL_MEMORY_BUS_WIDTH
        38 => 60 << 20,        // L2_CACHE_SIZE
        39 => 2048,            // MAX_THREADS_PER_MULTIPROCESSOR
        41 | 115 => 1,         // UNIFIED_ADDRESSING, MEMORY_POOLS_SUPPORTED
        75 => arch / 10,       // COMPUTE_CAPABILITY_MAJOR
        76 => arch % 10,       // COMPUTE_CAPABILITY_MINOR
        81 => SHARED_BYTES_ALLOWED as c_int + 1024, // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        97 => SHARED_BYTES_ALLOWED as c_int, // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        _ => 0,
    })
}

/// NVRTC looks here for undocumented tables; this driver has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(out: Out<Handle>, _table: *const c_void) -> Code {
    call("cuGetExportTable", || {
        put(out, 0)?;
        Err(Error::NotFound)
    })
}
