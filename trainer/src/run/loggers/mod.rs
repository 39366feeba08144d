//! Loggers: what receives the metrics of a run beside `metrics.jsonl`.
//!
//! A logger is one file and one line in [`ALL`]. A logger that fails is closed with a warning;
//! training goes on.

mod csv;
mod mlflow;
mod tensorboard;

use std::path::Path;

use crate::config::Config;
use crate::error::TrainError;
use crate::run::environment::Environment;
use crate::run::gallery::Gallery;
use crate::run::metrics::Metric;
use crate::system::output::complain;

/// All loggers: the key in `[log]`, and how to open them.
const ALL: [(&str, OpenLogger); 3] = [
    ("tensorboard", tensorboard::open),
    ("csv", csv::open),
    ("mlflow", mlflow::open),
];

/// Opens a logger. `None` if the configuration does not want it.
type OpenLogger = fn(&LoggedRun<'_>) -> Result<Option<Box<dyn Logger>>, LogError>;

/// The run that loggers are opened for.
pub(crate) struct LoggedRun<'a> {
    /// The run folder.
    pub folder: &'a Path,
    /// Name of the run.
    pub name: &'a str,
    pub config: &'a Config,
    pub environment: &'a Environment,
    /// Steps of the run so far; 0 unless it is resumed.
    pub steps: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoggedEnd {
    /// All steps are done, or early stopping ended it.
    Done,
    /// It is to be resumed.
    Paused,
    /// An error ended it.
    Failed,
}

/// Receives the metrics of a run. Calls must not take long.
pub(crate) trait Logger: Send {
    /// Takes a line of metrics.
    ///
    /// # Errors
    /// Fails if the logger can take no more.
    fn metric(&mut self, metric: &Metric) -> Result<(), LogError>;

    /// Takes the pictures of an evaluation.
    ///
    /// # Errors
    /// As [`metric`](Self::metric).
    fn show(&mut self, _gallery: &Gallery) -> Result<(), LogError> {
        Ok(())
    }

    /// Ends the log. Nothing follows.
    ///
    /// # Errors
    /// Fails if the end of the log is lost.
    fn end(&mut self, _end: LoggedEnd) -> Result<(), LogError> {
        Ok(())
    }
}

/// The reason why a logger takes no more.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LogError(pub String);

impl From<TrainError> for LogError {
    fn from(error: TrainError) -> Self {
        Self(error.to_string())
    }
}

/// The open loggers of a run.
#[derive(Default)]
pub(crate) struct Loggers(Vec<(&'static str, Box<dyn Logger>)>);

impl Loggers {
    /// Opens the loggers of the configuration. Warns if one cannot be opened.
    pub fn open(run: &LoggedRun<'_>) -> Self {
        let open = |(key, open): (&'static str, OpenLogger)| match open(run) {
            Ok(logger) => Some((key, logger?)),
            Err(error) => {
                warn(key, &error);
                None
            }
        };
        Self(ALL.into_iter().filter_map(open).collect())
    }

    /// Whether there is no logger.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Passes a line of metrics to all loggers.
    pub fn metric(&mut self, metric: &Metric) {
        self.each(|logger| logger.metric(metric));
    }

    /// Passes the pictures of an evaluation to all loggers.
    pub fn show(&mut self, gallery: &Gallery) {
        self.each(|logger| logger.show(gallery));
    }

    /// Ends all logs.
    pub fn end(&mut self, end: LoggedEnd) {
        self.each(|logger| logger.end(end));
        self.0.clear();
    }

    /// Closes a logger that fails.
    fn each(&mut self, mut act: impl FnMut(&mut dyn Logger) -> Result<(), LogError>) {
        self.0.retain_mut(|(key, logger)| {
            let done = act(logger.as_mut());
            done.inspect_err(|error| warn(key, error)).is_ok()
        });
    }
}

impl Drop for Loggers {
    /// A run that ends without a word has failed.
    fn drop(&mut self) {
        self.end(LoggedEnd::Failed);
    }
}

fn warn(key: &str, error: &LogError) {
    complain(&format!(
        "warning: log.{key} takes no more; training continues: {error}"
    ));
}

/// Keys and values of a configuration, such as `optimizer.lr` and 0.1.
fn flat(config: &Config) -> Vec<(String, toml::Value)> {
    let mut all = Vec::new();
    let table = toml::Table::try_from(config).unwrap_or_default();
    for (section, value) in table {
        let toml::Value::Table(keys) = value else {
            continue;
        };
        let keys = keys.into_iter();
        all.extend(keys.map(|(key, value)| (format!("{section}.{key}"), value)));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::run::metrics::TrainLine;

    /// Counts its lines and its ends, and fails at the third line.
    struct Failing(Arc<[AtomicUsize; 2]>);

    impl Logger for Failing {
        fn metric(&mut self, _metric: &Metric) -> Result<(), LogError> {
            match self.0[0].fetch_add(1, Ordering::Relaxed) {
                2 => Err(LogError("full".to_owned())),
                _ => Ok(()),
            }
        }

        fn end(&mut self, end: LoggedEnd) -> Result<(), LogError> {
            assert_eq!(end, LoggedEnd::Failed);
            self.0[1].fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn a_logger_that_fails_is_closed_and_the_others_go_on() {
        let counts: [Arc<[AtomicUsize; 2]>; 2] = Default::default();
        let logger = |index: usize| -> (&'static str, Box<dyn Logger>) {
            ("test", Box::new(Failing(counts[index].clone())))
        };
        let mut loggers = Loggers(vec![logger(0)]);
        for lines in 0..4 {
            if lines == 2 {
                loggers.0.push(logger(1));
            }
            loggers.metric(&Metric::Train(TrainLine::default()));
        }
        // No end was told, as after an error.
        drop(loggers);
        let seen = counts.map(|count| [0, 1].map(|index| count[index].load(Ordering::Relaxed)));
        assert_eq!(seen, [[3, 0], [2, 1]]);
    }
}
