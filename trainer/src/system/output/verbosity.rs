//! How much this process prints.

use std::sync::atomic::{AtomicU8, Ordering};

/// How much a process prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Results, warnings and errors.
    Quiet,
    /// Also progress.
    #[default]
    Usual,
    /// Also messages of this program's crates.
    Verbose,
    /// Also their details, and messages of other libraries.
    Debug,
}

static LEVEL: AtomicU8 = AtomicU8::new(Verbosity::Usual as u8);

impl Verbosity {
    /// The verbosity for `-q`, or a number of `-v`.
    pub fn of_flags(quiet: bool, verbose: u8) -> Self {
        match (quiet, verbose) {
            (true, _) => Self::Quiet,
            (false, 0) => Self::Usual,
            (false, 1) => Self::Verbose,
            (false, _) => Self::Debug,
        }
    }

    /// The flag that asks for it. `None` for the usual one.
    pub fn flag(self) -> Option<&'static str> {
        match self {
            Self::Quiet => Some("-q"),
            Self::Usual => None,
            Self::Verbose => Some("-v"),
            Self::Debug => Some("-vv"),
        }
    }

    /// Makes this the verbosity of the process.
    pub fn set(self) {
        LEVEL.store(self as u8, Ordering::Relaxed);
    }

    /// The verbosity of this process.
    pub fn get() -> Self {
        let all = [Self::Quiet, Self::Usual, Self::Verbose, Self::Debug];
        let level = LEVEL.load(Ordering::Relaxed);
        let found = all.into_iter().find(|verbosity| *verbosity as u8 == level);
        found.unwrap_or_default()
    }

    /// Events of libraries that are printed, as `RUST_LOG` has them.
    pub(crate) fn events(self) -> String {
        let (own, others) = match self {
            Self::Quiet | Self::Usual => ("warn", "warn"),
            Self::Verbose => ("info", "warn"),
            Self::Debug => ("debug", "info"),
        };
        let own = OWN.map(|name| format!(",{name}={own}"));
        format!("{others}{}", own.concat())
    }
}

/// The crates of this program.
const OWN: [&str; 8] = [
    "burn_dist",
    "contained",
    "datasets",
    "kernel_cache",
    "kernels",
    "loader",
    "models",
    "trainer",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_choose_the_events() {
        let events = |quiet, verbose| Verbosity::of_flags(quiet, verbose).events();
        assert!(events(true, 0).starts_with("warn,burn_dist=warn,"));
        assert_eq!(events(true, 0), events(false, 0));
        assert!(events(false, 1).starts_with("warn,burn_dist=info,"));
        assert!(events(false, 2).ends_with(",trainer=debug"));
        assert_eq!(events(false, 2), events(false, 9));
    }
}
