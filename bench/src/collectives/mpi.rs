//! Open MPI's all-reduce over shared memory, for comparison. A small C program, compiled here and
//! started by `mpirun`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use super::protocol::{Measurement, Protocol};

const SOURCE: &str = include_str!("../../mpi/allreduce.c");
/// Time limit of `mpirun`, in seconds.
const LIMIT_SECONDS: u32 = 120;

/// The compiled program, in a temporary folder that is removed on drop.
#[derive(Debug)]
pub struct Mpi {
    program: PathBuf,
    /// Version line of `mpirun --version`.
    pub version: String,
    _folder: tempfile::TempDir,
}

/// Error of a comparison, or of one row.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    /// A program is missing or cannot be started.
    #[error(
        "`{program}` cannot be started ({source}): install OpenMPI, on Debian `apt-get install openmpi-bin libopenmpi-dev gcc`"
    )]
    Missing {
        /// Its name.
        program: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Another MPI, whose options differ.
    #[error("`mpirun` is not Open MPI's but says `{0}`")]
    OtherMpi(String),
    /// A program failed.
    #[error("`{program}` failed with {status}: {stderr}")]
    Failed {
        /// Its name.
        program: &'static str,
        /// Exit status.
        status: std::process::ExitStatus,
        /// The end of its standard error.
        stderr: String,
    },
    /// The program printed no valid measurement.
    #[error("the MPI program printed no measurement but `{0}`")]
    Unreadable(String),
    /// The temporary folder.
    #[error("cannot write the MPI program to a temporary folder: {0}")]
    Folder(std::io::Error),
}

impl Mpi {
    /// Compiles the program.
    ///
    /// # Errors
    /// Fails if `mpicc` or Open MPI's `mpirun` is missing, or the program does not compile.
    pub fn compile() -> Result<Self, MpiError> {
        let version = output("mpirun", Command::new("mpirun").arg("--version"))?;
        let version = String::from_utf8_lossy(&version.stdout)
            .lines()
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned();
        if !version.contains("Open MPI") {
            return Err(MpiError::OtherMpi(version));
        }
        let folder = tempfile::tempdir().map_err(MpiError::Folder)?;
        let source = folder.path().join("allreduce.c");
        let program = folder.path().join("allreduce");
        std::fs::File::create_new(&source)
            .and_then(|mut file| file.write_all(SOURCE.as_bytes()))
            .map_err(MpiError::Folder)?;
        output(
            "mpicc",
            Command::new("mpicc")
                .arg("-O3")
                .arg("-o")
                .arg(&program)
                .arg(&source),
        )?;
        Ok(Self {
            program,
            version,
            _folder: folder,
        })
    }

    /// Runs one measurement with `ranks` ranks over shared memory.
    ///
    /// # Errors
    /// Fails if `mpirun` fails or takes more than two minutes.
    pub fn measure(&self, ranks: usize, protocol: &Protocol) -> Result<Measurement, MpiError> {
        let mut command = Command::new("mpirun");
        command
            .args([
                "--allow-run-as-root",
                "--oversubscribe",
                "--bind-to",
                "none",
            ])
            .args(["--mca", "pml", "ob1", "--mca", "btl", "self,vader"])
            .args(["--timeout", &LIMIT_SECONDS.to_string()])
            .args(["-n", &ranks.to_string()])
            .arg(&self.program)
            .args(protocol.positional());
        let output = output("mpirun", &mut command)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text
            .lines()
            .find(|line| line.starts_with('{'))
            .unwrap_or(&text);
        serde_json::from_str(line)
            .map_err(|_| MpiError::Unreadable(line.chars().take(200).collect()))
    }
}

fn output(program: &'static str, command: &mut Command) -> Result<Output, MpiError> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| MpiError::Missing { program, source })?;
    if output.status.success() {
        return Ok(output);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim();
    let skipped = text.chars().count().saturating_sub(1_000);
    let stderr = text.chars().skip(skipped).collect();
    Err(MpiError::Failed {
        program,
        status: output.status,
        stderr,
    })
}
