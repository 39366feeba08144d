//! "Memory Management": copying and filling. As in a real driver, a copy with host memory that the
//! driver did not allocate has finished reading or writing it when its call returns.
#![allow(unsafe_code)] // Exports C functions, and copies between addresses that it is given.

use std::ffi::{c_int, c_void};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use super::call::{Code, call};
use super::memory::is_pinned;
use super::queue::{at_once, enqueue};
use super::stream::{device_of, ready};
use super::table::{self, Table};
use super::{Error, Handle};
use crate::report::say;

/// Copies without a stream use this one.
const DEFAULT_STREAM: Handle = 0;

/// Source or destination of a copy.
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

    /// Returns the address if all of these bytes can be there.
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

/// A copied range of bytes.
#[derive(Clone, Copy)]
struct Piece {
    to: Side,
    from: Side,
    bytes: usize,
}

impl Piece {
    /// Refuses device memory that is not inside one allocation, as a driver does before the copy.
    fn check(&self) -> Result<(), Error> {
        if self.bytes > 0 {
            let table = table::read();
            self.to.checked(&table, self.bytes)?;
            self.from.checked(&table, self.bytes)?;
        }
        Ok(())
    }

    /// # Safety
    /// Host memory must be valid for as many bytes.
    unsafe fn copy(&self) -> Result<(), Error> {
        if self.bytes == 0 {
            return Ok(());
        }
        let table = table::read();
        let to = self.to.checked(&table, self.bytes)?;
        let from = self.from.checked(&table, self.bytes)?;
        let (to, from) = (
            with_exposed_provenance_mut::<u8>(to),
            with_exposed_provenance::<u8>(from),
        );
        // SAFETY: device memory is within an allocation that is not freed while the table is held;
        // host memory is guaranteed by the caller.
        unsafe { to.copy_from(from, self.bytes) };
        Ok(())
    }

    /// Reads host memory that the driver did not allocate, because it may change as soon as the
    /// call returns.
    ///
    /// # Safety
    ///
    /// Host memory must be valid for as many bytes.
    unsafe fn staged(self) -> Staged {
        let Host(from) = self.from else {
            return Staged::As(self);
        };
        if self.bytes == 0 || is_pinned(from as usize, self.bytes) {
            return Staged::As(self);
        }
        let from = with_exposed_provenance::<u8>(from as usize);
        // SAFETY: guaranteed by the caller.
        let content = unsafe { std::slice::from_raw_parts(from, self.bytes) }.to_vec();
        Staged::Read(self.to, content)
    }

    /// Returns true if the copy writes host memory that the driver did not allocate.
    fn returns_later(&self) -> bool {
        match self.to {
            Host(to) => !is_pinned(to as usize, self.bytes),
            Device(_) => false,
        }
    }
}

/// The part of a copy that the stream does.
enum Staged {
    As(Piece),
    Read(Side, Vec<u8>),
}

impl Staged {
    /// # Safety
    /// Host memory must be valid for as many bytes.
    unsafe fn copy(&self) -> Result<(), Error> {
        let piece = match self {
            Self::As(piece) => *piece,
            Self::Read(to, content) => Piece {
                to: *to,
                from: Side::host(content.as_ptr()),
                bytes: content.len(),
            },
        };
        // SAFETY: guaranteed by the caller, or it is this value's own.
        unsafe { piece.copy() }
    }
}

/// Copies in the order of a stream.
///
/// # Safety
///
/// Host memory must be valid for as many bytes: until this returns, and if the driver allocated it,
/// until the stream has done the copy.
unsafe fn copy(stream: Handle, pieces: &[Piece]) -> Result<(), Error> {
    let device = device_of(stream)?;
    pieces.iter().try_for_each(Piece::check)?;
    if at_once(stream) || pieces.iter().any(Piece::returns_later) {
        ready(stream)?;
        // SAFETY: guaranteed by the caller.
        return pieces.iter().try_for_each(|piece| unsafe { piece.copy() });
    }
    // SAFETY: guaranteed by the caller.
    let staged = pieces.iter().map(|piece| unsafe { piece.staged() });
    let staged: Vec<Staged> = staged.collect();
    // SAFETY: memory that was not read before belongs to the device, or was allocated by the
    // driver, which does not free it before the stream has done this.
    let copy = move || staged.iter().try_for_each(|piece| unsafe { piece.copy() });
    enqueue(device, stream, copy).map(drop)
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
                // SAFETY: guaranteed by this function's caller.
                unsafe { copy(DEFAULT_STREAM, &[Piece { to, from, bytes }]) }
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
                // SAFETY: guaranteed by this function's caller.
                unsafe { copy(stream, &[Piece { to, from, bytes }]) }
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

/// Copies from one device to another.
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
        if bytes > 0 {
            Device(address).checked(&table::read(), bytes)?;
        }
        let fill = move || fill(address, value, bytes);
        enqueue(device_of(stream)?, stream, fill).map(drop)
    })
}

/// One side of `CUDA_MEMCPY2D_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    /// Bytes of a row before the copied part.
    pub x: usize,
    /// Rows before the copied part.
    pub y: usize,
    /// `CUmemorytype`: 1 for the host, 2 for the device.
    pub kind: c_int,
    /// Address on the host.
    pub host: usize,
    /// Address on the device.
    pub device: u64,
    /// Arrays are not implemented.
    pub array: Handle,
    /// Bytes from row to row; 0 if rows are adjacent.
    pub pitch: usize,
}

/// `CUDA_MEMCPY2D_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copy2D {
    /// Source.
    pub from: Plane,
    /// Destination.
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
        let all = copied.ok_or(Error::InvalidValue)?;
        let piece = |row| {
            Ok(Piece {
                to: all.to.row(all.width, row)?,
                from: all.from.row(all.width, row)?,
                bytes: all.width,
            })
        };
        let pieces: Vec<Piece> = (0..all.height).map(piece).collect::<Result<_, _>>()?;
        // SAFETY: this function's caller guarantees host memory for every row.
        unsafe { copy(stream, &pieces) }
    })
}
