//! A rank of a communicator, and the thread for its enqueued work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::collective::Job;
use super::error::{Code, Error};
use super::shared::{Id, Shared};
use crate::driver::Handle;
use crate::driver::context::current;
use crate::driver::pending::{Ticket, wake};
use crate::driver::stream::{device_of, is_default};
use crate::report::{lock, say};

/// State shared by the thread and the calls.
struct State {
    shared: Shared,
    /// The first failure of this rank.
    failed: OnceLock<Code>,
}

impl State {
    fn fail(&self, error: &Error) {
        let first = self.failed.set(error.code).is_ok();
        self.shared.fail();
        // An abort is requested by the program itself.
        if first && !self.shared.has_stopped() {
            let (rank, reason) = (self.shared.rank, &error.reason);
            say(format_args!("rank {rank} of NCCL: {reason}"));
        }
    }

    fn error(&self) -> Option<Code> {
        let remote = self.shared.has_failed().then_some(Code::Remote);
        self.failed.get().copied().or(remote)
    }
}

type Enqueued = (Job, Ticket);

/// A communicator from the program's side.
pub(super) struct Communicator {
    state: Arc<State>,
    device: usize,
    /// `None` after its end.
    queue: Mutex<Option<Sender<Enqueued>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Communicator {
    /// Connects the ranks, on the calling thread's device.
    pub fn connect(id: &Id, size: usize, rank: usize, limit: Duration) -> Result<Self, Error> {
        let device = current().map_err(|error| Error::new(Code::UnhandledCuda, error.to_string()));
        let device = device?;
        let state = Arc::new(State {
            shared: Shared::meet(id, size, rank, limit)?,
            failed: OnceLock::new(),
        });
        let (queue, jobs) = channel();
        let own = state.clone();
        let thread = Builder::new().name(format!("soft-nccl-{rank}"));
        let thread = thread.spawn(move || serve(&own, &jobs));
        let thread = thread.map_err(|error| {
            state.shared.fail();
            Error::new(Code::System, format!("no thread: {error}"))
        })?;
        Ok(Self {
            state,
            device,
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
        })
    }

    pub fn enqueue(&self, job: Job, stream: Handle) -> Result<(), Error> {
        self.check_stream(stream)?;
        job.check(self.state.shared.size, self.state.shared.rank)?;
        if let Some(code) = self.error() {
            return Err(Error::new(code, "the communicator failed before"));
        }
        let queue = lock(&self.queue);
        let queue = queue.as_ref().ok_or_else(ended)?;
        let ticket = Ticket::take(self.device, stream);
        queue.send((job, ticket)).map_err(|_| ended())
    }

    /// The default stream belongs to the communicator's device, whatever the thread's current one.
    fn check_stream(&self, stream: Handle) -> Result<(), Error> {
        if is_default(stream) {
            return Ok(());
        }
        match device_of(stream) {
            Ok(device) if device == self.device => Ok(()),
            Ok(_) => Err(Error::argument("the stream is one of another device")),
            Err(error) => Err(Error::argument(format!("the stream: {error}"))),
        }
    }

    /// Returns an error that occurred after calls returned.
    pub fn error(&self) -> Option<Code> {
        self.state.error()
    }

    /// Waits for all enqueued work.
    pub fn destroy(&self) {
        self.end();
        self.state.shared.leave();
    }

    /// Aborts the enqueued work, also of the other ranks.
    pub fn abort(&self) {
        self.state.shared.stop();
        self.state.shared.fail();
        wake();
        self.end();
    }

    fn end(&self) {
        drop(lock(&self.queue).take());
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // It catches its panics.
            let _ = thread.join();
        }
    }
}

fn ended() -> Error {
    Error::argument("the communicator is at its end")
}

/// Runs the thread. Failed work keeps its place in its stream until the communicator ends.
fn serve(state: &State, jobs: &Receiver<Enqueued>) {
    let mut lost = Vec::new();
    for (job, ticket) in jobs {
        ticket.wait_for_turn(|| state.shared.has_stopped());
        if let Err(error) = run(state, &job) {
            state.fail(&error);
        }
        if state.failed.get().is_some() {
            ticket.lose();
            lost.push(ticket);
        }
    }
}

fn run(state: &State, job: &Job) -> Result<(), Error> {
    // A rank without elements needs no other, and may come after all others have left.
    if job.count > 0
        && let Some(obstacle) = state.shared.obstacle()
    {
        return Err(obstacle);
    }
    let ran = catch_unwind(AssertUnwindSafe(|| job.run(&state.shared)));
    let panicked = |_| Error::new(Code::Internal, "a mistake of soft-cuda itself");
    ran.map_err(panicked)?
}
