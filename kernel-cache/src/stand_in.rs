//! Loads a library that the system takes for `libnvrtc.so`.
#![allow(unsafe_code)] // Loads a library, and writes into its table.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libloading::Library;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::Error;
use crate::calls::Cache;
use crate::nvrtc::{Nvrtc, find, of};

include!("functions.rs");

/// The library from the build script.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnvrtc.so"));

/// The name under which it is found.
const NAME: &str = "libnvrtc.so";

/// Addresses that its functions jump to.
type Table = [*const (); FUNCTIONS.len()];

/// See [`crate::keep`].
pub(crate) fn put_in_place(folder: &Path) -> Result<(), Error> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if *done {
        return Ok(());
    }
    // The system takes the first library with the name, so NVIDIA's is loaded afterwards, by its
    // path.
    let path = find()?;
    let stand_in = load()?;
    let table = table_of(&stand_in)?;
    // SAFETY: it is loaded already, whichever it is.
    let found = unsafe { Library::new(NAME) }.map_err(|error| of(NAME, &error))?;
    if table_of(&found).ok() != Some(table) {
        return Err(Error::Late);
    }
    let cache = Cache::set(Nvrtc::load(&path)?, folder.to_owned());
    let functions = FUNCTIONS.map(|name| cache.function(name));
    // SAFETY: it is as long as the list that it was made from, and nobody else has the library yet.
    unsafe { *table = functions };
    // An error above unloads it again. Here it stays for the rest of the process.
    std::mem::forget(stand_in);
    *done = true;
    Ok(())
}

fn load() -> Result<Library, Error> {
    let of_memory = |error: &dyn std::fmt::Display| of("a library in memory", error);
    let file = memfd_create(NAME, MemfdFlags::CLOEXEC).map_err(|error| of_memory(&error))?;
    let mut file = File::from(file);
    file.write_all(LIBRARY).map_err(|error| of_memory(&error))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: it runs nothing when it is loaded.
    unsafe { Library::new(path) }.map_err(|error| of_memory(&error))
}

fn table_of(library: &Library) -> Result<*mut Table, Error> {
    // SAFETY: takes an address and reads nothing.
    let table = unsafe { library.get::<*mut Table>(b"kernel_cache_functions") };
    let table = table.map_err(|error| of(NAME, &error))?;
    // SAFETY: as above.
    Ok(unsafe { table.into_raw() }.into_raw().cast())
}
