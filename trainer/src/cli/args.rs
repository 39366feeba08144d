//! Arguments shared by several commands.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{ArgAction, Args};

use crate::config::paths;
use crate::config::{ConfigError, DEFAULT, Loaded};
use crate::system::output::verbosity::Verbosity;
use crate::tools::trained::{FindError, Trained, Which};

/// How much the program prints, for every command.
#[derive(Clone, Copy, Debug, Args)]
pub struct VerbosityArgs {
    /// Prints only results, warnings and errors; while training, no results either.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Prints messages of the libraries too. With -vv, prints all details.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

impl VerbosityArgs {
    /// The verbosity of these flags.
    pub fn verbosity(self) -> Verbosity {
        Verbosity::of_flags(self.quiet, self.verbose)
    }

    /// Moves flags in front of the command behind it, so that they may stand on either side.
    /// `is_command` knows the names of commands.
    pub fn behind_the_command(
        mut arguments: Vec<OsString>,
        is_command: impl Fn(&str) -> bool,
    ) -> Vec<OsString> {
        let flags = arguments.iter().skip(1).take_while(|flag| is_flag(flag));
        let end = 2 + flags.count();
        let last = arguments.get(end - 1).and_then(|name| name.to_str());
        if last.is_some_and(is_command)
            && let Some(moved) = arguments.get_mut(1..end)
        {
            moved.rotate_right(1);
        }
        arguments
    }
}

/// Whether an argument is a verbosity flag.
pub(super) fn is_flag(argument: &OsStr) -> bool {
    let text = argument.to_str().unwrap_or_default();
    let short = |text: &str| text == "q" || (!text.is_empty() && text.bytes().all(|b| b == b'v'));
    matches!(text, "--quiet" | "--verbose") || text.strip_prefix('-').is_some_and(short)
}

/// Which configuration.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Reads this configuration, a file or a built-in one (see `trainer configs`). Defaults to the
    /// built-in digits.
    #[arg(value_name = "CONFIG")]
    named: Option<String>,
    /// The same as CONFIG.
    #[arg(long, value_name = "CONFIG", conflicts_with = "named")]
    config: Option<String>,
    /// Sets a configuration key, for example train.epochs=2. May be repeated. `trainer docs KEY`
    /// explains a key.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ConfigArgs {
    /// The configuration that is named, if one is.
    pub fn name(&self) -> Option<&str> {
        self.named.as_deref().or(self.config.as_deref())
    }

    /// The configuration that is named without an option: a wrong command looks the same.
    pub fn without_option(&self) -> Option<&str> {
        self.named.as_deref()
    }

    /// Loads the configuration.
    ///
    /// # Errors
    /// The error in the configuration, with its place.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        Loaded::load(self.name().unwrap_or(DEFAULT), &self.set)
    }
}

/// Which trained model.
#[derive(Debug, Args)]
pub struct TrainedArgs {
    /// Uses this run folder, checkpoint, or weights file of `trainer export` or PyTorch.
    #[arg(value_name = "RUN|CHECKPOINT|WEIGHTS", value_parser = paths::argument())]
    path: PathBuf,
    /// Uses the last good checkpoint of a run folder instead of the best.
    #[arg(long)]
    last: bool,
    /// Reads this configuration. Defaults to the run's, else the one embedded in the weights file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Sets a configuration key, for example data.dir=/path. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl TrainedArgs {
    /// Finds and verifies the model.
    ///
    /// # Errors
    /// Fails if no model is found, it is damaged, or its configuration is wrong.
    pub fn find(&self) -> Result<Trained, FindError> {
        let which = match self.last {
            true => Which::Last,
            false => Which::Best,
        };
        Trained::find(&self.path, which, self.config.as_deref(), &self.set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_move_behind_the_command() {
        let moved = |line: &str| {
            let arguments = line.split(' ').map(OsString::from).collect();
            let is_command = |name: &str| name == "eval";
            let moved = VerbosityArgs::behind_the_command(arguments, is_command);
            moved.join(OsStr::new(" ")).into_string().unwrap()
        };
        for (line, expected) in [
            ("trainer -q eval run", "trainer eval -q run"),
            ("trainer -vv --verbose eval", "trainer eval -vv --verbose"),
            ("trainer eval -q run", "trainer eval -q run"),
            ("trainer -q --config eval", "trainer -q --config eval"),
            ("trainer -q", "trainer -q"),
            ("trainer", "trainer"),
            ("trainer - eval", "trainer - eval"),
        ] {
            assert_eq!(moved(line), expected);
        }
    }
}
