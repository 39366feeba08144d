//! `trainer train`, which is also the default without a command.

use std::path::{Path, PathBuf};

use burn_dist::ProcessGroup;
use burn_dist::checkpoint::{self, Manifest};
use burn_dist::world::{Launch, World};
use clap::Args;

use super::args::ConfigArgs;
use super::check::{check_program, say_resolved};
use super::failure::Failure;
use super::ranks::{Ranks, check_readable, on_ranks, world_size};
use crate::config::paths;
use crate::config::run_name::{CHECKPOINTS, CONFIG_FILE};
use crate::config::{ConfigError, Loaded};
use crate::error::TrainError;
use crate::run::dir;
use crate::run::lock::RunLock;
use crate::run::resume::{self, Resume, Start};
use crate::system::compute;
use crate::system::output::say;
use crate::train::progress::Meta;
use crate::train::trainer::Trainer;

/// Ranks of the built-in run, which demonstrates training on several.
const DEFAULT_RANKS: usize = 2;

/// Arguments of `trainer train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Starts N ranks on this machine. Defaults to 1, or 2 without a configuration.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub nproc: Option<u16>,
    /// Writes the run to this folder. Defaults to runs/<configuration>-<time>.
    #[arg(long, value_name = "DIR", value_parser = paths::argument())]
    pub run_dir: Option<PathBuf>,
    /// Continues from: auto (the last good checkpoint of the run folder, else of the newest run of
    /// the same configuration), off, or the path of a checkpoint or run folder. Without CONFIG, its
    /// configuration is used.
    // The last one counts: restarted ranks get one more.
    #[arg(long, value_name = "auto|off|PATH", value_parser = resume_from, default_value = "off", overrides_with = "resume")]
    pub resume: Resume,
    /// Restarts all ranks after a failure, at most N times, from the last good checkpoint of the
    /// run folder.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "run_dir")]
    pub max_restarts: u16,
    /// Shows a full-screen dashboard if there is a terminal.
    #[arg(long)]
    dashboard: bool,
    /// Checks everything and prints the plan without training.
    #[arg(long)]
    pub dry_run: bool,
}

impl TrainArgs {
    /// The configuration of the run or checkpoint in `--resume`, unless `--config` names one. It is
    /// that of the run folder, else the one in the checkpoint.
    fn config_of_run(&self) -> Result<Option<Loaded>, ConfigError> {
        let (Resume::Path(path), None) = (&self.resume, self.config.name()) else {
            return Ok(None);
        };
        let (path, sets) = (resume::named(path), &self.config.set);
        let mut folders = [Some(path.clone()), resume::run_of(&path)]
            .into_iter()
            .flatten();
        if let Some(run) = folders.find(|folder| folder.join(CONFIG_FILE).is_file()) {
            return Loaded::load_run(&run, sets).map(Some);
        }
        let saved = checkpoint::list(&path.join(CHECKPOINTS)).unwrap_or_default();
        let saved = saved.into_iter().rev().map(|found| found.path);
        let mut manifests = [path.clone()].into_iter().chain(saved);
        // A later check reports a damaged checkpoint.
        let Some(manifest) = manifests.find_map(|path| Manifest::read(&path).ok()) else {
            return Ok(None);
        };
        match Meta::config_of(&manifest) {
            Some(text) => Loaded::of_checkpoint(&path, &text, sets).map(Some),
            None => Err(ConfigError::new(
                format!("{} does not contain its configuration", path.display()),
                Some("name it: trainer CONFIG --resume PATH".to_owned()),
            )),
        }
    }
}

/// Parses the value of `--resume`.
fn resume_from(text: &str) -> Result<Resume, String> {
    match text {
        "" => Err("use auto, off or a path".to_owned()),
        "auto" => Ok(Resume::Auto),
        "off" => Ok(Resume::Off),
        path => Ok(Resume::Path(paths::expand(path.as_ref())?)),
    }
}

