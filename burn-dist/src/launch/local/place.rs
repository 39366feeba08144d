//! The variables that tell a rank its place in the world.

use crate::launch::variables::{MASTER_ADDR, MASTER_PORT, SECRET, SECRET_FILE};
use std::net::SocketAddr;
use std::process::Command;

/// The variable with a rank's number of threads.
pub(in crate::launch) const THREADS: &str = "RAYON_NUM_THREADS";

/// Place of a rank in the world and on its node.
pub(in crate::launch) struct Place {
    pub rank: usize,
    pub size: usize,
    pub local_rank: usize,
    pub local_size: usize,
}

impl Place {
    /// Sets the variables that [`World::from_env`](crate::world::World::from_env) reads.
    pub(in crate::launch) fn describe(
        &self,
        command: &mut Command,
        store: SocketAddr,
        secret: &str,
    ) {
        // Left over from another launch, these would contradict the variables set here.
        let of_torchrun = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"];
        let others = ["GROUP_RANK", "NODE_RANK", SECRET_FILE];
        for name in others.into_iter().chain(of_torchrun) {
            command.env_remove(name);
        }
        command
            .env("RANK", self.rank.to_string())
            .env("LOCAL_RANK", self.local_rank.to_string())
            .env("WORLD_SIZE", self.size.to_string())
            .env("LOCAL_WORLD_SIZE", self.local_size.to_string())
            .env(MASTER_ADDR, store.ip().to_string())
            .env(MASTER_PORT, store.port().to_string())
            .env(SECRET, secret);
    }
}

/// Gives a rank its share of the CPUs that this process may use, which can be fewer than the
/// machine has, unless the user has set a number of threads.
pub(in crate::launch) fn share_processors(command: &mut Command, ranks: usize, by_user: bool) {
    if !by_user && std::env::var_os(THREADS).is_none() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        command.env(THREADS, (processors / ranks.max(1)).max(1).to_string());
    }
}
