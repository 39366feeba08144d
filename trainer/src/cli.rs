//! The command line: checks everything before anything starts, then either starts ranks or is
//! one.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burn_dist::launch::LocalLauncher;
use burn_dist::world::{Launch, World};
use clap::{Args, Parser, Subcommand};

use crate::config::{ConfigError, DEFAULT, EMBEDDED, Embedded, Loaded};
use crate::console::{complain, say};
use crate::error::TrainError;
use crate::preview::{self, PreviewError, PreviewOptions};
use crate::resume::Resume;
use crate::run::{Trainer, plan};
use crate::{End, FAILED, STOPPED_EARLY, USAGE, allocator, data, panics, run_dir, signals};

/// Ranks of the built-in run, which shows training on several.
const DEFAULT_RANKS: usize = 2;

/// Trains image models on one device or many.
///
/// Without arguments it trains a small CNN on built-in digits with two ranks.
#[derive(Debug, Parser)]
#[command(name = "trainer", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the configurations inside this program, or prints one.
    Configs {
        /// The one to print.
        name: Option<String>,
    },
    /// Draws the first training batch, augmented and with its labels, into a PNG file.
    Preview(PreviewArgs),
}

#[derive(Debug, Args)]
struct PreviewArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The picture.
    #[arg(long, value_name = "FILE", default_value = "preview.png")]
    out: PathBuf,
    /// Number of images; no more than one global batch are shown.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    images: u16,
    /// The epoch whose first batch is drawn.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    epoch: u32,
}

#[derive(Debug, Args)]
struct ConfigArgs {
    /// Configuration: a file, or one of those inside this program (see `trainer configs`).
    /// Without it the built-in digits are used.
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Sets one configuration key, for example train.epochs=2; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl ConfigArgs {
    fn load(&self) -> Result<Loaded, ConfigError> {
        Loaded::load(self.config.as_deref().unwrap_or(DEFAULT), &self.set)
    }
}

#[derive(Debug, Args)]
struct TrainArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Starts this many ranks on this machine. Without it one is started, or two when no
    /// configuration is named.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nproc: Option<u16>,
    /// Folder of this run. Default: runs/<configuration>-<time>.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// What to continue from: auto (the last good checkpoint of the run folder, else of the newest
    /// run of the same configuration), off, or the path of a checkpoint or run folder.
    #[arg(long, value_name = "auto|off|PATH", value_parser = resume, default_value = "off")]
    resume: Resume,
    /// Checks everything and says what would be done, without training.
    #[arg(long)]
    dry_run: bool,
}

/// Reads the value of `--resume`.
fn resume(text: &str) -> Result<Resume, String> {
    match text {
        "" => Err("say auto, off, or a path".to_owned()),
        "auto" => Ok(Resume::Auto),
        "off" => Ok(Resume::Off),
        path => Ok(Resume::Path(path.into())),
    }
}

/// Why the program ends without having done what it was asked.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The arguments or the environment are wrong.
    #[error("{0}")]
    Usage(String),
    /// What was started failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// There is no preview.
    #[error(transparent)]
    Preview(#[from] PreviewError),
}

impl From<burn_dist::launch::LaunchError> for Failure {
    fn from(error: burn_dist::launch::LaunchError) -> Self {
        Self::Train(TrainError::Dist(error.into()))
    }
}

impl Failure {
    fn exit_code(&self) -> i32 {
        match self {
            Self::Config(_) | Self::Usage(_) => USAGE,
            Self::Preview(PreviewError::Config(_)) => USAGE,
            Self::Train(_) | Self::Preview(_) => FAILED,
        }
    }
}

/// Runs the program; its exit code is the result.
pub fn main() -> ExitCode {
    let Cli { command, train } = Cli::parse();
    let (world, outcome) = match (command, World::from_env()) {
        (Some(Command::Configs { name }), _) => (World::single(), configs(name.as_deref())),
        (Some(Command::Preview(args)), _) => (World::single(), preview(&args)),
        (None, Ok(world)) => {
            let outcome = execute(train, &world);
            (world, outcome)
        }
        (None, Err(error)) => (World::single(), Err(Failure::Usage(error.to_string()))),
    };
    let code = outcome.unwrap_or_else(|failure| {
        report(&world, &failure);
        failure.exit_code()
    });
    ExitCode::from(u8::try_from(code).unwrap_or(FAILED as u8))
}

/// The main rank shows all there is to show; the others one line with their rank, and nothing
/// where it would only repeat what somebody else says.
fn report(world: &World, failure: &Failure) {
    let rank = world.rank();
    match failure {
        Failure::Config(error)
        | Failure::Train(TrainError::Config(error))
        | Failure::Preview(PreviewError::Config(error))
            if rank == 0 =>
        {
            complain(&render(error));
        }
        _ if rank == 0 => complain(&format!("error: {failure}")),
        Failure::Train(error) if error.is_same_on_all_ranks() => {}
        // Our launcher names the rank that failed first.
        Failure::Train(error) if error.is_of_another_rank() && world.launch() == Launch::Local => {}
        _ => complain(&format!("error on rank {rank}: {failure}")),
    }
}

/// The error with the place in the source that it is about.
fn render(error: &ConfigError) -> String {
    let terminal = std::io::stderr().is_terminal();
    let theme = match terminal {
        true => miette::GraphicalTheme::unicode(),
        false => miette::GraphicalTheme::unicode_nocolor(),
    };
    let handler = miette::GraphicalReportHandler::new_themed(theme)
        .with_wrap_lines(false)
        .with_links(false);
    let mut text = String::new();
    match handler.render_report(&mut text, error) {
        Ok(()) => format!("error: wrong configuration\n{}", text.trim_end()),
        Err(_) => format!("error: {error}"),
    }
}

