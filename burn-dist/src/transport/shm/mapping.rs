//! Memory that several processes of one host have mapped.
//!
//! Each piece is a memfd. It has no name in any file system, so nothing is left behind however a
//! process ends. Peers open it through `/proc/<pid>/fd`, which the kernel allows to the same user
//! only, and check a nonce that they received over the authenticated control connection.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::param::page_size;
use rustix::process::Pid;

/// Bytes at the end of each mapping that hold the nonce; a cache line keeps the rest aligned.
const TRAILER: usize = 64;

/// Data with which a peer finds a mapping of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pid: u32,
    fd: u32,
    len: u64,
    nonce: [u8; 16],
}

impl Ticket {
    /// Bytes of an encoded ticket.
    pub const BYTES: usize = 32;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.pid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.fd.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.nonce);
        bytes
    }

    pub fn process(&self) -> Option<Pid> {
        Pid::from_raw(self.pid.try_into().ok()?)
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            pid: u32::from_le_bytes(bytes.get(0..4)?.try_into().ok()?),
            fd: u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?),
            len: u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?),
            nonce: bytes.get(16..32)?.try_into().ok()?,
        })
    }
}

/// A range of shared memory, mapped for reading and writing.
pub(super) struct Mapping {
    start: NonNull<u8>,
    /// Usable bytes, without the trailer.
    len: usize,
}

// SAFETY: the mapping is plain memory, valid in every thread of the process until it is dropped.
unsafe impl Send for Mapping {}
// SAFETY: as above; the callers of the methods ensure who may touch which bytes when.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Allocates `len` zeroed bytes, and the file through which peers open them.
    ///
    /// `len` is rounded up to cache lines. Peers can open the file as long as it is open here. With
    /// `prefault` the pages exist when this returns. Then the first collective does not pay for
    /// them, and lack of memory is an error here instead of a signal later.
    pub fn create(len: usize, prefault: bool) -> io::Result<(Self, OwnedFd, Ticket)> {
        let len = len.max(1).next_multiple_of(TRAILER);
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("burn-dist", flags)?;
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&file, (len + TRAILER) as u64)?;
        // A peer that shrank the file would kill us with SIGBUS.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Self::map(&file, len)?;
        if prefault {
            mapping.prefault(0..len + TRAILER)?;
        }
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        mapping.trailer().copy_from_slice(&nonce);
        let ticket = Ticket {
            pid: std::process::id(),
            fd: u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?,
            len: len as u64,
            nonce,
        };
        Ok((mapping, file, ticket))
    }

    /// Maps the memory that `ticket` names in another process (or this one). `len` is its expected
    /// length. The pages of the ranges `prefault` exist when this returns.
    pub fn open(ticket: &Ticket, len: usize, prefault: &[Range<usize>]) -> io::Result<Self> {
        let len = len.max(1).next_multiple_of(TRAILER);
        if ticket.len != len as u64 {
            return Err(io::Error::other(format!(
                "it has {} bytes, expected {len}",
                ticket.len
            )));
        }
        let path = format!("/proc/{}/fd/{}", ticket.pid, ticket.fd);
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        let size = rustix::fs::fstat(&file)?.st_size;
        if size != (len + TRAILER) as i64 || !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other(
                "it is not the memory that the peer announced",
            ));
        }
        let mapping = Self::map(&file, len)?;
        if *mapping.trailer() != ticket.nonce {
            return Err(io::Error::other("it lacks the announced nonce"));
        }
        for range in prefault {
            mapping.prefault(range.clone())?;
        }
        Ok(mapping)
    }

    fn map(file: &OwnedFd, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address that the kernel chooses; the file has that length
        // and is sealed against shrinking.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len + TRAILER,
                access,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { start, len })
    }

    fn prefault(&self, range: Range<usize>) -> io::Result<()> {
        let end = range.end.min(self.len + TRAILER);
        let start = range.start.min(end) / page_size() * page_size();
        if start == end {
            return Ok(());
        }
        // SAFETY: the range lies in this mapping; populating changes no content.
        let populated = unsafe {
            rustix::mm::madvise(
                self.start.as_ptr().add(start).cast(),
                end - start,
                Advice::LinuxPopulateWrite,
            )
        };
        match populated {
            // Kernels before 5.14 do not know the advice; the first use then pays.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    #[allow(clippy::mut_from_ref)]
    fn trailer(&self) -> &mut [u8; 16] {
        // SAFETY: inside the mapping. Only `create` and `open` use it, each once, and `open` only
        // after the ticket that `create` returned has travelled.
        unsafe { &mut *self.start.as_ptr().add(self.len).cast() }
    }

    /// Usable bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` mapped the range, and nothing borrowed from it outlives it. A failure would
        // only leave it mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len + TRAILER) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_sees_what_is_written() {
        let (mine, _file, ticket) = Mapping::create(1000, true).unwrap();
        let ticket = Ticket::decode(&ticket.encode()).unwrap();
        let theirs = Mapping::open(&ticket, 1000, std::slice::from_ref(&(0..1000))).unwrap();
        // SAFETY: both mappings have at least 1000 bytes, and this test is their only user.
        unsafe {
            mine.as_ptr().add(999).write_volatile(7);
            assert_eq!(theirs.as_ptr().add(999).read_volatile(), 7);
        }
    }

    #[test]
    fn wrong_length_and_wrong_nonce_are_refused() {
        let (_mine, _file, mut ticket) = Mapping::create(1000, false).unwrap();
        assert!(Mapping::open(&ticket, 2000, &[]).is_err());
        ticket.nonce[0] ^= 1;
        assert!(Mapping::open(&ticket, 1000, &[]).is_err());
    }

    #[test]
    fn other_files_are_refused() {
        let other = tempfile::tempfile().unwrap();
        other.set_len(1024 + TRAILER as u64).unwrap();
        let fd = u32::try_from(other.as_raw_fd()).unwrap();
        let ticket = Ticket {
            pid: std::process::id(),
            fd,
            len: 1024,
            nonce: [0; 16],
        };
        assert!(Mapping::open(&ticket, 1024, &[]).is_err());
    }
}
