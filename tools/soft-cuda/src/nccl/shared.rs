//! The shared memory of a communicator's ranks: a file in `/dev/shm` with a header of counters and
//! a slot for each rank, which this rank writes and all read.
#![allow(unsafe_code)] // Maps a file, and makes references to its head.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::error::{Code, Error};

/// Bytes of a slot.
pub(super) const SLOT: usize = 1 << 20;

const HEAD: usize = 4096;

/// Largest number of ranks in the header.
const MOST_RANKS: usize = 64;

/// Prefix of the file names.
const PREFIX: &str = "soft-cuda-nccl-";

/// Number of times that a waiting rank only yields before it sleeps between checks.
const EAGER: u32 = 100;
const PAUSE: Duration = Duration::from_micros(50);

/// `ncclUniqueId`: the name of the file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Id {
    bytes: [u8; 128],
}

impl Id {
    /// Creates an id that no other communicator of this host has.
    pub(super) fn unique() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = time.map_or(0, |time| time.as_nanos());
        let name = format!("{PREFIX}{}-{count}-{time}", std::process::id());
        let mut bytes = [0; 128];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Self { bytes }
    }

    pub(super) fn path(&self) -> Result<PathBuf, Error> {
        let name = self.bytes.split(|&byte| byte == 0).next();
        let name = name.and_then(|name| str::from_utf8(name).ok());
        match name {
            Some(name) if name.starts_with(PREFIX) && !name.contains('/') => {
                Ok(Path::new("/dev/shm").join(name))
            }
            _ => Err(Error::argument("the id is not from ncclGetUniqueId")),
        }
    }
}

/// Starts as zeros, as every file does.
#[repr(C)]
struct Head {
    /// Number of ranks, set by the first one.
    size: AtomicU32,
    /// Ranks that have the file open.
    attached: AtomicU32,
    /// Ranks that wait in the barrier.
    arrived: AtomicU32,
    /// Number of completed barriers.
    generation: AtomicU32,
    /// Set when a rank failed or aborted.
    failed: AtomicU32,
    /// Set when a rank has destroyed its communicator.
    left: AtomicU32,
    present: [AtomicU32; MOST_RANKS],
}

const _: () = assert!(size_of::<Head>() <= HEAD);

/// The shared memory, as mapped by one rank.
pub(super) struct Shared {
    start: NonNull<u8>,
    pub size: usize,
    pub rank: usize,
    /// Set when this rank no longer waits.
    stopped: AtomicBool,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Shared {}
// SAFETY: the header consists of atomics, and a reference only gives addresses of the slots.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference to it outlives this.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), length(self.size)) };
    }
}

fn length(size: usize) -> usize {
    HEAD + size * SLOT
}

fn system(what: &str, path: &Path, error: impl std::fmt::Display) -> Error {
    Error::new(Code::System, format!("{what} {}: {error}", path.display()))
}

fn open(path: &Path, size: usize) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    let file = options.open(path);
    let file = file.map_err(|error| system("cannot open", path, error))?;
    // Otherwise a full file system would only show at a rank's write, as a signal.
    let reserved = reserve(&file, length(size) as u64);
    reserved.map_err(|error| system("no room for", path, error))?;
    Ok(file)
}

