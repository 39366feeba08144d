//! The thread of a device, which runs collectives one after the other and watches over them.
//!
//! A rank in several communicators has one thread and one stream for all of them. Their collectives
//! run in the order in which the rank started them, the same on all ranks. NCCL may hang if two
//! ranks run collectives of two communicators in different orders ("Using multiple NCCL
//! communicators concurrently",
//! <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html>).
//!
//! The caller announces its call through the host group at once, and the thread compares it between
//! all ranks before NCCL sees it. If ranks disagreed, NCCL would hang or return wrong sums. The
//! exchange also shows which rank is missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::NcclError;
use super::call::Inside;
use super::communicator::WORD;
use crate::backend::cuda::nccl::{Nccl, UniqueId};
use crate::collective::{Descriptor, Kind};
use crate::deadline::Allowance;
use crate::error::{CollectiveError, Error};
use crate::{Buffer, Cuts, Handle, ProcessGroup};

/// How long the thread polls a collective without a pause.
const EAGER: Duration = Duration::from_micros(200);

/// Pause between polls after that.
const PAUSE: Duration = Duration::from_micros(50);

/// Pause between checks for the end of the thread.
const END: Duration = Duration::from_millis(1);

/// A device's thread.
pub(crate) struct Lane<N: Nccl> {
    pub(super) nccl: Arc<N>,
    tasks: Option<Sender<Task<N>>>,
    thread: Option<thread::JoinHandle<()>>,
    pub(super) inside: Arc<Inside>,
    communicators: AtomicUsize,
}

/// A task of the thread, with the number of the communicator.
pub(super) enum Task<N: Nccl> {
    /// Connects the ranks of a group.
    Connect(
        usize,
        ProcessGroup,
        UniqueId,
        SyncSender<Result<(), NcclError>>,
    ),
    /// Runs a collective.
    Run(usize, Job<N>),
    /// Closes a communicator, and drops the sender when that is done.
    Close(usize, SyncSender<()>),
}

/// A collective.
pub(super) struct Job<N: Nccl> {
    pub what: Descriptor,
    pub cuts: Cuts,
    /// The calls of all ranks.
    pub called: Handle,
    pub memory: N::Memory,
    pub answer: SyncSender<Result<N::Memory, Error>>,
}

impl<N: Nccl> Lane<N> {
    /// Starts the thread.
    pub fn start(nccl: N) -> Result<Arc<Self>, NcclError> {
        let (tasks, receiver) = channel();
        let (nccl, inside) = (Arc::new(nccl), Arc::new(Inside::default()));
        let (own, seen) = (nccl.clone(), inside.clone());
        let thread = thread::Builder::new()
            .name("nccl".to_owned())
            .spawn(move || serve(&*own, &seen, &receiver))
            .map_err(|error| NcclError::Call {
                call: "thread",
                code: error.raw_os_error().unwrap_or_default(),
                reason: error.to_string(),
            })?;
        Ok(Arc::new(Self {
            nccl,
            tasks: Some(tasks),
            thread: Some(thread),
            inside,
            communicators: AtomicUsize::new(0),
        }))
    }

    /// The number of a new communicator.
    pub(super) fn number(&self) -> usize {
        self.communicators.fetch_add(1, Ordering::AcqRel)
    }

    /// Queues a task. If the thread is gone, the receiver of the answer finds its sender dropped.
    pub(super) fn have_done(&self, task: Task<N>) {
        if let Some(tasks) = &self.tasks {
            let _ = tasks.send(task);
        }
    }
}

impl<N: Nccl> Drop for Lane<N> {
    fn drop(&mut self) {
        self.tasks = None;
        let Some(thread) = self.thread.take() else {
            return;
        };
        while !thread.is_finished() {
            if self.inside.is_lost() {
                return; // What does not come back cannot be waited for.
            }
            thread::sleep(END);
        }
        let _ = thread.join();
    }
}

/// A communicator as the thread knows it.
struct Member<N: Nccl> {
    group: ProcessGroup,
    /// `None` if it was never connected or was aborted.
    connected: Option<N::Communicator>,
    first_error: Option<String>,
}

