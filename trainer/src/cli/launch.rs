//! `trainer launch`: trains on several nodes, with restarts and nodes that come and go.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use burn_dist::launch::{NodeLauncher, NodesError};
use clap::Args;

use super::args::is_flag;
use super::check::check_program;
use super::failure::Failure;
use super::train::TrainArgs;
use crate::config::Batching;
use crate::run::resume::Resume;
use crate::run::same_config;
use crate::system::log;
use crate::system::output::complain_unlogged;
use crate::system::output::verbosity::Verbosity;

/// The end of `--help`.
const HELP: &str = "\
Example, on each of up to four nodes, all with the same secret in BURN_DIST_SECRET:
  trainer launch --nnodes 1:4 --nproc 2 --rendezvous node1:29500 -- --config vit.toml --run-dir runs/vit

On one machine:
  trainer launch --standalone --nproc 2 -- --config vit.toml --run-dir runs/vit";

/// Arguments of `trainer launch`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct LaunchArgs {
    /// Uses N nodes, or from MIN to MAX.
    #[arg(long, value_name = "N|MIN:MAX", default_value = "1", value_parser = Nodes::parse)]
    nnodes: Nodes,
    /// Starts N ranks on this node.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    nproc: u16,
    /// Meets the other nodes at this address. The agent on HOST listens there.
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "standalone")]
    rendezvous: Option<String>,
    /// Uses only this node, without --rendezvous and --nnodes.
    #[arg(long, conflicts_with_all = ["rendezvous", "nnodes"])]
    standalone: bool,
    /// Waits this long for more nodes, once MIN have come. Starts at once with MAX.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = seconds())]
    join_wait: u32,
    /// Lets a node that comes later wait this long, or until a checkpoint. Then the ranks save and
    /// start again with it.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = seconds())]
    join_after: u32,
    /// Gives up if no agent is found, or fewer than MIN nodes have come, after this time.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = seconds())]
    join_timeout: u32,
    /// Restarts all ranks after the failure of one, at most N times. The loss of a node does not
    /// count.
    #[arg(long, value_name = "N", default_value_t = 3)]
    max_restarts: u16,
    /// Trains with these arguments of `trainer train`. They need --run-dir, and get --resume auto
    /// unless they have another.
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<OsString>,
}

/// Numbers of nodes that may train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nodes {
    min: usize,
    max: usize,
}

impl Nodes {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "use a number such as 4, or a range such as 2:4".to_owned();
        let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
        let (min, max) = match text.split_once(':') {
            Some((min, max)) => (number(min)?, number(max)?),
            None => (number(text)?, number(text)?),
        };
        match (1..=max).contains(&min) {
            true => Ok(Self { min, max }),
            false => Err(wrong()),
        }
    }
}

/// Seconds up to a week.
fn seconds() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=7 * 24 * 3600)
}

