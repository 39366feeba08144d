//! `trainer man`: manual pages.

use std::path::{Path, PathBuf};

use clap::{Args, Command};

use super::failure::Failure;
use crate::config::paths;
use crate::error::TrainError;
use crate::system::output::say;

/// Arguments of `trainer man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Writes the pages of the program and of its commands to this folder.
    #[arg(long, value_name = "DIR", value_parser = paths::argument())]
    dir: Option<PathBuf>,
}

/// Prints the program's page, or writes all pages.
pub fn run(args: &ManArgs, program: Command) -> Result<i32, Failure> {
    if let Some(dir) = &args.dir {
        write(dir, program)?;
        return Ok(0);
    }
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(program).render(&mut page);
    rendered.map_err(failed(Path::new("trainer.1")))?;
    say(String::from_utf8_lossy(&page).trim_end());
    Ok(0)
}

fn write(dir: &Path, program: Command) -> Result<(), Failure> {
    std::fs::create_dir_all(dir).map_err(failed(dir))?;
    clap_mangen::generate_to(program, dir).map_err(failed(dir))?;
    Ok(())
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> TrainError {
    move |error| TrainError::Output {
        path: path.to_owned(),
        error,
    }
}