/// Trains, or says why not.
fn execute(args: TrainArgs, world: &World) -> Result<i32, Failure> {
    let size = world_size(&args, world)?;
    let loaded = args.config.load()?;
    loaded.batching(size)?;
    if let Resume::Path(path) = &args.resume
        && !path.exists()
    {
        return Err(Failure::Usage(format!(
            "cannot resume from {}: there is no such checkpoint or run folder",
            path.display()
        )));
    }
    if let (true, Some(folder)) = (world.is_main(), &args.run_dir)
        && args.resume != Resume::Auto
    {
        check_run_dir(folder)?;
    }
    let by_launcher = world.launch() != Launch::Single;
    if args.dry_run {
        if world.is_main() {
            dry_run(&loaded, size)?;
        }
        return Ok(0);
    }
    if size > 1 && !by_launcher {
        return start_ranks(size);
    }
    allocator::keep_freed_memory();
    let mut trainer = Trainer::new(&loaded, world).resume(args.resume);
    if let Some(folder) = args.run_dir {
        trainer = trainer.run_dir(folder);
    }
    be_rank(trainer, world)
}

/// A folder that holds another run is a wrong argument.
fn check_run_dir(folder: &Path) -> Result<(), Failure> {
    run_dir::check_unused(folder).map_err(|error| Failure::Usage(error.to_string()))
}

/// How many ranks this run has: a launcher's word, else the user's, else the default.
fn world_size(args: &TrainArgs, world: &World) -> Result<usize, Failure> {
    match (world.launch(), args.nproc) {
        (Launch::Single, Some(ranks)) => Ok(ranks.into()),
        (Launch::Single, None) if args.config.config.is_none() => Ok(DEFAULT_RANKS),
        (Launch::Single, None) => Ok(1),
        // Ranks of our own launcher get its arguments.
        (Launch::Local, _) | (_, None) => Ok(world.size()),
        (launch, Some(_)) => Err(Failure::Usage(format!(
            "--nproc starts ranks, but this process was started by {launch} as {}; leave --nproc \
             out, or unset RANK, LOCAL_RANK and WORLD_SIZE",
            world.describe()
        ))),
    }
}

fn configs(name: Option<&str>) -> Result<i32, Failure> {
    let Some(name) = name else {
        for config in EMBEDDED {
            say(&format!("{:<16} {}", config.name, config.summary()));
        }
        return Ok(0);
    };
    let Some(config) = Embedded::find(name) else {
        return Err(Failure::Usage(Embedded::not_found(name)));
    };
    say(config.text.trim_end());
    Ok(0)
}

fn preview(args: &PreviewArgs) -> Result<i32, Failure> {
    let loaded = args.config.load()?;
    let options = PreviewOptions {
        images: args.images.into(),
        epoch: args.epoch as usize,
    };
    let picture = preview::draw(&loaded, options)?;
    preview::save(&picture, &args.out)?;
    say(&format!(
        "{}: {}×{} pixels",
        args.out.display(),
        picture.width(),
        picture.height()
    ));
    Ok(0)
}

/// Prints the resolved configuration, and below it, as comments, what it amounts to.
fn dry_run(loaded: &Loaded, size: usize) -> Result<(), Failure> {
    let config = &loaded.config;
    say(&config.to_toml()?);
    let batching = loaded.batching(size)?;
    say(&format!("# world size {size}"));
    say(&format!(
        "# global batch {} = {} × {} accumulated × {size}",
        batching.global, batching.micro, batching.accumulate
    ));
    if data::needs_download(&config.data) {
        say("# the data is not there yet and would be downloaded first");
        return Ok(());
    }
    let plan = plan(loaded, size)?;
    say(&format!("# {} parameters", plan.parameters));
    say(&format!(
        "# {} training and {} test images, {} steps per epoch",
        plan.train_samples, plan.test_samples, plan.steps_per_epoch
    ));
    Ok(())
}

/// Starts `size` processes of this program with the same arguments, and waits for them.
fn start_ranks(size: usize) -> Result<i32, Failure> {
    let outcome = LocalLauncher::new(size).run()?;
    match outcome.failure() {
        // What it told the others it has also written itself.
        Some(failure) => {
            let (rank, exit) = (failure.rank(), failure.exit());
            complain(&format!("error: rank {rank} {exit}"));
        }
        None if !outcome.is_success() => complain(&outcome.to_string()),
        None => {}
    }
    Ok(outcome.exit_code().into())
}

/// Is the rank that `world` says.
fn be_rank(trainer: Trainer<'_>, world: &World) -> Result<i32, Failure> {
    log_warnings();
    panics::end_on_panic(world.rank());
    // Our launcher reports by itself what ended the run.
    let speaks = world.is_main() && world.launch() != Launch::Local;
    signals::end_on_signals(speaks)
        .map_err(|error| Failure::Usage(format!("cannot listen for signals: {error}")))?;
    Ok(match trainer.run()?.end {
        End::Complete | End::Early(_) => 0,
        End::Paused => STOPPED_EARLY,
    })
}

/// Shows what the libraries warn of; `RUST_LOG` asks for more.
fn log_warnings() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::WARN.into())
        .from_env_lossy();
    // Fails only where somebody listens already, which is as good.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .try_init();
}
