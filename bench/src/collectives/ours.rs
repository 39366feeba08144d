//! Our side of the comparison: starts ranks of this program and collects their measurements.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use burn_dist::launch::LocalLauncher;

use super::Transport;
use super::protocol::Protocol;
use super::rank::{Measured, RANK_COMMAND};
use crate::error::BenchError;

/// Starts ranks and reads their results.
#[derive(Debug)]
pub struct Ours {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Ours {
    /// Finds this program and makes a temporary folder.
    ///
    /// # Errors
    /// Fails if this program's own file is unknown or no temporary folder can be made.
    pub fn new() -> Result<Self, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::Myself)?;
        let folder = tempfile::tempdir().map_err(BenchError::Folder)?;
        Ok(Self { program, folder })
    }

    /// Runs one measurement of each kind with `ranks` ranks.
    ///
    /// # Errors
    /// Fails if a rank fails or leaves no result.
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
        let mut args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        args.push(out.clone().into());
        match transport.needs_mpi() {
            true => self.run_by_mpi(ranks, &args)?,
            false => self.run(ranks, args)?,
        }
        crate::report::read(&out)
    }

    fn run(&self, ranks: usize, args: Vec<OsString>) -> Result<(), BenchError> {
        let outcome = LocalLauncher::new(ranks)
            .program(&self.program)
            .args(args)
            .run()?;
        match outcome.is_success() {
            true => Ok(()),
            false => Err(BenchError::Ranks(outcome.to_string())),
        }
    }

    /// Runs under `mpirun`, in an environment in which Open MPI accepts root and more ranks than
    /// CPUs. Other libraries ignore it.
    fn run_by_mpi(&self, ranks: usize, args: &[OsString]) -> Result<(), BenchError> {
        let status = Command::new("mpirun")
            .arg("-n")
            .arg(ranks.to_string())
            .arg(&self.program)
            .args(args)
            .stdin(Stdio::null())
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
            .env("OMPI_MCA_hwloc_base_binding_policy", "none")
            .status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(BenchError::Ranks(format!("mpirun ended with {status}"))),
            Err(error) => Err(BenchError::Ranks(format!(
                "mpirun can't be started: {error}"
            ))),
        }
    }
}
