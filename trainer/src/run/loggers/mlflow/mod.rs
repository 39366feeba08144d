//! MLflow: a run on a tracking server, over its REST interface
//! (<https://mlflow.org/docs/latest/api_reference/rest-api.html>).
//!
//! A thread talks to the server, so that training never waits for it. Numbers that the server does
//! not take are sent again later, up to [`BACKLOG`] of them.

mod client;
mod courier;

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{LogError, LoggedEnd, LoggedRun, Logger, flat};
use crate::run::metrics::{Changed, Metric};
use crate::run::process::RunProcess;
use crate::run::scalars::scalars;
use crate::system::whole_file;
use client::Client;
use courier::Courier;

/// File in the run folder that names the run on the server, for a resume.
const FILE: &str = "mlflow.json";
/// Messages on their way to the thread.
const MESSAGES: usize = 4096;
/// Maximum numbers that wait for the server.
const BACKLOG: usize = 200_000;
/// Time that the end of a run waits for the server.
const PATIENCE: Duration = Duration::from_secs(6);
/// Maximum bytes of a parameter or tag.
const TEXT: usize = 5000;

/// A message to the thread.
enum Message {
    /// Numbers, as the server takes them.
    Metrics(Vec<Value>),
    /// Tags of the run.
    Tags(Vec<Value>),
    /// The run ended. The answer says what was lost.
    End(LoggedEnd, SyncSender<Result<(), LogError>>),
}

/// The run on the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    url: String,
    run_id: String,
}

/// The description of a run for the server.
struct Described {
    experiment: String,
    name: String,
    started: u64,
    params: Vec<Value>,
    tags: Vec<Value>,
    /// The run to continue.
    known: Option<Known>,
    /// File that keeps the name of a new run.
    file: PathBuf,
}

/// Starts the thread. The server is first asked there.
pub fn open(run: &LoggedRun<'_>) -> Result<Option<Box<dyn Logger>>, LogError> {
    let Some(url) = &run.config.log.mlflow else {
        return Ok(None);
    };
    let url = url.trim_end_matches('/').to_owned();
    let file = run.folder.join(FILE);
    let read = || -> Option<Known> {
        let text = whole_file::read(&file).ok()?;
        serde_json::from_slice(&text).ok()
    };
    let known = (run.steps > 0).then(read).flatten();
    let experiment = run.config.log.mlflow_experiment.as_deref();
    let folder = run.folder.file_name().unwrap_or_default();
    let process = run.environment.processes.last();
    let described = Described {
        experiment: experiment.unwrap_or(run.name).to_owned(),
        name: folder.to_string_lossy().into_owned(),
        started: milliseconds(),
        params: flat(run.config).into_iter().map(parameter).collect(),
        tags: tags(run, process),
        known: known.filter(|known| known.url == url),
        file,
    };
    let client = Client::new(url);
    let (sender, receiver) = mpsc::sync_channel(MESSAGES);
    let courier = Courier::new(client, described);
    let work = move || courier.work(&receiver);
    let started = std::thread::Builder::new()
        .name("mlflow".to_owned())
        .spawn(work);
    started.map_err(|error| LogError(format!("cannot start a thread: {error}")))?;
    Ok(Some(Box::new(Mlflow { sender, missed: 0 })))
}

/// The end of the queue in the training thread.
struct Mlflow {
    sender: SyncSender<Message>,
    /// Messages that did not fit into the queue.
    missed: u64,
}

impl Logger for Mlflow {
    fn metric(&mut self, metric: &Metric) -> Result<(), LogError> {
        if let Metric::Resume(line) = metric {
            let tag = |Changed { key, before, after }: &Changed| {
                let value = format!("{before} before step {}, then {after}", line.step);
                pair(&format!("changed.{key}"), &value)
            };
            return self.send(Message::Tags(line.changes.iter().map(tag).collect()));
        }
        let (step, values) = scalars(metric);
        let now = milliseconds();
        let finite = values.into_iter().filter(|(_, value)| value.is_finite());
        let metrics = finite.map(|(name, value)| {
            json!({"key": accepted(&name), "value": value, "timestamp": now, "step": step})
        });
        self.send(Message::Metrics(metrics.collect()))
    }