/// Trains, or returns the reason for not doing so.
pub fn run_command(args: TrainArgs, world: &World) -> Result<i32, Failure> {
    let of_run = args.config_of_run()?;
    let default = match (args.config.name(), &of_run) {
        (None, None) => DEFAULT_RANKS,
        _ => 1,
    };
    let size = world_size(args.nproc, default, world)?;
    let ranks = Ranks {
        restarts: args.max_restarts,
        ..Ranks::without_restarts(size)
    };
    check_readable(args.config.name(), ranks, world)?;
    check_restarts(&args, world)?;
    let loaded = match of_run {
        Some(loaded) => loaded,
        None => args.config.load()?,
    };
    check_program(&loaded.config)?;
    // Another number of ranks than before keeps the global batch of the checkpoint.
    if world.launch() != Launch::Agent {
        loaded.batching(size)?;
    }
    loaded.check_sharding(size)?;
    // Ranks of a launcher check the same later, together. A rank that ended here would leave the
    // others waiting.
    if world.launch() == Launch::Single {
        check_folders(&args)?;
    }
    if args.dry_run {
        compute::check_variables(&loaded.config).map_err(TrainError::from)?;
        if world.is_main() {
            say_plan(&args, &loaded, (size, world.nodes()))?;
        }
        return Ok(0);
    }
    let shortage = || crate::tools::plan::shortage(&loaded, size);
    on_ranks(ranks, world, shortage, || {
        let mut trainer = Trainer::new(&loaded, world)
            .resume(args.resume)
            .dashboard(args.dashboard);
        if let Some(folder) = args.run_dir {
            trainer = trainer.run_dir(folder);
        }
        Ok(trainer.run()?.exit_code())
    })
}

/// Checks `--max-restarts`.
///
/// Only the launcher of the ranks can restart them, and only from their own checkpoints.
fn check_restarts(args: &TrainArgs, world: &World) -> Result<(), Failure> {
    if args.max_restarts == 0 {
        return Ok(());
    }
    let launch = world.launch();
    if !matches!(launch, Launch::Single | Launch::Local | Launch::Agent) {
        return Err(Failure::Usage(format!(
            "--max-restarts applies to ranks that this program starts (--nproc), but {launch} \
             started this one. That launcher can restart the ranks itself, with --resume auto"
        )));
    }
    match args.resume {
        Resume::Auto | Resume::Off => Ok(()),
        Resume::Path(_) => Err(Failure::Usage(
            "--max-restarts resumes from the last good checkpoint of the run folder, so it needs \
             --resume auto or off, not a path"
                .to_owned(),
        )),
    }
}

/// Checks the folders in the arguments.
///
/// Usage errors are a missing path to resume, a run folder with another run, and a path that is no
/// folder.
fn check_folders(args: &TrainArgs) -> Result<(), Failure> {
    let wrong = |error: TrainError| Failure::Usage(error.to_string());
    if let Resume::Path(path) = &args.resume {
        resume::check_there(path).map_err(wrong)?;
    }
    let Some(folder) = &args.run_dir else {
        return Ok(());
    };
    RunLock::check(folder).map_err(|error| Failure::Usage(error.to_string()))?;
    let checked = match args.resume {
        Resume::Auto => dir::check_folder(folder),
        Resume::Off | Resume::Path(_) => dir::check_unused(folder),
    };
    checked.map_err(wrong)
}

/// Prints the plan: ranks, nodes and checkpoint. Leaves no trace.
fn say_plan(
    args: &TrainArgs,
    loaded: &Loaded,
    (size, nodes): (usize, usize),
) -> Result<(), Failure> {
    let group = ProcessGroup::single();
    let run_dir = args.run_dir.as_deref();
    let start = Start::find(&args.resume, run_dir, &loaded.name, false, &group)?;
    let folder = run_dir.unwrap_or(Path::new(dir::PARENT));
    let changes = say_resolved(loaded, (size, nodes), folder, start.checkpoint.as_deref())?;
    for note in start.messages().chain(&changes) {
        say(&format!("# {note}"));
    }
    Ok(())
}
