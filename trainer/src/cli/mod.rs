//! The command line, with one file per command. Commands check everything before they start.

mod activations;
mod args;
mod check;
mod completions;
mod configs;
mod docs;
mod eval;
mod export;
mod failure;
mod flags;
mod init;
mod json_lines;
mod launch;
mod lr_find;
mod man;
mod output;
mod predict;
mod preview;
mod ranks;
mod report;
mod train;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use burn_dist::launch::{WorldError, abort_all, variables};
use burn_dist::thread_pool::PoolSize;
use burn_dist::world::{Launch, World};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::config::suggest::nearest;
use crate::config::{EMBEDDED, Embedded};
use crate::system::log::shown;
use crate::system::output::verbosity::Verbosity;
use crate::system::output::{complain, flush, silence, unsaid};
use crate::system::{allocator, program, signals, stack};
use crate::{FAILED, STOPPED_EARLY};
use args::VerbosityArgs;
use failure::Failure;

/// Trains models of images and text on one or more devices.
///
/// Without a command, trains. Without arguments, trains a small CNN on built-in digits with two
/// ranks. `trainer init` writes a configuration, `trainer docs KEY` explains a key.
#[derive(Debug, Parser)]
#[command(
    name = "trainer",
    version = program::SHORT,
    long_version = program::LONG,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    train: train::TrainArgs,
    #[command(flatten)]
    verbosity: VerbosityArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains a model (the default command).
    Train(train::TrainArgs),
    /// Trains on several nodes, with restarts and nodes that come and go.
    Launch(launch::LaunchArgs),
    /// Checks a configuration and prints it with every default filled in.
    Check(check::CheckArgs),
    /// Evaluates a trained model on the test data, or that for validation.
    Eval(eval::EvalArgs),
    /// Classifies images with a trained model.
    Predict(predict::PredictArgs),
    /// Writes an HTML report of a run, or a comparison of several.
    Report(report::ReportArgs),
    /// Writes a trained model to a safetensors file or a PyTorch checkpoint (.pt).
    Export(export::ExportArgs),
    /// Tries increasing learning rates and suggests one.
    LrFind(lr_find::LrFindArgs),
    /// Prints shell completions.
    Completions {
        /// Names the shell.
        shell: clap_complete::Shell,
    },
    /// Lists the built-in configurations, or prints one.
    Configs {
        /// Names the configuration to print.
        name: Option<String>,
    },
    /// Explains a configuration key or section, or prints the whole reference.
    Docs {
        /// Names a key or a section, such as train.epochs, epochs or train.
        #[arg(value_name = "KEY")]
        key: Option<String>,
    },
    /// Writes a new configuration file with comments.
    Init(init::InitArgs),
    /// Prints the manual page, or writes those of all commands.
    Man(man::ManArgs),
    /// Prints the activation memory of a micro-batch, in bytes.
    #[command(hide = true)]
    Activations(activations::ActivationsArgs),
    /// Draws the first training batch, augmented and labeled, as a PNG file.
    Preview(preview::PreviewArgs),
}

impl Command {
    /// Whether a command's purpose is its output. Training goes on without a reader.
    fn answers(&self) -> bool {
        match self {
            Self::Train(args) => args.dry_run,
            Self::Launch(_) => false,
            _ => true,
        }
    }
}

/// Name of the subcommand in another program that embeds this one.
static WITHIN: OnceLock<&str> = OnceLock::new();

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    with_stack(|| run(parsed(std::env::args_os().collect())))
}

/// Runs the program as the subcommand `name` of another, with the arguments after that name.
pub fn main_within(name: &'static str, arguments: Vec<OsString>) -> ExitCode {
    let _ = WITHIN.set(name);
    let arguments = std::iter::once(name.into()).chain(arguments);
    with_stack(|| run(parsed(arguments.collect())))
}

