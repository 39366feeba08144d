//! The ranks that do something together: how they connect, learn of each other's errors, and take
//! turns.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use burn_dist::group::{Abort, GroupOptions, ProcessGroup};
use burn_dist::world::World;

use crate::config::Config;
use crate::error::TrainError;
use crate::run::same_config;
use crate::system::output::{self, complain_unlogged};
use crate::system::signals::{self, Waiting};
use crate::system::{log, panics};

/// Does `work` as one rank of `world`; the others are told if it fails or panics.
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
        match error {
            // All know it. Who started them is to hear it from the one that says why, before
            // another ends.
            TrainError::NotSaved { .. } if !world.is_main() => thread::sleep(HEARD),
            // Who failed because another rank did has nothing to tell.
            error if error.is_of_another_rank() => {}
            error => group.abort(&error.to_string()),
        }
    })
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

/// How long what rank 0 says may take to its launcher.
const HEARD: Duration = Duration::from_millis(300);

/// The rank that this process is.
static RANK: AtomicUsize = AtomicUsize::new(0);

/// Says why this process is ended. Some of it may hang, so what tells most comes first.
fn last_words(reason: &str) {
    let rank = RANK.load(Ordering::Relaxed);
    let text = format!("error on rank {rank}: {reason}");
    output::screen::restore();
    complain_unlogged(&text);
    log::write(&text);
    output::flush();
}

/// How long one rank may take to open what all need: a download by a slow line, a look at every
/// file of a large folder.
const OPENING: Duration = Duration::from_secs(4 * 3600);

/// What every rank says, however late they come: where one looks for something, or reads much.
pub(crate) fn gather_whenever(
    group: &ProcessGroup,
    payload: &[u8],
) -> Result<Vec<Vec<u8>>, burn_dist::Error> {
    group.barrier_within(OPENING)?;
    group.gather_bytes(payload)
}

/// Opens what all ranks need, one rank of each node before the others: files are downloaded once,
/// and what is wrong with them is said once. All have opened it then.
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
