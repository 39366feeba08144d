//! Errors of benchmarks.

use std::path::PathBuf;

use burn_dist::buffer::WrongType;

/// Error of a benchmark.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A result file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A measurement could not be read back.
    #[error("no measurement was left in {}: {source}", path.display())]
    Unread {
        /// The file.
        path: PathBuf,
        /// Error of the system or the parser.
        source: std::io::Error,
    },
    /// This program does not know its own path.
    #[error("cannot find this program's own file to start ranks from: {0}")]
    Myself(std::io::Error),
    /// No temporary folder can be made.
    #[error("cannot make a temporary folder: {0}")]
    Folder(std::io::Error),
    /// Ranks could not be started.
    #[error(transparent)]
    Launch(#[from] burn_dist::launch::LaunchError),
    /// The group of ranks does not use the requested transport.
    #[error(
        "{ranks} ranks can't be measured with --transport {transport}: they are connected by {found}"
    )]
    OtherTransport {
        /// The requested transport.
        transport: &'static str,
        /// Number of ranks.
        ranks: usize,
        /// The group's transport.
        found: &'static str,
    },
    /// A rank failed.
    #[error("the ranks did not finish: {0}")]
    Ranks(String),
    /// A training process failed.
    #[error("`{command}` {status}:\n{output}")]
    Training {
        /// Its command line.
        command: String,
        /// Exit status.
        status: std::process::ExitStatus,
        /// The end of its output.
        output: String,
    },
    /// PyTorch was requested, but no Python given.
    #[error("no Python with PyTorch was named; use --torch")]
    NoTorch,
    /// The model could not be built.
    #[error(transparent)]
    Model(#[from] models::ModelError),
    /// A sum was wrong.
    #[error("the all-reduce gave a wrong sum: {0}")]
    WrongSum(String),
    /// The loader failed.
    #[error(transparent)]
    Loader(#[from] datasets::DatasetError),
    /// Images cannot be divided into batches.
    #[error(transparent)]
    Sampler(#[from] datasets::SamplerError),
    /// The augmentation is invalid.
    #[error(transparent)]
    Augment(#[from] datasets::ParseAugmentError),
    /// The trainer rejects the configuration.
    #[error(transparent)]
    Config(#[from] trainer::config::ConfigError),
    /// The trainer failed.
    #[error(transparent)]
    Train(#[from] trainer::TrainError),
    /// The environment describes no world.
    #[error(transparent)]
    World(#[from] burn_dist::launch::WorldError),
    /// A collective failed.
    #[error(transparent)]
    Group(#[from] burn_dist::Error),
    /// No usable device.
    #[error(transparent)]
    Device(#[from] burn_dist::device::DeviceError),
    /// Parts of a GPU check failed.
    #[error("{bad} of the rows above are not as they should be")]
    Gpu {
        /// Number of bad rows.
        bad: usize,
    },
    /// The system refuses signal handlers.
    #[error("cannot listen to signals: {0}")]
    Signals(std::io::Error),
    /// A signal stopped the check.
    #[error("stopped by a signal; what was found out before is in {}", path.display())]
    Stopped {
        /// The results so far.
        path: PathBuf,
    },
    /// A buffer has another element type.
    #[error(transparent)]
    WrongType(#[from] WrongType),
}
