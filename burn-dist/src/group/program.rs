//! Whether all ranks run the same program: a node with an old copy would compute something else,
//! and fail, if at all, in a way that nobody understands.

use std::fs::File;

use crate::launch::program_is_shared;
use crate::rendezvous::{RendezvousError, Store};
use crate::world::World;

/// Compares the executables of all ranks. A collective call.
pub(super) fn check(world: &World, store: &Store) -> Result<(), RendezvousError> {
    // Ranks that one program starts are that program.
    if program_is_shared(world.launch()) {
        return Ok(());
    }
    let digests = store.all_gather("program", &digest())?;
    match digests.iter().position(|digest| *digest != digests[0]) {
        None => Ok(()),
        Some(rank) => Err(RendezvousError::ProgramDiffers { rank }),
    }
}

/// Digest of this process's executable; empty where it can't be read, which is then so on all
/// ranks or worth an error.
fn digest() -> Vec<u8> {
    let hash = File::open("/proc/self/exe").and_then(|file| {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file)?;
        Ok(hasher.finalize())
    });
    hash.map(|hash| hash.as_bytes().to_vec())
        .unwrap_or_default()
}