/// The parsed arguments. Ends the program with help, or with an error and advice.
fn parsed(arguments: Vec<OsString>) -> Cli {
    let is_command = |name: &str| Cli::command().find_subcommand(name).is_some();
    let arguments = VerbosityArgs::behind_the_command(arguments, is_command);
    let error = match Cli::try_parse_from(&arguments) {
        Ok(cli) => return cli,
        Err(error) => error,
    };
    let first = arguments.get(1).and_then(|word| word.to_str());
    if let Some(advice) = first.filter(|_| error.use_stderr()).and_then(meant_command) {
        Cli::command()
            .error(ErrorKind::InvalidSubcommand, advice)
            .exit();
    }
    flags::advised(error, first).exit()
}

/// The arguments of a training among those of `trainer launch`. Ends the program with help, or with
/// an error and advice.
///
/// # Errors
/// Fails if they are those of another command.
fn training(arguments: &[OsString]) -> Result<train::TrainArgs, Failure> {
    let arguments = arguments.iter().cloned();
    let cli = parsed(std::iter::once("trainer".into()).chain(arguments).collect());
    match cli.command {
        None => check_command(&cli.train).map(|()| cli.train),
        Some(Command::Train(train)) => Ok(train),
        Some(_) => Err(Failure::Usage(
            "`trainer launch` starts trainings, not other commands".to_owned(),
        )),
    }
}

/// Commands of other frameworks, and those here.
const OF_OTHERS: &[(&str, &str)] = &[
    ("fit", "train"),
    ("run", "train"),
    ("finetune", "train"),
    ("test", "eval"),
    ("validate", "eval"),
    ("validation", "eval"),
    ("evaluate", "eval"),
    ("infer", "predict"),
    ("inference", "predict"),
    ("tune", "lr-find"),
    ("new", "init"),
];

/// Advice if `word`, the first argument, is neither a command nor a configuration, but resembles a
/// command.
fn meant_command(word: &str) -> Option<String> {
    let program = Cli::command();
    let commands = program.get_subcommands().filter(|one| !one.is_hide_set());
    let commands: Vec<&str> = commands.map(clap::Command::get_name).collect();
    let is_other = word.starts_with('-')
        || word.contains(['.', '/'])
        || commands.contains(&word)
        || std::path::Path::new(word).exists()
        || Embedded::find(word).is_some();
    let mut known = commands.clone();
    for configuration in EMBEDDED {
        known.push(configuration.stem());
    }
    let theirs = OF_OTHERS.iter().find(|(theirs, _)| *theirs == word);
    let near = theirs
        .map(|(_, ours)| *ours)
        .or_else(|| nearest(word, &known));
    let near = near.filter(|near| !is_other && commands.contains(near))?;
    Some(format!(
        "`{word}` is neither a command nor a configuration. Did you mean `trainer {near}`?"
    ))
}

/// Checks that the name of a configuration is not meant as a command.
///
/// # Errors
/// Fails with the command that the name resembles.
fn check_command(train: &train::TrainArgs) -> Result<(), Failure> {
    let word = train.config.without_option();
    match word.and_then(meant_command) {
        Some(advice) => Err(Failure::Usage(advice)),
        None => Ok(()),
    }
}

/// Does `work` with enough stack.
fn with_stack(work: impl FnOnce() -> ExitCode) -> ExitCode {
    match stack::make_room() {
        Ok(()) => roomy(work),
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(FAILED as u8)
        }
    }
}

/// A separate frame, because a function takes its stack on entry.
#[inline(never)]
fn roomy(work: impl FnOnce() -> ExitCode) -> ExitCode {
    work()
}