    fn end(&mut self, end: LoggedEnd) -> Result<(), LogError> {
        let (answer, answered) = mpsc::sync_channel(1);
        let deadline = Instant::now() + PATIENCE;
        let mut message = Message::End(end, answer);
        // The queue is full if the server is slow.
        while let Err(refused) = self.sender.try_send(message) {
            message = match refused {
                TrySendError::Full(message) if Instant::now() < deadline => message,
                TrySendError::Full(_) => return Err(too_slow()),
                TrySendError::Disconnected(_) => {
                    return Err(LogError("its thread ended".to_owned()));
                }
            };
            std::thread::sleep(Duration::from_millis(20));
        }
        finished(&answered, deadline)?;
        match self.missed {
            0 => Ok(()),
            missed => Err(LogError(format!(
                "the server was too slow; {missed} lines are missing there"
            ))),
        }
    }
}

impl Mlflow {
    fn send(&mut self, message: Message) -> Result<(), LogError> {
        match self.sender.try_send(message) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                self.missed += 1;
                Ok(())
            }
            Err(TrySendError::Disconnected(_)) => Err(LogError("its thread ended".to_owned())),
        }
    }
}

fn too_slow() -> LogError {
    LogError(format!(
        "the server did not take the last numbers within {} s",
        PATIENCE.as_secs()
    ))
}

/// Waits for the last answer.
fn finished(answered: &Receiver<Result<(), LogError>>, deadline: Instant) -> Result<(), LogError> {
    let left = deadline.saturating_duration_since(Instant::now());
    answered
        .recv_timeout(left)
        .unwrap_or_else(|_| Err(too_slow()))
}

fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_millis() as u64
}

/// A tag or parameter.
fn pair(key: &str, value: &str) -> Value {
    let end = value.floor_char_boundary(TEXT);
    json!({"key": accepted(key), "value": value.get(..end).unwrap_or_default()})
}

fn parameter((key, value): (String, toml::Value)) -> Value {
    match value {
        toml::Value::String(text) => pair(&key, &text),
        other => pair(&key, &other.to_string()),
    }
}

/// The name with the characters that MLflow accepts.
fn accepted(name: &str) -> String {
    let good = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ' | '/');
    name.chars()
        .map(|c| if good(c) { c } else { '_' })
        .collect()
}

fn tags(run: &LoggedRun<'_>, process: Option<&RunProcess>) -> Vec<Value> {
    let mut tags = vec![
        pair("mlflow.source.name", "trainer"),
        pair("mlflow.source.type", "LOCAL"),
        pair("run_folder", &run.folder.display().to_string()),
    ];
    if let Some(process) = process {
        let hosts: Vec<&str> = process.hosts.iter().map(|host| &*host.host).collect();
        tags.extend([
            pair("version", &process.version),
            pair("revision", &process.revision),
            pair("command", &process.command.join(" ")),
            pair("hosts", &hosts.join(" ")),
            pair("ranks", &process.ranks.to_string()),
        ]);
        let job = process.slurm.iter();
        tags.extend(job.map(|(key, value)| pair(&format!("slurm.{key}"), value)));
    }
    if run.steps > 0 {
        tags.push(pair("resumed_after_step", &run.steps.to_string()));
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_server_accepts() {
        assert_eq!(accepted("val/top-5 äcc."), "val/top-5 äcc.");
        assert_eq!(accepted("a:b@c"), "a_b_c");
        let long = parameter(("a.b".to_owned(), toml::Value::String("ä".repeat(TEXT))));
        assert_eq!(long["value"].as_str().map(str::len), Some(TEXT));
        let array = parameter((
            "a.b".to_owned(),
            toml::Value::Array(vec![1.into(), 2.into()]),
        ));
        assert_eq!(array, json!({"key": "a.b", "value": "[1, 2]"}));
    }
}
