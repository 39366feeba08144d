//! Groups whose ranks are threads of one process, for tests and experiments. They use the real
//! transports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use super::{GroupOptions, ProcessGroup, Queue, connect};
use crate::error::Error;
use crate::open_files::make_room;
use crate::rendezvous::{FILES_PER_RANK, RendezvousError, StoreServer};
use crate::transport::Reach;
use crate::wire::Secret;
use crate::wire::net::working_loopback;
use crate::world::World;

pub(super) fn connect_all(size: usize, options: &GroupOptions) -> Result<Vec<ProcessGroup>, Error> {
    if size == 1 {
        return Ok(vec![ProcessGroup::single()]);
    }
    // Streams to and from other ranks, the socket that listens for them, and both ends of a
    // connection to the store.
    let files = 2 * Reach::default().distances(size).count() + 2 + FILES_PER_RANK;
    make_room(size, files).map_err(RendezvousError::from)?;
    let (_, secret) = Secret::generate()?;
    let unreachable = RendezvousError::system("cannot connect to this machine's loopback address");
    let address = SocketAddr::from((working_loopback().map_err(unreachable)?, 0));
    let server = Arc::new(StoreServer::bind(address, size, secret.clone())?);
    let worlds = (0..size).map(|rank| World::local(rank, size, server.address(), secret.clone()));
    let worlds = worlds.collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| {
        let connect = |world: World| {
            let server = server.clone();
            scope.spawn(move || {
                let engine = connect::connect(&world, options.clone())?.hosting(server);
                Ok(ProcessGroup {
                    queue: Queue::new(engine),
                })
            })
        };
        let threads: Vec<_> = worlds.into_iter().map(connect).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}
