//! Our side of the comparison: starts ranks of this same program and collects what they measured.

use std::path::PathBuf;

use burn_dist::launch::LocalLauncher;

use super::Transport;
use super::protocol::Protocol;
use super::rank::{Measured, RANK_COMMAND};
use crate::error::BenchError;

/// Where ranks are started from and leave their results.
#[derive(Debug)]
pub struct Ours {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Ours {
    /// # Errors
    /// When this program's own file is not known or there is no temporary folder.
    pub fn new() -> Result<Self, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::Myself)?;
        let folder = tempfile::tempdir().map_err(BenchError::Folder)?;
        Ok(Self { program, folder })
    }

    /// Runs one measurement of each kind with `ranks` ranks.
    ///
    /// # Errors
    /// When a rank fails or leaves no result.
    pub fn measure(
        &self,
        ranks: usize,
        transport: Transport,
        protocol: &Protocol,
    ) -> Result<Vec<Measured>, BenchError> {
        let out = self.folder.path().join("measured.json");
        let mut args = vec![RANK_COMMAND.to_owned()];
        args.extend(protocol.named());
        args.extend([
            "--transport".to_owned(),
            transport.name().to_owned(),
            "--out".to_owned(),
        ]);
        let mut args: Vec<std::ffi::OsString> = args.into_iter().map(Into::into).collect();
        args.push(out.clone().into());
        let outcome = LocalLauncher::new(ranks)
            .program(&self.program)
            .args(args)
            .run()?;
        if !outcome.is_success() {
            return Err(BenchError::Ranks(outcome.to_string()));
        }
        crate::report::read(&out)
    }
}
