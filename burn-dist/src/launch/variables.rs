//! Environment variables that every kind of launch understands, and numbers in variables.

use super::{Vars, WorldError};

/// Text of the run's secret.
pub(super) const SECRET: &str = "BURN_DIST_SECRET";
/// Path of a file with the run's secret.
pub(super) const SECRET_FILE: &str = "BURN_DIST_SECRET_FILE";
/// Forces a kind of launch.
pub(super) const LAUNCH: &str = "BURN_DIST_LAUNCH";

/// Number of the generation of ranks, from 1, under an agent.
pub(super) const GENERATION: &str = "BURN_DIST_GENERATION";
/// Number of ranks of the first generation.
pub(super) const FIRST_RANKS: &str = "BURN_DIST_FIRST_RANKS";
/// Reason for the generation, in words.
pub(super) const GENERATION_REASON: &str = "BURN_DIST_GENERATION_REASON";

/// Host of rank 0, as in PyTorch.
pub(super) const MASTER_ADDR: &str = "MASTER_ADDR";
/// Port of the store.
pub(super) const MASTER_PORT: &str = "MASTER_PORT";

/// The number in `name`, which another variable requires.
pub(super) fn required(
    vars: Vars,
    name: &'static str,
    because: &'static str,
    meaning: &'static str,
) -> Result<usize, WorldError> {
    optional(vars, name)?.ok_or(WorldError::Missing {
        name,
        because,
        meaning,
    })
}

/// The number in `name`, if it is set.
pub(super) fn optional(vars: Vars, name: &'static str) -> Result<Option<usize>, WorldError> {
    let Some(value) = vars(name) else {
        return Ok(None);
    };
    match value.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(WorldError::NotANumber { name, value }),
    }
}

/// The port in MASTER_PORT, if it is set.
pub(super) fn port(vars: Vars) -> Result<Option<u16>, WorldError> {
    let Some(value) = vars(MASTER_PORT) else {
        return Ok(None);
    };
    match value.parse() {
        Ok(port) if port > 0 => Ok(Some(port)),
        _ => Err(WorldError::BadPort { value }),
    }
}