/// Takes part in a training on several nodes. `train` are its parsed arguments.
pub fn run(args: &LaunchArgs, train: &TrainArgs) -> Result<i32, Failure> {
    check(train)?;
    let loaded = train.config.load()?;
    check_program(&loaded.config)?;
    let config = loaded.config.clone();
    let in_memory = config.checkpoint.in_memory;
    let usable = move |first: usize, ranks: usize| {
        let (train, parallel) = (&config.train, &config.parallel);
        let batching = match first {
            0 => Batching::resolve(train, parallel, ranks),
            _ => Batching::kept(train, parallel, (first, ranks)),
        };
        batching.map(drop).map_err(|fault| match fault.help {
            Some(help) => format!("{}; {help}", fault.message),
            None => fault.message,
        })
    };
    // A node that comes late, or comes back, must not begin a second run.
    let mut arguments = args.arguments.clone();
    let chosen = |argument: &OsString| argument.to_string_lossy().starts_with("--resume");
    let is_chosen = arguments.iter().any(chosen);
    let resume = ["--resume", "auto"].map(OsString::from);
    if !is_chosen {
        arguments.extend(resume.clone());
    }
    let mut launcher = NodeLauncher::new(args.nproc.into())
        .args(arguments)
        .resume_args(resume.into_iter().filter(|_| is_chosen))
        .join_wait(Duration::from_secs(args.join_wait.into()))
        .join_after(Duration::from_secs(args.join_after.into()))
        .join_timeout(Duration::from_secs(args.join_timeout.into()))
        .max_restarts(args.max_restarts.into())
        .keep_memory(in_memory)
        .agreed(same_config::lines(&loaded.config))
        .usable(usable);
    if let Some(rendezvous) = &args.rendezvous {
        launcher = launcher.nodes(args.nnodes.min, args.nnodes.max, rendezvous);
    }
    if let Some(flag) = Verbosity::get().flag()
        && !args.arguments.iter().any(|argument| is_flag(argument))
    {
        launcher = launcher.local_arg(flag);
    }
    let run_dir = train.run_dir.clone().unwrap_or_default();
    let log = AgentLog::start(run_dir);
    let is_quiet = Verbosity::get() == Verbosity::Quiet;
    let outcome = launcher.run(&mut |words| {
        log.write(words);
        if !is_quiet {
            complain_unlogged(words);
        }
    })?;
    log.write(outcome.reason());
    match outcome.exit_code() {
        0 => {}
        75 if is_quiet => {}
        75 => complain_unlogged(outcome.reason()),
        _ => complain_unlogged(&format!("error: {outcome}")),
    }
    log.finish();
    Ok(outcome.exit_code().into())
}

/// Writes the log of this agent on a thread of its own: an agent that waits for a file system would
/// seem dead to the others.
struct AgentLog {
    lines: SyncSender<String>,
    done: Receiver<()>,
}

impl AgentLog {
    /// Most lines that wait. More are lost.
    const MOST: usize = 256;
    /// Time for the last lines to be written.
    const PATIENCE: Duration = Duration::from_secs(2);

    fn start(run_dir: PathBuf) -> Self {
        let (lines, received) = sync_channel::<String>(Self::MOST);
        let (finished, done) = sync_channel(1);
        // Without a thread there is no log.
        let _ = std::thread::Builder::new()
            .name("agent-log".to_owned())
            .spawn(move || {
                for line in received {
                    log::write(&line);
                    log::start_of_agent(&run_dir);
                }
                let _ = finished.send(());
            });
        Self { lines, done }
    }

    fn write(&self, line: &str) {
        let _ = self.lines.try_send(line.to_owned());
    }

    fn finish(self) {
        drop(self.lines);
        let _ = self.done.recv_timeout(Self::PATIENCE);
    }
}

/// Checks that ranks with these arguments can start again with other nodes.
fn check(train: &TrainArgs) -> Result<(), Failure> {
    let usage = |words: &str| Err(Failure::Usage(words.to_owned()));
    if train.nproc.is_some() || train.max_restarts > 0 {
        return usage("--nproc and --max-restarts of `trainer launch` go before the --");
    }
    if train.run_dir.is_none() {
        return usage(
            "`trainer launch` needs --run-dir after the --: ranks that start again resume from \
             there",
        );
    }
    if train.dry_run {
        return usage("--dry-run starts no ranks: use it without `trainer launch`");
    }
    match train.resume {
        Resume::Auto | Resume::Off => Ok(()),
        Resume::Path(_) => usage(
            "`trainer launch` resumes from the last good checkpoint of the run folder, so it needs \
             --resume auto or off, not a path",
        ),
    }
}

impl From<NodesError> for Failure {
    fn from(error: NodesError) -> Self {
        match error {
            NodesError::Launch(error) => error.into(),
            NodesError::Address(_) | NodesError::Nodes { .. } | NodesError::NoRendezvous => {
                Self::Usage(error.to_string())
            }
            error => Self::Nodes(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_nodes_are_read() {
        let nodes = |min, max| Ok(Nodes { min, max });
        assert_eq!(Nodes::parse("4"), nodes(4, 4));
        assert_eq!(Nodes::parse("1:4"), nodes(1, 4));
        for wrong in ["", "0", "0:2", "3:2", "1:", "-1", "a", "1:2:3"] {
            assert!(Nodes::parse(wrong).is_err(), "{wrong}");
        }
    }
}
