//! MPI from its start to its end, once per process.

use std::any::Any;
use std::ffi::c_int;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mpi::Threading;
use mpi::ffi;
use parking_lot::Mutex;

use super::NoSession;
use super::call::{MpiError, check};
use super::collectives::Collectives;
use super::guard::within;
use super::streams::Streams;
use crate::transport::{Meanwhile, Reach, Transport, TransportError};
use crate::watchdog;
use crate::world::World;

/// Time for the ranks to start MPI or to make a communicator together.
const START_LIMIT: Duration = Duration::from_secs(180);

/// Time to end all ranks.
const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// Time that finished ranks wait for the last one, which may have much left to do.
const END_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Keeps MPI running. MPI can be started once in the life of a process.
#[derive(Debug)]
pub(crate) struct Session {
    rank: usize,
    size: usize,
    /// Whether the program started MPI itself and will end it.
    foreign: bool,
}

enum State {
    Fresh,
    Running(Weak<Session>),
    Over,
}

static STATE: Mutex<State> = Mutex::new(State::Fresh);

impl Session {
    /// Starts MPI, or joins a running MPI. All ranks call it.
    ///
    /// # Errors
    /// Fails if MPI was ended before, or supports threads too little, or if no watchdog thread can
    /// be started.
    pub fn start() -> Result<Arc<Self>, NoSession> {
        let mut state = STATE.lock();
        let over = || {
            failed(
                "its start",
                "MPI was finalized and cannot be initialized again".into(),
            )
        };
        match &*state {
            State::Running(session) => return session.upgrade().ok_or_else(over),
            State::Over => return Err(over()),
            State::Fresh => {}
        }
        // These calls have no timeout, and wait for ranks that may have died.
        watchdog::start().map_err(|error| {
            let reason = format!("cannot start the MPI watchdog thread: {error}");
            failed("its start", reason)
        })?;
        let _guard = within("starting MPI", START_LIMIT);
        let (foreign, threading) = match mpi::initialize_with_threading(Threading::Multiple) {
            Some((universe, threading)) => {
                // `drop` below ends MPI, and only if that cannot hang.
                std::mem::forget(universe);
                (false, threading)
            }
            None => (true, mpi::environment::threading_support()),
        };
        if threading < Threading::Multiple {
            let reason = format!(
                "the MPI library supports threads only as {threading:?}, but Multiple is needed"
            );
            return Err(failed("its start", reason));
        }
        let (mut rank, mut size) = (0, 0);
        // SAFETY: MPI runs, so its world exists; the pointers are to two integers here.
        let told = unsafe {
            let world = ffi::RSMPI_COMM_WORLD;
            // Returns errors as values instead of ending the process.
            check(
                "MPI_Comm_set_errhandler",
                ffi::MPI_Comm_set_errhandler(world, ffi::RSMPI_ERRORS_RETURN),
            )
            .and_then(|()| check("MPI_Comm_rank", ffi::MPI_Comm_rank(world, &mut rank)))
            .and_then(|()| check("MPI_Comm_size", ffi::MPI_Comm_size(world, &mut size)))
        };
        told.map_err(|error| failed("its start", error.to_string()))?;
        let session = Arc::new(Self {
            rank: usize::try_from(rank).unwrap_or_default(),
            size: usize::try_from(size).unwrap_or_default(),
            foreign,
        });
        *state = State::Running(Arc::downgrade(&session));
        Ok(session)
    }

    /// The session that keeps MPI running for `world`, if MPI started its ranks.
    pub fn of(world: &World) -> Option<Arc<Self>> {
        let companion: Arc<dyn Any + Send + Sync> = world.from_launcher.companion.clone()?;
        companion.downcast().ok()
    }

    /// Rank of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Streams among `ranks` of the world, in this order, with this rank at `place`.
    ///
    /// `ranks` are the group with this `number`, or some of it. They all call it, and no others.
    pub fn streams(
        self: &Arc<Self>,
        ranks: &[usize],
        number: u64,
        place: usize,
        reach: Reach,
    ) -> Result<Box<dyn Transport>, TransportError> {
        let communicator = self.communicator(ranks, number)?;
        Ok(Box::new(Streams::new(
            communicator,
            place,
            ranks.len(),
            reach,
        )?))
    }

    /// MPI's own collectives among `ranks` of the world, which are the group with this `number`.
    /// They all call it, and no others.
    pub fn collectives(
        self: &Arc<Self>,
        ranks: &[usize],
        number: u64,
    ) -> Result<Collectives, TransportError> {
        Ok(Collectives::new(self.communicator(ranks, number)?))
    }

    /// A communicator of some ranks for one purpose.
    fn communicator(
        self: &Arc<Self>,
        ranks: &[usize],
        number: u64,
    ) -> Result<Communicator, TransportError> {
        let made = match number {
            0 if ranks.len() == self.size => self.duplicate(),
            number => self.subset(ranks, number),
        };
        made.map_err(|error| TransportError::Setup {
            transport: "mpi",
            action: "making a communicator".into(),
            source: error.into(),
        })
    }