/// Runs the thread's tasks.
fn serve<N: Nccl>(nccl: &N, inside: &Inside, tasks: &Receiver<Task<N>>) {
    // Few, so a search costs nothing.
    let mut members: Vec<(usize, Member<N>)> = Vec::new();
    while let Ok(task) = tasks.recv() {
        match task {
            Task::Connect(number, group, id, report) => {
                let met = inside.during(group.patience().limit(), || {
                    nccl.connect(&id, group.size(), group.rank())
                });
                let connected = match met {
                    Ok(connected) => connected,
                    Err(error) => {
                        let _ = report.send(Err(error));
                        continue;
                    }
                };
                let member = Member {
                    group,
                    connected: Some(connected),
                    first_error: None,
                };
                match report.send(Ok(())) {
                    Ok(()) => members.push((number, member)),
                    // The caller has given this up and will not close it.
                    Err(_) => end(nccl, inside, member),
                }
            }
            Task::Run(number, job) => {
                // Without a communicator the answer's sender is dropped with the job, which reports
                // it.
                if let Some((_, member)) = members.iter_mut().find(|(own, _)| *own == number) {
                    run(nccl, inside, member, job);
                }
            }
            Task::Close(number, _done) => {
                let place = members.iter().position(|(own, _)| *own == number);
                if let Some(place) = place {
                    end(nccl, inside, members.swap_remove(place).1);
                }
            }
        }
    }
}

fn run<N: Nccl>(nccl: &N, inside: &Inside, member: &mut Member<N>, job: Job<N>) {
    let Job {
        what,
        cuts,
        called,
        mut memory,
        answer,
    } = job;
    let group = &member.group;
    let Some(connected) = member.connected.as_mut() else {
        let first = member.first_error.clone().unwrap_or_default();
        let _ = answer.send(Err(CollectiveError::Unusable { first, fault: None }.into()));
        return;
    };
    let done = carry_out(
        nccl,
        connected,
        (group, inside),
        (&what, &cuts),
        called,
        &mut memory,
    );
    let Err(error) = done else {
        let _ = answer.send(Ok(memory));
        return;
    };
    member.first_error = Some(error.to_string());
    // NCCL may also wait for the ranks of this host to abort: they must know first.
    group.abort(&error.to_string());
    let _ = answer.send(Err(error));
    if let Some(connected) = member.connected.take() {
        inside.during(group.patience().limit(), || nccl.abort(connected));
    }
    // The device may have written to it until here, and the next owner must not see that.
    drop(memory);
}

/// Closes a communicator. NCCL waits for the ranks of this host, which come if none has failed.
fn end<N: Nccl>(nccl: &N, inside: &Inside, member: Member<N>) {
    let Member {
        group, connected, ..
    } = member;
    let Some(connected) = connected else {
        return;
    };
    inside.during(group.patience().limit(), || match group.fault() {
        None => nccl.close(connected),
        Some(_) => nccl.abort(connected),
    });
}

/// Checks that all ranks made the same call. `ranks` has their numbers in the world, `rank` is this
/// one's in the group.
fn compare(
    called: &Buffer,
    what: &Descriptor,
    (rank, ranks): (usize, &[usize]),
) -> Result<(), Error> {
    let words = called.as_slice::<i64>()?;
    for (peer, words) in ranks.iter().zip(words.chunks_exact(WORD)) {
        let mut theirs = [0; WORD];
        for (word, raw) in theirs.iter_mut().zip(words) {
            *word = raw.cast_unsigned();
        }
        let theirs = Descriptor::decode(theirs);
        if theirs.as_ref() != Some(what) {
            return Err(CollectiveError::Mismatch {
                rank: ranks.get(rank).copied().unwrap_or(rank),
                mine: *what,
                peer: *peer,
                theirs,
            }
            .into());
        }
    }
    Ok(())
}

fn carry_out<N: Nccl>(
    nccl: &N,
    communicator: &mut N::Communicator,
    (group, inside): (&ProcessGroup, &Inside),
    (what, cuts): (&Descriptor, &Cuts),
    called: Handle,
    memory: &mut N::Memory,
) -> Result<(), Error> {
    compare(&called.wait()?, what, (group.rank(), group.world_ranks()))?;
    nccl.make_ready(memory)?;
    if what.kind == Kind::Barrier || what.len == 0 {
        return Ok(());
    }
    let limit = group.patience().limit();
    // Ranks that have not exchanged anything in this way yet are connected by NCCL first, which
    // waits for them.
    inside.during(limit, || nccl.enqueue(communicator, what, cuts, memory))?;
    let (begin, mut allowance) = (Instant::now(), Allowance::of(limit));
    loop {
        if nccl.is_done(communicator)? {
            group.patience().note(what);
            return Ok(());
        }
        if begin.elapsed() < EAGER {
            thread::yield_now();
            continue;
        }
        nccl.asynchronous_error(communicator)?;
        if let Some(reason) = group.fault() {
            return Err(NcclError::PeerFailed { reason }.into());
        }
        if allowance.left(Instant::now()).is_zero() {
            return Err(NcclError::TimedOut {
                seconds: limit.as_secs(),
            }
            .into());
        }
        thread::sleep(PAUSE);
    }
}
