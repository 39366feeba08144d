//! Kernels that are compiled once, and not at every start of a program: an Olivia WideResNet has more than two hundred,
//! half a second each.
//!
//! What compiles them, cubecl with NVRTC, has no place where that could be told to it without a database of 93 crates
//! (docs/gpu.md). But it loads `libnvrtc.so` by its name when it first compiles something, and the system's loader
//! takes a library of that name that is there already. [`keep`] puts one there: a few kilobytes whose functions are
//! those of NVIDIA's library (`nvrtc`), but for those that make PTX of a program (`calls`), which look first whether it
//! is known (`kept`), by its text, its options, the version of the headers (`headers`) and the compiler.
//!
//! Nothing else changes: who compiles what it must not keep, or asks for something other than PTX, gets it from
//! NVIDIA's library. Where that is not possible (another system than Linux with glibc, no C compiler when this crate
//! was built, the library loaded before), nothing is kept, and [`keep`] says why.

#[cfg(stand_in)]
mod calls;
#[cfg(stand_in)]
mod headers;
#[cfg(stand_in)]
mod kept;
#[cfg(stand_in)]
mod nvrtc;
#[cfg(stand_in)]
mod stand_in;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Why nothing is kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This system's loader has other rules, or there was no C compiler when the program was built.
    #[error("this program was built where compiled kernels cannot be kept (docs/gpu.md)")]
    NotBuilt,
    /// NVIDIA's compiler is not here.
    #[error("libnvrtc.so was not found")]
    NoCompiler,
    /// Something in this process has compiled before, and goes on as it has begun.
    #[error("libnvrtc.so was loaded before")]
    Late,
    /// The library or the one in its place could not be loaded.
    #[error("{what}: {reason}")]
    Library {
        /// Which, or what was tried with it.
        what: String,
        /// What the system says.
        reason: String,
    },
}

/// Kernels of this process until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that were kept by this process or an earlier one.
    pub kept: usize,
    /// Those that had to be compiled.
    pub compiled: usize,
}

static KEPT: AtomicUsize = AtomicUsize::new(0);
static COMPILED: AtomicUsize = AtomicUsize::new(0);

/// How many kernels were found, and how many were compiled.
pub fn counts() -> Counts {
    Counts {
        kept: KEPT.load(Ordering::Relaxed),
        compiled: COMPILED.load(Ordering::Relaxed),
    }
}

/// Where kernels are kept: the folder that `BURN_DIST_KERNELS` names, nowhere if that is `off` or there is no home, and
/// else `burn-dist/kernels` in `$XDG_CACHE_HOME` or `~/.cache`.
pub fn folder() -> Option<PathBuf> {
    folder_of(|name| std::env::var_os(name))
}

fn folder_of(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    match set("BURN_DIST_KERNELS") {
        Some(folder) if folder == "off" => return None,
        Some(folder) => return Some(folder.into()),
        None => {}
    }
    let caches = set("XDG_CACHE_HOME").map(PathBuf::from);
    caches
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")))
        .filter(|path| path.is_absolute())
        .map(|path| path.join("burn-dist/kernels"))
}

/// Keeps in `folder` what NVRTC compiles from now on in this process, for it and for all that come later, on any
/// machine that shares the folder. To be called before anything is compiled; a second call changes nothing.
///
/// A folder that cannot be used costs a warning, and what is in it the time to compile it again.
///
/// # Errors
/// Why nothing is kept, which is as if this had not been called.
pub fn keep(folder: &Path) -> Result<(), Error> {
    #[cfg(stand_in)]
    return stand_in::put_in_place(folder);
    #[cfg(not(stand_in))]
    {
        let _ = (folder, &KEPT, &COMPILED);
        Err(Error::NotBuilt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(variables: &[(&str, &str)]) -> Option<PathBuf> {
        folder_of(|name| {
            let (_, value) = variables.iter().find(|(other, _)| *other == name)?;
            Some((*value).into())
        })
    }

    #[test]
    fn the_folder_is_that_of_the_user_unless_it_is_named() {
        let home = ("HOME", "/home/me");
        let of = |path: &str| Some(PathBuf::from(path));
        assert_eq!(
            folder_with(&[home]),
            of("/home/me/.cache/burn-dist/kernels")
        );
        let caches = ("XDG_CACHE_HOME", "/scratch");
        assert_eq!(
            folder_with(&[home, caches]),
            of("/scratch/burn-dist/kernels")
        );
        let named = |name| folder_with(&[home, ("BURN_DIST_KERNELS", name)]);
        assert_eq!(named("here"), of("here"));
        assert_eq!(named("off"), None);
        assert_eq!(named(""), folder_with(&[home]));
        assert_eq!(folder_with(&[]), None);
    }
}
