//! Counts of launches for `SOFT_CUDA_COUNTS`: of each kernel in each grid some blocks are run and
//! counted, once. At the end the counts are written to a file, together with the number of
//! launches.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use crate::machine::{Counts, Launch, LaunchError};
use crate::report::{at_exit, lock, say};

/// Largest number of blocks that are run for each kernel and grid.
const BLOCKS: u64 = 6;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    kernel: String,
    /// Kernels of different modules may have the same name.
    address: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: usize,
}

#[derive(Debug, Default)]
struct Entry {
    launches: u64,
    counts: Counts,
}

static ENTRIES: Mutex<BTreeMap<Key, Entry>> = Mutex::new(BTreeMap::new());

/// Counts a launch; for the first of its kind runs some of its blocks.
///
/// # Errors
///
/// Returns the first fault of a block.
///
/// # Safety
///
/// As for [`Launch::run`].
#[allow(unsafe_code)] // Hands on what it is promised.
pub(crate) unsafe fn launch(launch: &Launch<'_>) -> Result<(), LaunchError> {
    let key = Key {
        kernel: launch.kernel.name.clone(),
        address: std::ptr::from_ref(launch.kernel).addr(),
        grid: launch.grid,
        block: launch.block,
        shared: launch.kernel.shared + launch.dynamic_shared,
    };
    at_exit();
    let mut entries = lock(&ENTRIES);
    if let Some(entry) = entries.get_mut(&key) {
        entry.launches += 1;
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    let counts = unsafe { launch.run_counted(BLOCKS) }?;
    let launches = 1;
    entries.insert(key, Entry { launches, counts });
    Ok(())
}

/// Writes the counts: a line per kernel, grid and unit, separated by tabs.
pub(crate) fn write(path: &Path) {
    let mut text = String::from(
        "kernel\tgrid\tblock\tshared\tlaunches\tblocks\tread\tread_near\twritten\tunit\tinstructions\tlanes\tbytes\tsectors\t\
         wavefronts\tleast_wavefronts\n",
    );
    for (key, Entry { launches, counts }) in lock(&ENTRIES).iter() {
        let dims = |of: [u32; 3]| of.map(|n| n.to_string()).join("x");
        let launch = format!(
            "{}\t{}\t{}\t{}\t{launches}\t{}\t{}\t{}\t{}",
            key.kernel,
            dims(key.grid),
            dims(key.block),
            key.shared,
            counts.blocks,
            counts.read,
            counts.read_near,
            counts.written,
        );
        for (unit, n) in &counts.of {
            text += &format!(
                "{launch}\t{unit:?}\t{}\t{}\t{}\t{}\t{}\t{}\n",
                n.instructions, n.lanes, n.bytes, n.sectors, n.wavefronts, n.least_wavefronts,
            );
        }
    }
    if let Err(error) = fs::write(path, text) {
        say(format_args!("{}: {error}", path.display()));
    }
}