    /// A communicator of all ranks for one purpose, separate from other messages. All ranks call
    /// it.
    fn duplicate(self: &Arc<Self>) -> Result<Communicator, MpiError> {
        let _guard = within("MPI_Comm_dup", START_LIMIT);
        // SAFETY: MPI runs as long as the session; the handle is written before it is read.
        let raw = unsafe {
            let mut raw = ffi::RSMPI_COMM_NULL;
            check(
                "MPI_Comm_dup",
                ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut raw),
            )?;
            check(
                "MPI_Comm_set_errhandler",
                ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN),
            )?;
            raw
        };
        Ok(Communicator {
            raw,
            rank: self.rank,
            size: self.size,
            session: self.clone(),
        })
    }

    /// A communicator of `ranks`, in this order, which include this rank. They all call it, and no
    /// others. Simultaneous calls for several subsets need different `number`s.
    fn subset(self: &Arc<Self>, ranks: &[usize], number: u64) -> Result<Communicator, MpiError> {
        let _guard = within("MPI_Comm_create_group", START_LIMIT);
        let wanted: Vec<c_int> = ranks.iter().map(|rank| *rank as c_int).collect();
        // Every library takes tags of 15 bits.
        let tag = (number & 0x7fff) as c_int;
        // SAFETY: MPI runs as long as the session. Handles are written before they are read, and
        // `wanted` has as many ranks as the call says.
        let raw = unsafe {
            let mut world = ffi::RSMPI_GROUP_NULL;
            let mut group = ffi::RSMPI_GROUP_NULL;
            let mut raw = ffi::RSMPI_COMM_NULL;
            check(
                "MPI_Comm_group",
                ffi::MPI_Comm_group(ffi::RSMPI_COMM_WORLD, &mut world),
            )?;
            check(
                "MPI_Group_incl",
                ffi::MPI_Group_incl(world, wanted.len() as c_int, wanted.as_ptr(), &mut group),
            )?;
            check(
                "MPI_Comm_create_group",
                ffi::MPI_Comm_create_group(ffi::RSMPI_COMM_WORLD, group, tag, &mut raw),
            )?;
            check("MPI_Group_free", ffi::MPI_Group_free(&mut group))?;
            check("MPI_Group_free", ffi::MPI_Group_free(&mut world))?;
            check(
                "MPI_Comm_set_errhandler",
                ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN),
            )?;
            raw
        };
        Ok(Communicator {
            raw,
            rank: ranks
                .iter()
                .position(|rank| *rank == self.rank)
                .unwrap_or(0),
            size: ranks.len(),
            session: self.clone(),
        })
    }
}

impl Drop for Session {
    /// Ends MPI, unless something failed: `MPI_Finalize` waits for all ranks, and a failed rank
    /// never comes. Launchers treat a process that leaves without it as failed, which is right.
    fn drop(&mut self) {
        let mut state = STATE.lock();
        *state = match self.foreign {
            true => State::Fresh,
            false => State::Over,
        };
        if self.foreign || std::thread::panicking() || failure::happened() {
            return;
        }
        let _guard = within("MPI_Finalize", END_LIMIT);
        // SAFETY: we started it, it has not ended, and nothing of it is used after the session.
        unsafe {
            ffi::MPI_Finalize();
        }
    }
}

/// A communicator of our own.
#[derive(Debug)]
pub(crate) struct Communicator {
    raw: ffi::MPI_Comm,
    /// Rank of this process in it.
    pub(super) rank: usize,
    /// Its number of ranks.
    pub(super) size: usize,
    /// Keeps MPI running.
    session: Arc<Session>,
}

// SAFETY: a handle is an index or a pointer into the library, which takes calls from any thread
// (`Threading::Multiple`).
unsafe impl Send for Communicator {}

impl Communicator {
    /// The handle, for calls.
    pub(super) fn raw(&self) -> ffi::MPI_Comm {
        self.raw
    }

    /// A call that lets the library send and receive, for ranks that make no other call.
    pub(super) fn progress(&self) -> Meanwhile {
        let session = self.session.clone();
        Rc::new(move || {
            let _runs = &session;
            let mut found = 0;
            // SAFETY: MPI runs as long as the session, the flag is an integer here, and no status
            // is requested. The result does not matter: errors show in the calls that send and
            // receive.
            let _ = unsafe {
                ffi::MPI_Iprobe(
                    ffi::RSMPI_ANY_SOURCE,
                    ffi::RSMPI_ANY_TAG,
                    ffi::RSMPI_COMM_WORLD,
                    &mut found,
                    ffi::RSMPI_STATUS_IGNORE,
                )
            };
        })
    }
}

/// Remembers that this process failed, so that it does not wait for others at the end.
pub(super) mod failure {
    use std::sync::atomic::{AtomicBool, Ordering};

    static HAPPENED: AtomicBool = AtomicBool::new(false);

    /// Skips waiting for the end of MPI from now on.
    pub fn note() {
        HAPPENED.store(true, Ordering::SeqCst);
    }

    pub(super) fn happened() -> bool {
        HAPPENED.load(Ordering::SeqCst)
    }
}

/// Skips waiting for the end of MPI from now on, because a rank has failed.
pub(crate) fn note_failure() {
    failure::note();
}

/// Ends all ranks at once with `code` if MPI runs; otherwise returns.
///
/// For a process that cannot go on after a panic: unwinding would end in an `MPI_Finalize` that
/// waits for ever.
pub(crate) fn abort(code: i32) {
    failure::note();
    // The panicking thread may hold the lock.
    let running = match STATE.try_lock() {
        Some(state) => matches!(&*state, State::Running(_)),
        None => mpi::environment::is_initialized() && !mpi::environment::is_finalized(),
    };
    if running {
        let _guard = within("MPI_Abort", ABORT_LIMIT);
        // SAFETY: MPI runs; this is the last action of this process.
        unsafe {
            ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code as c_int);
        }
    }
}

/// Name and version of the MPI library, such as `Open MPI v4.1.4`.
pub(crate) fn library() -> Option<String> {
    let text = mpi::environment::library_version().unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let name = line.split(',').next().unwrap_or_default().trim();
    Some(match name.strip_prefix("MPICH Version:") {
        Some(version) => format!("MPICH {}", version.trim()),
        None => name.trim_end_matches('\0').to_owned(),
    })
}

fn failed(action: &'static str, reason: String) -> NoSession {
    NoSession { action, reason }
}
