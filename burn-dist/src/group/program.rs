//! Checks that all ranks run the same executable. A node with an old copy would compute something
//! else and fail, if at all, in obscure ways.

use std::fs::File;

use crate::launch::program_is_shared;
use crate::rendezvous::{RendezvousError, Store};
use crate::world::World;

/// Compares the executables of all ranks. A collective call.
pub(super) fn check(world: &World, store: &Store) -> Result<(), RendezvousError> {
    // These launchers start all ranks from one executable.
    if program_is_shared(world.launch()) {
        return Ok(());
    }
    let digests = store.all_gather("program", &digest())?;
    match digests.iter().position(|digest| *digest != digests[0]) {
        None => Ok(()),
        Some(rank) => Err(RendezvousError::ProgramDiffers { rank }),
    }
}

/// Digest of this process's executable. Empty if it cannot be read; then either all ranks have
/// none, or the difference is an error worth reporting.
fn digest() -> Vec<u8> {
    let hash = File::open("/proc/self/exe").and_then(|file| {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file)?;
        Ok(hasher.finalize())
    });
    hash.map(|hash| hash.as_bytes().to_vec())
        .unwrap_or_default()
}
