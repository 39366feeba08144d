//! `trainer report`: writes a page about a run, or one that compares several.

use std::path::PathBuf;

use clap::Args;

use super::failure::Failure;
use super::output::{self, Way};
use crate::config::paths;
use crate::report::{self, Chosen};
use crate::system::output::{complain, say};

/// Default file of a comparison.
const COMPARISON: &str = "compare.html";

/// Arguments of `trainer report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Reads these run folders, and the runs in a folder such as runs; compares several.
    #[arg(required = true, value_name = "DIR", value_parser = paths::argument())]
    runs: Vec<PathBuf>,
    /// Writes the page to this file. Defaults to report.html in the folder of a single run, else
    /// compare.html.
    #[arg(long, value_name = "FILE", value_parser = paths::argument())]
    out: Option<PathBuf>,
}

/// Writes the page and prints its path.
pub fn run(args: &ReportArgs) -> Result<i32, Failure> {
    let Chosen { runs, notes } = report::choose(&args.runs);
    let out = match (runs.as_slice(), &args.out) {
        (_, Some(out)) => out.clone(),
        ([run], None) => run.join(report::FILE),
        _ => COMPARISON.into(),
    };
    // Let the report name a path that is no run.
    if runs.iter().all(|run| run.is_dir()) {
        output::check("--out", &out, Way::Replaced)?;
    }
    for note in &notes {
        complain(&format!("warning: {note}"));
    }
    match runs.as_slice() {
        [run] => report::write_to(run, &out)?,
        runs => report::compare(runs, &notes, &out)?,
    }
    say(&out.display().to_string());
    Ok(0)
}
