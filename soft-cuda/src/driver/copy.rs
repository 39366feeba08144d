//! "Memory Management": copying and filling, which is over when a call returns.
#![allow(unsafe_code)] // Exports C functions, and copies between addresses that it is given.

use std::ffi::{c_int, c_void};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use super::call::{Code, call};
use super::stream::ready;
use super::table::{self, Table};
use super::{Error, Handle};
use crate::report::say;

/// Copies that name no stream are in this one.
const DEFAULT_STREAM: Handle = 0;

/// Where something is copied from or to.
#[derive(Clone, Copy)]
enum Side {
    Host(u64),
    Device(u64),
}

use Side::{Device, Host};

impl Side {
    fn host<T>(pointer: *const T) -> Self {
        Host(pointer.expose_provenance() as u64)
    }

    /// The address, if all of these bytes can be there.
    fn checked(self, table: &Table, bytes: usize) -> Result<usize, Error> {
        let address = match self {
            Device(address) => {
                let checked = table.check(address, bytes);
                checked.inspect_err(|_| {
                    say(format_args!(
                        "{bytes} bytes at {address:#x} are not within an allocation"
                    ));
                })?;
                address
            }
            Host(0) => return Err(Error::InvalidValue),
            Host(address) => address,
        };
        Ok(address as usize)
    }

    fn further(self, bytes: u64) -> Self {
        match self {
            Host(address) => Host(address.wrapping_add(bytes)),
            Device(address) => Device(address.wrapping_add(bytes)),
        }
    }
}

/// # Safety
/// Host memory must be valid for as many bytes.
unsafe fn copy(to: Side, from: Side, bytes: usize) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    let table = table::read();
    let (to, from) = (to.checked(&table, bytes)?, from.checked(&table, bytes)?);
    let (to, from) = (
        with_exposed_provenance_mut::<u8>(to),
        with_exposed_provenance::<u8>(from),
    );
    // SAFETY: device memory is within an allocation that is not freed while the table is held; host memory
    // is the caller's word.
    unsafe { to.copy_from(from, bytes) };
    Ok(())
}

fn fill(address: u64, value: u8, bytes: usize) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    let table = table::read();
    let start = with_exposed_provenance_mut::<u8>(Device(address).checked(&table, bytes)?);
    // SAFETY: it is within an allocation that is not freed while the table is held.
    unsafe { start.write_bytes(value, bytes) };
    Ok(())
}

macro_rules! copies {
    ($($(#[$doc:meta])* $name:ident, $later:ident: $to:ty, $from:ty, $sides:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(to: $to, from: $from, bytes: usize) -> Code {
            let sides: fn($to, $from) -> (Side, Side) = $sides;
            let (to, from) = sides(to, from);
            call(stringify!($name), || {
                ready(DEFAULT_STREAM)?;
                // SAFETY: this function's caller promises the same.
                unsafe { copy(to, from, bytes) }
            })
        }

        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $later(
            to: $to,
            from: $from,
            bytes: usize,
            stream: Handle,
        ) -> Code {
            let sides: fn($to, $from) -> (Side, Side) = $sides;
            let (to, from) = sides(to, from);
            call(stringify!($later), || {
                ready(stream)?;
                // SAFETY: this function's caller promises the same.
                unsafe { copy(to, from, bytes) }
            })
        }
    )*};
}

copies! {
    /// Copies to the device.
    cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2: u64, *const c_void,
        |to, from| (Device(to), Side::host(from));
    /// Copies from the device.
    cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2: *mut c_void, u64,
        |to, from| (Side::host(to), Device(from));
    /// Copies within the device.
    cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2: u64, u64,
        |to, from| (Device(to), Device(from));
}

/// Copies from device to device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    _to_context: Handle,
    from: u64,
    _from_context: Handle,
    bytes: usize,
    stream: Handle,
) -> Code {
    // SAFETY: no host memory is touched.
    unsafe { cuMemcpyDtoDAsync_v2(to, from, bytes, stream) }
}

/// Fills device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8_v2(address: u64, value: u8, bytes: usize) -> Code {
    call("cuMemsetD8_v2", || {
        ready(DEFAULT_STREAM)?;
        fill(address, value, bytes)
    })
}

/// Fills device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    address: u64,
    value: u8,
    bytes: usize,
    stream: Handle,
) -> Code {
    call("cuMemsetD8Async", || {
        ready(stream)?;
        fill(address, value, bytes)
    })
}

/// `CUDA_MEMCPY2D_v2`, one side of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    /// Bytes of a row before what is copied.
    pub x: usize,
    /// Rows before what is copied.
    pub y: usize,
    /// `CUmemorytype`: 1 of the processor, 2 of the device.
    pub kind: c_int,
    /// Of the processor.
    pub host: usize,
    /// Of the device.
    pub device: u64,
    /// Arrays are not implemented.
    pub array: Handle,
    /// Bytes from row to row; 0 if rows follow each other.
    pub pitch: usize,
}

/// `CUDA_MEMCPY2D_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copy2D {
    /// Where from.
    pub from: Plane,
    /// Where to.
    pub to: Plane,
    /// Bytes of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

impl Plane {
    fn row(&self, width: usize, row: usize) -> Result<Side, Error> {
        let start = match self.kind {
            1 => Host(self.host as u64),
            2 => Device(self.device),
            _ => return Err(Error::InvalidValue),
        };
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        if pitch < width {
            return Err(Error::InvalidValue);
        }
        let rows = self.y.wrapping_add(row);
        let offset = rows.wrapping_mul(pitch).wrapping_add(self.x);
        Ok(start.further(offset as u64))
    }
}

/// Copies part of a matrix.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(copied: Option<&Copy2D>, stream: Handle) -> Code {
    call("cuMemcpy2DAsync_v2", || {
        ready(stream)?;
        let all = copied.ok_or(Error::InvalidValue)?;
        for row in 0..all.height {
            let (to, from) = (all.to.row(all.width, row)?, all.from.row(all.width, row)?);
            // SAFETY: this function's caller promises that host memory is there for every row.
            unsafe { copy(to, from, all.width)? };
        }
        Ok(())
    })
}
