//! `trainer report`: a page about a run, or one that compares several.

use std::path::PathBuf;

use clap::Args;

use super::failure::Failure;
use super::output::{self, Way};
use crate::config::paths;
use crate::report;
use crate::system::output::say;

/// Where a comparison goes that was given no file.
const COMPARISON: &str = "compare.html";

/// Arguments of `trainer report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Reads these run folders; compares several.
    #[arg(required = true, value_name = "DIR", value_parser = paths::argument())]
    runs: Vec<PathBuf>,
    /// Writes the page to this file. Defaults to report.html in the folder of a single run, else
    /// compare.html.
    #[arg(long, value_name = "FILE", value_parser = paths::argument())]
    out: Option<PathBuf>,
}

/// Writes it and says where it lies.
pub fn run(args: &ReportArgs) -> Result<i32, Failure> {
    let out = match (args.runs.as_slice(), &args.out) {
        (_, Some(out)) => out.clone(),
        ([run], None) => run.join(report::FILE),
        _ => COMPARISON.into(),
    };
    // What is no run is named as that.
    if args.runs.iter().all(|run| run.is_dir()) {
        output::check("--out", &out, Way::Replaced)?;
    }
    match args.runs.as_slice() {
        [run] => report::write_to(run, &out)?,
        runs => report::compare(runs, &out)?,
    }
    say(&out.display().to_string());
    Ok(0)
}
