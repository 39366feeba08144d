//! Compiles kernels once, and not at every start of a program. An Olivia WideResNet has at least
//! 151 kernels, which take up to a second each (docs/internals/kernel-cache.md).
//!
//! cubecl compiles them with NVRTC, and its own cache needs a database of 93 crates. But cubecl
//! loads `libnvrtc.so` by name when it first compiles something, and the system's loader reuses a
//! loaded library of that name. [`keep`] loads one: a few kilobytes with the functions of NVIDIA's
//! library (`nvrtc`). Only the functions that make PTX (`calls`) differ. They first look whether
//! the program is known (`kept`), by its text, its options, the version of the headers (`headers`)
//! and the compiler.
//!
//! Nothing else changes. NVIDIA's library compiles programs that must not be kept, and makes
//! everything other than PTX. Nothing is kept on systems other than Linux with glibc, if there was
//! no C compiler when this crate was built, or if the library was loaded before. [`keep`] says why.

#[cfg(stand_in)]
mod calls;
#[cfg(stand_in)]
mod folder;
#[cfg(stand_in)]
mod headers;
#[cfg(stand_in)]
mod kept;
mod notes;
#[cfg(stand_in)]
mod nvrtc;
#[cfg(stand_in)]
mod stand_in;

pub use notes::Notes;

use std::ffi::OsString;
use std::path::PathBuf;

/// The reason why nothing is cached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cache is turned off, or no folder is known for it.
    #[error("BURN_DIST_KERNELS is off, or there is no home folder")]
    NoFolder,
    /// The system's loader has other rules, or no C compiler was found when the program was built.
    #[error(
        "this program was built without support for a kernel cache (docs/internals/kernel-cache.md)"
    )]
    NotBuilt,
    /// NVIDIA's compiler was not found.
    #[error("libnvrtc.so was not found")]
    NoCompiler,
    /// Others can write to the folder, and compiled kernels are code.
    #[error("{}: {reason}. Set BURN_DIST_KERNELS to another folder", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Its possible owners.
        reason: String,
    },
    /// This process has compiled something before, and continues without the cache.
    #[error("libnvrtc.so was already loaded")]
    Late,
    /// NVIDIA's library, or the one in its place, could not be loaded.
    #[error("{what}: {reason}")]
    Library {
        /// The library, or the operation.
        what: String,
        /// The system's error.
        reason: String,
    },
}

/// Caches what NVRTC compiles in this process from now on, and returns the cache's folder.
///
/// The folder serves all later processes, on any machine that shares it. It is the one in
/// `BURN_DIST_KERNELS` (`off` turns the cache off), or `burn-dist/kernels` in the user's cache
/// folder (`$XDG_CACHE_HOME`, `~/.cache`). Call this before anything is compiled; a second call
/// changes nothing.
///
/// The folder is created for this user only. An unusable one costs a warning and the time to
/// compile. One that others own or can write to is refused, because the GPU runs its contents.
///
/// # Errors
/// Returns the reason why nothing is cached. The process then works as without this call.
pub fn keep() -> Result<PathBuf, Error> {
    let folder = folder(std::env::var_os("BURN_DIST_KERNELS"), dirs::cache_dir());
    let folder = folder.ok_or(Error::NoFolder)?;
    #[cfg(stand_in)]
    return refuse_shared(&folder)
        .and_then(|()| stand_in::put_in_place(&folder))
        .map(|()| folder);
    #[cfg(not(stand_in))]
    Err(Error::NotBuilt)
}

/// A missing folder is created when something is cached.
#[cfg(stand_in)]
fn refuse_shared(path: &std::path::Path) -> Result<(), Error> {
    match folder::existing(path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(Error::Folder {
            path: path.to_owned(),
            reason: error.to_string(),
        }),
        _ => Ok(()),
    }
}

fn folder(named: Option<OsString>, caches: Option<PathBuf>) -> Option<PathBuf> {
    match named.filter(|name| !name.is_empty()) {
        Some(off) if off == "off" => None,
        Some(folder) => Some(folder.into()),
        None => caches.map(|path| path.join("burn-dist/kernels")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_that_of_the_user_unless_it_is_named() {
        let of = |path: &str| Some(PathBuf::from(path));
        let folder = |name: &str| folder(Some(name.into()), of("/cache"));
        assert_eq!(
            super::folder(None, of("/cache")),
            of("/cache/burn-dist/kernels")
        );
        assert_eq!(super::folder(None, None), None);
        assert_eq!(folder(""), of("/cache/burn-dist/kernels"));
        assert_eq!(folder("here"), of("here"));
        assert_eq!(folder("off"), None);
    }
}
