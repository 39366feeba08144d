//! The order of collectives: one queue, one progress thread, one engine.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::engine::{Call, Engine, Poison, Standing, Target};
use super::handle::{self, Handle, Promise};
use super::members::Members;
use super::patience::Patience;
use crate::buffer::Buffer;
use crate::error::{CollectiveError, Error};
use crate::thread_limit::NoThreads;

/// Collectives that wait for their turn, and the engine that runs them.
pub(super) struct Queue {
    shared: Arc<Shared>,
    pub place: Standing,
    pub members: Members,
    pub patience: Patience,
    pub poison: Poison,
    /// Number of models trained in this group so far.
    models: AtomicU32,
}

struct Shared {
    state: Mutex<State>,
    /// Signals a queued collective or the end of the group.
    queued: Condvar,
    /// Signals that the engine is back and the queue is empty.
    idle: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    /// `None` while a collective runs.
    engine: Option<Box<Engine>>,
    has_thread: bool,
    closed: bool,
}

struct Job {
    call: Call,
    buffer: Buffer,
    promise: Promise,
}

impl Queue {
    pub fn new(engine: Engine) -> Arc<Self> {
        let (place, poison) = (engine.place, engine.poison.clone());
        let (members, patience) = (engine.members.clone(), engine.patience.clone());
        let state = State {
            jobs: VecDeque::new(),
            engine: Some(Box::new(engine)),
            has_thread: false,
            closed: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            queued: Condvar::new(),
            idle: Condvar::new(),
        };
        Arc::new(Self {
            shared: Arc::new(shared),
            place,
            members,
            patience,
            poison,
            models: AtomicU32::new(0),
        })
    }

    /// Number of the next model to train in this group, from 1. Equal on all ranks if they make
    /// models in the same order.
    pub fn next_model(&self) -> u32 {
        self.models.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Queues a collective for the progress thread. The first call starts the thread.
    pub fn start(&self, call: Call, buffer: Buffer) -> Handle {
        let (handle, promise) = handle::pair();
        let mut state = self.shared.state.lock();
        if !state.has_thread {
            let shared = self.shared.clone();
            let name = match self.members.number() {
                0 => format!("collectives-{}", self.place.rank),
                number => format!("group-{number}-{}", self.place.rank),
            };
            if let Err(error) = thread::Builder::new()
                .name(name)
                .spawn(move || shared.progress())
            {
                match NoThreads::of(&error) {
                    Some(limit) => promise.fulfil(Err(CollectiveError::Threads(limit).into())),
                    // The dropped promise reports the error.
                    None => tracing::error!("cannot start the progress thread: {error}"),
                }
                return handle;
            }
            state.has_thread = true;
        }
        state.jobs.push_back(Job {
            call,
            buffer,
            promise,
        });
        drop(state);
        self.shared.queued.notify_one();
        handle
    }

    /// Runs `work` on this thread after everything that was started before.
    pub fn inline<R>(
        &self,
        work: impl FnOnce(&mut Engine) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut engine = self.shared.take_idle();
        let result = catch_unwind(AssertUnwindSafe(|| work(&mut engine)));
        if result.is_err() {
            engine.break_with("a collective panicked");
        }
        self.shared.put_back(engine);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if thread::panicking() {
            // The progress thread may say goodbye to the store, and does not know of this panic.
            self.poison.inject("it panicked");
        }
        let mut state = self.shared.state.lock();
        state.closed = true;
        // Say goodbye here: the process may end before the progress thread does.
        let idle = match state.jobs.is_empty() {
            true => state.engine.take(),
            false => None,
        };
        drop(state);
        self.shared.queued.notify_all();
        drop(idle);
    }
}

impl Shared {
    fn take_idle(&self) -> Box<Engine> {
        let mut state = self.state.lock();
        loop {
            if state.jobs.is_empty()
                && let Some(engine) = state.engine.take()
            {
                return engine;
            }
            self.idle.wait(&mut state);
        }
    }

    fn put_back(&self, engine: Box<Engine>) {
        let mut state = self.state.lock();
        state.engine = Some(engine);
        let queued = !state.jobs.is_empty();
        drop(state);
        if queued {
            self.queued.notify_one();
        } else {
            self.idle.notify_one();
        }
    }

    /// Runs queued collectives until the group ends and the queue is empty.
    fn progress(&self) {
        while let Some((job, mut engine)) = self.next() {
            let Job {
                call,
                mut buffer,
                promise,
            } = job;
            let run = AssertUnwindSafe(|| engine.run(call, Target::Buffer(&mut buffer)));
            let result = catch_unwind(run).unwrap_or_else(|_| {
                engine.break_with("a collective panicked");
                Err(CollectiveError::NoProgress.into())
            });
            self.put_back(engine);
            promise.fulfil(result.map(|()| buffer));
        }
    }

    fn next(&self) -> Option<(Job, Box<Engine>)> {
        let mut state = self.state.lock();
        loop {
            if !state.jobs.is_empty()
                && let Some(engine) = state.engine.take()
                && let Some(job) = state.jobs.pop_front()
            {
                return Some((job, engine));
            }
            if state.closed && state.jobs.is_empty() {
                return None;
            }
            self.queued.wait(&mut state);
        }
    }
}
