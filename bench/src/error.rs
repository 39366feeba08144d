//! Why a benchmark ended without a result.

use std::path::PathBuf;

use burn_dist::buffer::WrongType;

/// What went wrong, where, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A result file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A measurement could not be read back.
    #[error("no measurement was left in {}: {source}", path.display())]
    Unread {
        /// The file.
        path: PathBuf,
        /// The system's or the parser's reason.
        source: std::io::Error,
    },
    /// This program does not know where it is.
    #[error("cannot find this program's own file to start ranks from: {0}")]
    Myself(std::io::Error),
    /// The temporary folder.
    #[error("cannot make a temporary folder: {0}")]
    Folder(std::io::Error),
    /// Ranks could not be started.
    #[error(transparent)]
    Launch(#[from] burn_dist::launch::LaunchError),
    /// So many ranks cannot be connected as they were to be.
    #[error(
        "{ranks} ranks can't be measured with --transport {transport}: they are connected by {found}"
    )]
    OtherTransport {
        /// The transport asked for.
        transport: &'static str,
        /// How many ranks.
        ranks: usize,
        /// What their group says that it uses.
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
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of what it wrote.
        output: String,
    },
    /// PyTorch was to be measured, but nobody said where it is.
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
    /// An augmentation is none.
    #[error(transparent)]
    Augment(#[from] datasets::ParseAugmentError),
    /// The trainer does not take the configuration.
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
    /// There is no device to compute on.
    #[error(transparent)]
    Device(#[from] burn_dist::device::DeviceError),
    /// Something about a GPU is not as it should be.
    #[error("{bad} of the rows above are not as they should be")]
    Gpu {
        /// How many.
        bad: usize,
    },
    /// Signals cannot be listened to.
    #[error("cannot listen to signals: {0}")]
    Signals(std::io::Error),
    /// Somebody asked this program to end.
    #[error("stopped by a signal; what was found out before is in {}", path.display())]
    Stopped {
        /// The results.
        path: PathBuf,
    },
    /// A buffer was asked for as another type.
    #[error(transparent)]
    WrongType(#[from] WrongType),
}
