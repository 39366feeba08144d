//! `trainer lr-find`: suggests a learning rate.

use std::path::PathBuf;

use clap::Args;

use super::args::ConfigArgs;
use super::failure::Failure;
use super::output::{self, Way};
use crate::config::paths;
use crate::system::output::say;
use crate::system::{allocator, panics};
use crate::tools::lr_find::{Suggestion, Sweep, Trial, Unclear, svg, sweep};

/// Minimum ratio of the last rate to the first. In a narrower range, no fall stands out, and a
/// tenth of the best rate would lie outside.
const WIDTH: f64 = 100.0;
/// Rows of the table.
const ROWS: usize = 20;

/// Arguments of `trainer lr-find`.
#[derive(Debug, Args)]
pub struct LrFindArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Sets the number of steps, each with a larger learning rate.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    steps: u64,
    /// Sets the first learning rate.
    #[arg(long, value_name = "LR", default_value_t = 1e-6)]
    min: f64,
    /// Sets the last learning rate. The search ends earlier if the loss diverges.
    #[arg(long, value_name = "LR", default_value_t = 10.0)]
    max: f64,
    /// Writes the plot to this SVG file.
    #[arg(long, value_name = "FILE", default_value = "lr-find.svg", value_parser = paths::argument())]
    out: PathBuf,
    /// Writes the configuration with the suggested learning rate to this file, which may be that of
    /// --config.
    #[arg(long, value_name = "FILE", value_parser = paths::argument())]
    write: Option<PathBuf>,
}

/// Tries the rates, prints a table and the suggestion, and draws the curve.
pub fn run(args: &LrFindArgs) -> Result<i32, Failure> {
    let rates = args.min > 0.0 && args.min < args.max && args.max.is_finite();
    if !rates {
        return Err(Failure::Usage(format!(
            "--min {} and --max {} are not a range: both must be above 0 and --min the smaller",
            args.min, args.max
        )));
    }
    // The ratio of two decimal numbers may round down a little.
    if args.max / args.min < WIDTH * (1.0 - 1e-9) {
        return Err(Failure::Usage(format!(
            "the range from --min {:e} to --max {:e} is too narrow: --max must be at least {WIDTH} \
             times --min",
            args.min, args.max
        )));
    }
    output::check_ending("--out", &args.out, "svg")?;
    let loaded = args.config.load()?;
    loaded.batching(1)?;
    output::check("--out", &args.out, Way::InPlace)?;
    if let Some(file) = &args.write {
        output::check_ending("--write", file, "toml")?;
        output::check("--write", file, Way::InPlace)?;
        // A file that cannot take the rate is told before the work begins.
        loaded.with_lr(args.min)?;
    }
    allocator::keep_freed_memory();
    panics::end_on_panic(0);
    let wanted = Sweep {
        steps: args.steps,
        min: args.min,
        max: args.max,
    };
    let every = (args.steps as usize).div_ceil(ROWS);
    let mut begun = false;
    let curve = sweep(&loaded, wanted, |index, point, mean| {
        if !std::mem::replace(&mut begun, true) {
            say("    learning rate        loss   mean loss");
        }
        if index % every == 0 {
            say(&row(point, mean));
        }
    })?;
    output::write(&args.out, svg(&curve).as_bytes())?;
    let steps = curve.points().len();
    let suggestion = curve.suggestion();
    say(&suggestion.as_ref().map_or_else(Unclear::to_string, told));
    let width = curve.width();
    let picture = args.out.display();
    say(&format!(
        "{steps} steps, means over {width}, plot {picture}"
    ));
    let Some(file) = &args.write else {
        return Ok(0);
    };
    let Ok(suggestion) = suggestion else {
        return Err(Failure::Unclear(format!(
            "{} is not written: no learning rate is suggested",
            file.display()
        )));
    };
    let lr = suggestion.rate();
    output::write(file, loaded.with_lr(lr)?.as_bytes())?;
    say(&format!(
        "wrote {} with optimizer.lr = {lr:e}",
        file.display()
    ));
    Ok(0)
}

fn row(Trial { lr, loss }: &Trial, mean: f64) -> String {
    format!("{lr:>17.2e} {loss:>11.4} {mean:>11.4}")
}

/// The suggestion in words, the smaller rate first.
fn told(suggestion: &Suggestion) -> String {
    let mut rates = [
        ("steepest descent", suggestion.steepest),
        ("minimum / 10", suggestion.tenth_of_minimum),
    ];
    rates.sort_by(|a, b| a.1.total_cmp(&b.1));
    let [low, high] = rates.map(|(name, lr)| format!("{name} at {lr:.1e}"));
    format!("{low}, {high}; try optimizer.lr = {:e}", suggestion.rate())
}
