//! This program: its version, source revision, features and target.

/// Version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Git revision of the sources when they were compiled, with `-dirty` if files differed from it, or
/// `unknown`.
pub(crate) const REVISION: &str = env!("TRAINER_REVISION");
/// Names of the cargo features, or `none`.
pub(crate) const FEATURES: &str = env!("TRAINER_FEATURES");
/// Target that the program was compiled for.
pub(crate) const TARGET: &str = env!("TRAINER_TARGET");

/// Version and revision.
pub(crate) const SHORT: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("TRAINER_REVISION"),
    ")"
);

/// Everything, one line each.
pub(crate) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\nrevision  ",
    env!("TRAINER_REVISION"),
    "\nfeatures  ",
    env!("TRAINER_FEATURES"),
    "\ntarget    ",
    env!("TRAINER_TARGET"),
);