fn reserve(file: &File, bytes: u64) -> Result<(), Errno> {
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

impl Shared {
    /// Connects to the other ranks within the time limit. In the end the file is unlinked in any
    /// case.
    pub fn meet(id: &Id, size: usize, rank: usize, limit: Duration) -> Result<Self, Error> {
        if size > MOST_RANKS {
            let reason = format!("{size} ranks are more than {MOST_RANKS}");
            return Err(Error::argument(reason));
        }
        let path = id.path()?;
        let remove = || std::fs::remove_file(&path);
        let mapped = Self::map(&path, size, rank);
        let shared = mapped.inspect_err(|_| drop(remove()))?;
        shared.introduce()?;
        if shared.head().attached.fetch_add(1, Ordering::AcqRel) + 1 == size as u32 {
            let _ = remove();
        }
        let met = shared.barrier_within(Some(limit));
        if let Err(error) = met {
            shared.fail();
            let _ = remove();
            let reason = format!("{size} ranks do not meet: {}", error.reason);
            return Err(Error::new(Code::System, reason));
        }
        Ok(shared)
    }

    fn map(path: &Path, size: usize, rank: usize) -> Result<Self, Error> {
        let file = open(path, size)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the address of the mapping, so nothing is replaced.
        let start: Result<*mut c_void, _> =
            unsafe { mmap(null_mut(), length(size), access, MapFlags::SHARED, &file, 0) };
        let start = start.map_err(|error| system("cannot map", path, error))?;
        let start = NonNull::new(start.cast::<u8>());
        Ok(Self {
            start: start.ok_or_else(|| system("cannot map", path, "no address"))?,
            size,
            rank,
            stopped: AtomicBool::new(false),
        })
    }

    /// Refuses a duplicate rank, and one with another number of ranks.
    fn introduce(&self) -> Result<(), Error> {
        let size = self.size as u32;
        let (order, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let said = self.head().size.compare_exchange(0, size, order, failure);
        match said {
            Err(other) if other != size => {
                let reason = format!("{size} ranks, and another rank said {other}");
                return Err(Error::argument(reason));
            }
            _ => {}
        }
        match self.head().present[self.rank].swap(1, order) {
            0 => Ok(()),
            _ => {
                let reason = format!("there is a rank {} already", self.rank);
                Err(Error::argument(reason))
            }
        }
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping starts with it, at a page, and all processes only access it as
        // atomics.
        unsafe { self.start.cast().as_ref() }
    }

    /// Returns the address of byte `offset` in a rank's slot, with room for `bytes`.
    pub fn slot(&self, rank: usize, offset: usize, bytes: usize) -> *mut u8 {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= SLOT);
        assert!(rank < self.size && inside, "outside of a slot");
        let start = self.start.as_ptr();
        // SAFETY: the mapping has a slot for each rank, and this is within it.
        unsafe { start.add(HEAD + rank * SLOT + offset) }
    }

    /// Waits until all ranks are here.
    pub fn barrier(&self) -> Result<(), Error> {
        self.barrier_within(None)
    }

    fn barrier_within(&self, limit: Option<Duration>) -> Result<(), Error> {
        let head = self.head();
        let generation = head.generation.load(Ordering::Acquire);
        if head.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.size as u32 {
            head.arrived.store(0, Ordering::Release);
            head.generation.fetch_add(1, Ordering::AcqRel);
            return Ok(());
        }
        let begin = Instant::now();
        let mut looked = 0;
        loop {
            let obstacle = self.obstacle();
            // Checked after the obstacle: a rank that leaves when all have arrived is no obstacle.
            if head.generation.load(Ordering::Acquire) != generation {
                return Ok(());
            }
            if let Some(error) = obstacle {
                return Err(error);
            }
            if let Some(limit) = limit.filter(|&limit| begin.elapsed() > limit) {
                let reason = format!("another rank did not come within {limit:?}");
                return Err(Error::new(Code::System, reason));
            }
            match looked {
                EAGER => std::thread::sleep(PAUSE),
                _ => {
                    looked += 1;
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Returns the reason why the other ranks will not come.
    pub fn obstacle(&self) -> Option<Error> {
        let is_set = |flag: &AtomicU32| flag.load(Ordering::Acquire) != 0;
        if self.has_stopped() {
            Some(Error::new(Code::InvalidUsage, "aborted"))
        } else if self.has_failed() {
            Some(Error::new(Code::Remote, "another rank aborted or failed"))
        } else if is_set(&self.head().left) {
            let reason = "another rank destroyed its communicator";
            Some(Error::new(Code::Remote, reason))
        } else {
            None
        }
    }

    /// Ends every wait of this rank, now and later.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Tells all ranks that the communicator has failed.
    pub fn fail(&self) {
        self.head().failed.store(1, Ordering::Release);
    }

    /// Returns true if any rank failed or aborted.
    pub fn has_failed(&self) -> bool {
        self.head().failed.load(Ordering::Acquire) != 0
    }

    /// Tells all ranks that this one is finished.
    pub fn leave(&self) {
        self.head().left.store(1, Ordering::Release);
    }
}
