//! Runs work on a group of ranks: connects them, shares their errors, and opens data in turn.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use burn_dist::group::{Abort, GroupOptions, ProcessGroup};
use burn_dist::world::World;

use crate::config::Config;
use crate::error::TrainError;
use crate::run::same_config;
use crate::system::output::{self, complain_unlogged};
use crate::system::signals::{self, Waiting};
use crate::system::{log, panics};

/// Does `work` as one rank of `world`. Tells the other ranks if it fails or panics.
pub(crate) fn with_group<T>(
    config: &Config,
    world: &World,
    work: impl FnOnce(&ProcessGroup) -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let group = connect(config, world).inspect_err(leave_to_a_signal)?;
    let _watched = panics::watch(&group);
    let checked = same_config::check(config, &group);
    let worked = checked.and_then(|()| work(&group));
    worked.inspect_err(|error| {
        leave_to_a_signal(error);
        // Only the first rank to fail reports the error.
        if error.is_of_another_rank() {
            return;
        }
        if error.is_same_on_all_ranks() && !world.is_main() {
            if is_told_by_another(&group) {
                return;
            }
            SPEAKS_ALONE.store(true, Ordering::Relaxed);
        }
        group.abort(&error.to_string());
    })
}

/// Waits until another rank has reported a failure; false if none does.
///
/// All ranks have the same error. The main rank prints it, so it should not hear before of another
/// rank that failed.
fn is_told_by_another(group: &ProcessGroup) -> bool {
    let deadline = Instant::now() + HEARD;
    while group.fault().is_none() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

/// Whether the main rank did not report the error that all ranks should have.
pub(crate) fn speaks_alone() -> bool {
    SPEAKS_ALONE.load(Ordering::Relaxed)
}

fn leave_to_a_signal(error: &TrainError) {
    let another = error.is_of_another_rank().then(|| error.to_string());
    signals::come_first(another.as_deref());
}

fn connect(config: &Config, world: &World) -> Result<ProcessGroup, TrainError> {
    let timeout = Duration::from_secs(config.parallel.timeout_seconds);
    let options = GroupOptions {
        transport: config.parallel.transport,
        algorithm: config.parallel.algorithm,
        timeout,
        abort: Some(Abort {
            after: Duration::from_secs(config.parallel.abort_seconds),
            tell: last_words,
        }),
        connecting: Some(panics::connecting),
        ..GroupOptions::default()
    };
    RANK.store(world.rank(), Ordering::Relaxed);
    let waiting = Waiting::start();
    let connected = ProcessGroup::connect_with(world, options);
    drop(waiting);
    Ok(connected?)
}

/// Time for rank 0 to find an error that all ranks have.
const HEARD: Duration = Duration::from_secs(2);
/// Pause between two looks for it.
const LOOK: Duration = Duration::from_millis(5);

/// See [`speaks_alone`].
static SPEAKS_ALONE: AtomicBool = AtomicBool::new(false);

/// Rank of this process.
static RANK: AtomicUsize = AtomicUsize::new(0);

/// Prints why this process is about to end. Some of the steps may hang, so the most useful comes
/// first.
fn last_words(reason: &str) {
    let rank = RANK.load(Ordering::Relaxed);
    let text = format!("error on rank {rank}: {reason}");
    output::screen::restore();
    complain_unlogged(&text);
    log::write(&text);
    output::flush();
}

/// Longest time for one rank to open shared input: a slow download, or a scan of a large folder.
const OPENING: Duration = Duration::from_secs(4 * 3600);

/// Gathers messages of all ranks without the usual timeout, for ranks that search or read much.
pub(crate) fn gather_whenever(
    group: &ProcessGroup,
    payload: &[u8],
) -> Result<Vec<Vec<u8>>, burn_dist::Error> {
    group.barrier_within(OPENING)?;
    group.gather_bytes(payload)
}

/// Opens shared input on one rank of each node first.
///
/// Files are thus downloaded once, and errors reported once. Returns after all ranks have opened
/// it.
pub(crate) fn in_turn<T>(
    world: &World,
    group: &ProcessGroup,
    open: impl FnOnce() -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let _waiting = Waiting::start();
    let opened = if world.local_rank() == 0 {
        let opened = open()?;
        group.barrier_within(OPENING)?;
        opened
    } else {
        group.barrier_within(OPENING)?;
        open()?
    };
    group.barrier_within(OPENING)?;
    Ok(opened)
}
