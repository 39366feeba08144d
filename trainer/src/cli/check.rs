//! `trainer check`: whether a configuration is good, and what it amounts to.

use burn_dist::world::World;
use clap::Args;

use super::args::ConfigArgs;
use super::failure::Failure;
use super::ranks::world_size;
use crate::config::Loaded;
use crate::console::say;
use crate::data;
use crate::run::plan;

/// Arguments of `trainer check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Number of ranks for which the batch sizes are checked.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nproc: Option<u16>,
}

/// Checks the configuration, the data if it is there, and the model.
pub fn run(args: &CheckArgs, world: &World) -> Result<i32, Failure> {
    let size = world_size(args.nproc, 1, world)?;
    let loaded = args.config.load()?;
    say_resolved(&loaded, size)?;
    Ok(0)
}

/// Prints the resolved configuration, and below it, as comments, what it amounts to.
pub fn say_resolved(loaded: &Loaded, size: usize) -> Result<(), Failure> {
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
