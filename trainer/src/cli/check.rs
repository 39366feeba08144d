//! `trainer check`: checks a configuration, and prints its sizes.

use std::path::Path;

use burn_dist::parallel::{MemoryEstimate, ShardWithin, Strategy};
use burn_dist::world::World;
use clap::Args;

use super::activations::measured;
use super::args::ConfigArgs;
use super::failure::Failure;
use super::ranks::world_size;

use crate::config::{Config, Loaded};
use crate::data;
use crate::run::dir::PARENT;
use crate::system::output::{counted, say};
use crate::system::{compute, device, disk, free_memory};
use crate::tools::plan::{Plan, estimate, plan};
use crate::train::schedule::Schedule;
use crate::train::unused::{self, RunPlace};

/// Arguments of `trainer check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Checks the batch sizes for N ranks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nproc: Option<u16>,
}

/// Checks the configuration, the model, and the data if present.
pub fn run(args: &CheckArgs, world: &World) -> Result<i32, Failure> {
    let size = world_size(args.nproc, 1, world)?;
    let loaded = args.config.load()?;
    say_resolved(&loaded, (size, world.nodes()), Path::new(PARENT), None)?;
    // Training may run with another build, on another machine.
    if let Err(error) = check_program(&loaded.config) {
        say(&format!("# {error}"));
    }
    if let Err(error) = compute::check_variables(&loaded.config) {
        say(&format!("# {error}"));
    }
    Ok(0)
}

/// Rejects features that this program was built without.
pub fn check_program(config: &Config) -> Result<(), Failure> {
    device::check_built(config).map_err(|error| Failure::Usage(error.to_string()))?;
    let parallel = &config.parallel;
    match parallel.transport.is_built() && parallel.algorithm.is_built() {
        true => Ok(()),
        false => Err(Failure::Usage(
            "parallel.transport and parallel.algorithm = \"mpi\" need a program built with the \
             feature `mpi`"
                .to_owned(),
        )),
    }
}

/// Prints the resolved configuration, and comments with the sizes of the run.
///
/// For `size` ranks on `nodes` nodes and a folder of the run, continuing `checkpoint` if given.
/// Returns the changes since that checkpoint, one line each.
pub fn say_resolved(
    loaded: &Loaded,
    (size, nodes): (usize, usize),
    run_dir: &Path,
    checkpoint: Option<&Path>,
) -> Result<Vec<String>, Failure> {
    let config = &loaded.config;
    loaded.check_sharding(size)?;
    say(&config.to_toml()?);
    let batching = loaded.batching(size)?;
    say(&format!("# world size {size}"));
    say(&format!(
        "# global batch {}",
        batching.words(&config.parallel)
    ));
    if data::needs_download(&config.data) {
        say(
            "# the data would be downloaded first; parameters, memory and steps are unknown until \
             then. `trainer preview` with this configuration downloads it",
        );
        return Ok(Vec::new());
    }
    let plan = plan(loaded, size, checkpoint)?;
    say(&format!("# {} parameters", plan.parameters));
    say_memory(config, &plan, size, nodes);
    say_disk(config, &plan, run_dir);
    say(&format!(
        "# {} training and {} {} {}, {} per epoch",
        plan.items.train,
        plan.items.eval,
        plan.evaluated,
        plan.words,
        counted(plan.steps_per_epoch, "step")
    ));
    let schedule = Schedule::of_run(config, plan.steps_per_epoch, batching);
    if let Some(warning) = schedule.warning().filter(|_| !config.train.fast_dev_run) {
        say(&format!("# {warning}"));
    }
    let place = RunPlace {
        on_host: device::is_on_host(config),
        ranks: size,
        // The ranks of the run may be on several hosts.
        shares_memory: false,
        // Nor is it known how they will start.
        has_agents: true,
    };
    for warning in unused::warnings(config, place) {
        say(&format!("# {warning}"));
    }
    Ok(plan.changes)
}