fn run(cli: Cli) -> ExitCode {
    let is_command = match cli.command {
        Some(_) => Ok(()),
        None => check_command(&cli.train),
    };
    let command = cli.command.unwrap_or(Command::Train(cli.train));
    let answers = command.answers();
    let verbosity = cli.verbosity.verbosity();
    verbosity.set();
    if verbosity == Verbosity::Quiet && !answers {
        silence();
    }
    if let Err(error) = signals::survive_large_files() {
        complain(&format!(
            "warning: writing a file beyond the size limit will end this program: {error}"
        ));
    }
    let (world, outcome) = match is_command {
        Ok(()) => execute(command),
        Err(failure) => (World::single(), Err(failure)),
    };
    let outcome = outcome.and_then(|code| match unsaid() {
        Some(error) if answers && code == 0 => Err(Failure::Unsaid(error)),
        _ => Ok(code),
    });
    let code = outcome.unwrap_or_else(|failure| {
        failure::report(&world, &failure);
        failure.exit_code()
    });
    flush();
    if code != 0 && code != STOPPED_EARLY {
        abort_all(code);
    }
    ExitCode::from(u8::try_from(code).unwrap_or(FAILED as u8))
}

/// Executes a command, and returns the world that it ran in.
fn execute(command: Command) -> (World, Result<i32, Failure>) {
    let alone = |outcome| (World::single(), outcome);
    // Ranks start the pool themselves, and their launcher needs none.
    let has_ranks = matches!(
        command,
        Command::Train(_) | Command::Eval(_) | Command::Predict(_)
    );
    if !has_ranks {
        shown::show(&World::single());
        let size = PoolSize::of_process();
        if let Some(warning) = size.warning() {
            complain(&format!("warning: {warning}"));
            // Rayon would start as many threads as the variable says.
            if let Err(error) = size.start() {
                return alone(Err(Failure::NotStarted(error)));
            }
        }
    }
    match command {
        Command::Configs { name } => alone(configs::run(name.as_deref())),
        Command::Docs { key } => alone(docs::run(key.as_deref())),
        Command::Init(args) => alone(init::run(&args)),
        Command::Man(args) => alone(man::run(&args, Cli::command())),
        Command::Activations(args) => alone(activations::run(&args)),
        Command::Preview(args) => alone(preview::run(&args)),
        Command::Eval(args) => in_world(args.nproc(), |world| eval::run(&args, world)),
        Command::Predict(args) => in_world(args.nproc(), |world| predict::run(&args, world)),
        Command::Report(args) => alone(report::run(&args)),
        Command::Export(args) => alone(export::run(&args)),
        Command::LrFind(args) => alone(lr_find::run(&args)),
        Command::Completions { shell } => alone(completions::run(shell, Cli::command())),
        Command::Check(args) => alone(check::run(&args, &World::single())),
        Command::Launch(args) => alone(match training(&args.arguments) {
            Ok(train) => launch::run(&args, &train),
            Err(failure) => Err(failure),
        }),
        Command::Train(args) => in_world(args.nproc, |world| train::run_command(args, world)),
    }
}

/// The failure for an environment of no rank, with advice for a process that was to start ranks.
fn wrong_world(error: &WorldError, nproc: Option<u16>) -> Failure {
    let set = variables(Launch::Torchrun);
    Failure::Usage(match nproc.filter(|_| !set.is_empty()) {
        Some(_) => format!(
            "{error}. To start ranks with --nproc, unset {}",
            ranks::listed(&set)
        ),
        None => error.to_string(),
    })
}

/// Runs a command as the rank of the environment, or as the launcher of `nproc` ranks.
fn in_world(
    nproc: Option<u16>,
    command: impl FnOnce(&World) -> Result<i32, Failure>,
) -> (World, Result<i32, Failure>) {
    // Before MPI starts, because the program executes itself again, which would end MPI.
    allocator::keep_freed_memory();
    let world = match nproc {
        Some(_) => World::from_env_to_launch(),
        None => World::from_env(),
    };
    match world {
        Ok(world) => {
            shown::show(&world);
            let outcome = command(&world);
            (world, outcome)
        }
        Err(error) => (World::single(), Err(wrong_world(&error, nproc))),
    }
}