/// Prints the memory of each rank, and whether it fits if all ranks share this host.
///
/// Counts parameters, gradients, optimizer state and activations.
fn say_memory(config: &Config, plan: &Plan, size: usize, nodes: usize) {
    let shared_by = config.parallel.shard_within.ranks(size, nodes);
    let room = device::room(config, size, nodes);
    let available = free_memory::free().map(|free| free.bytes);
    let activations = Activations::of(config, plan, available);
    let states = match room.on_gpu {
        true => device::on_device(config, &plan.states),
        false => plan.states.clone(),
    };
    let kept = match config.averages() {
        true => "optimizer + averages",
        false => "optimizer",
    };
    say(&format!(
        "# MiB on each rank: parameters + gradients + {kept} + activations"
    ));
    if shared_by < size {
        say(&format!(
            "# sharded over {shared_by} ranks, {} replicas",
            size / shared_by
        ));
    }
    if plan.states.iter().any(|state| state.whole) {
        say("# (the largest rank: parameters that the optimizer updates as a whole are not split)");
    }
    if let Some(words) = &room.words {
        say(&format!("# ({words})"));
    }
    for strategy in Strategy::ALL {
        let own = estimate(config, &states, strategy, (size, shared_by));
        let activations = activations.under(strategy);
        let total = own.total().saturating_add(activations.unwrap_or(0));
        let fits = match room.bytes {
            Some(room) if total <= room => format!(", fits into {:.0}", mib(room)),
            Some(room) => format!(", does NOT fit into {:.0}", mib(room)),
            None => String::new(),
        };
        say(&format!(
            "#   {:<6} {:.1} + {:.1} + {:.1} + {} = {:.1}{fits}",
            strategy.name(),
            mib(own.parameters),
            mib(own.gradients),
            mib(own.optimizer),
            activations.map_or("not measured".to_owned(), |bytes| format!(
                "{:.1}",
                mib(bytes)
            )),
            mib(total),
        ));
    }
}

/// Prints the disk space of the checkpoints, and whether it fits.
fn say_disk(config: &Config, plan: &Plan, run_dir: &Path) {
    let checkpoint = &config.checkpoint;
    if !checkpoint.wanted() || config.train.fast_dev_run {
        say("# no checkpoints");
        return;
    }
    // One rank's whole state: a checkpoint has no gradients.
    let state = MemoryEstimate::of(Strategy::Ddp, &plan.states, 1);
    let one = state.parameters.saturating_add(state.optimizer);
    // The newest, the best, and the next one before the oldest goes.
    let most = checkpoint
        .keep
        .saturating_add(u64::from(checkpoint.best) + 1);
    let all = one.saturating_mul(most);
    let room = match disk::free(run_dir) {
        Some(free) if all <= free => format!("; {:.0} are free", mib(free)),
        Some(free) => format!("; only {:.0} are free", mib(free)),
        None => String::new(),
    };
    say(&format!(
        "# MiB on disk: {:.1} for each checkpoint, {:.1} for at most {most}{room} in {}",
        mib(one),
        mib(all),
        run_dir.display()
    ));
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Measured activation bytes of a micro-batch.
struct Activations {
    /// With the whole model on every rank.
    whole_model: Option<u64>,
    /// With gathered parameters, and gradients in flight.
    gathered: Option<u64>,
}

impl Activations {
    /// Measures micro-batches if memory has room for several times the model and its gradients.
    fn of(config: &Config, plan: &Plan, available: Option<u64>) -> Self {
        let model = (plan.parameters as u64).saturating_mul(8);
        let nothing = Self {
            whole_model: None,
            gathered: None,
        };
        if available.is_none_or(|bytes| bytes / 4 < model) {
            return nothing;
        }
        let measure = |strategy: Strategy| {
            let mut config = config.clone();
            config.parallel.strategy = strategy;
            // One rank is measured.
            config.parallel.shard_within = ShardWithin::All;
            measured(&config, plan.batching.micro)
        };
        Self {
            whole_model: measure(Strategy::Ddp),
            gathered: measure(Strategy::Zero3),
        }
    }

    fn under(&self, strategy: Strategy) -> Option<u64> {
        match strategy {
            Strategy::Zero3 => self.gathered,
            _ => self.whole_model,
        }
    }
}
