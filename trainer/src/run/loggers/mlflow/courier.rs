//! The thread that brings numbers to the server.

use std::collections::VecDeque;
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Client, Refusal, text};
use super::{BACKLOG, Described, Known, LogError, LoggedEnd, Message, milliseconds};
use crate::system::output::complain;

/// Numbers are sent this often.
const EVERY: Duration = Duration::from_secs(1);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(15);
/// Most numbers, and most parameters or tags, in a request.
const METRICS: usize = 1000;
/// Most requests before the next look at the messages.
const REQUESTS: usize = 4;
const PAIRS: usize = 100;
/// Places of the parameters and the tags among the pairs.
const PARAMS: usize = 0;
const TAGS: usize = 1;

/// Brings numbers to the server.
pub struct Courier {
    client: Client,
    described: Described,
    /// The run on the server, once it exists.
    run_id: Option<String>,
    metrics: VecDeque<Value>,
    /// Parameters and tags that wait, by their names in a request.
    pairs: [(&'static str, Vec<Value>); 2],
    /// Numbers that were given up.
    lost: u64,
    /// Whether the last request failed.
    failing: bool,
    /// No request before this.
    next: Instant,
}

/// How much was sent.
enum Sent {
    All,
    /// More waits.
    Some,
    /// The server refused something.
    Refused,
}

impl Courier {
    /// Brings the numbers of this run.
    pub fn new(client: Client, described: Described) -> Self {
        Self {
            client,
            pairs: [("params", Vec::new()), ("tags", described.tags.clone())],
            described,
            run_id: None,
            metrics: VecDeque::new(),
            lost: 0,
            failing: false,
            next: Instant::now(),
        }
    }

    /// Works until the run ends.
    pub fn work(mut self, messages: &Receiver<Message>) {
        loop {
            let wait = self
                .next
                .saturating_duration_since(Instant::now())
                .min(EVERY);
            match messages.recv_timeout(wait) {
                Ok(Message::Metrics(metrics)) => self.take(metrics),
                Ok(Message::Tags(tags)) => self.pairs[TAGS].1.extend(tags),
                Ok(Message::End(end, answer)) => {
                    // Nobody may wait for it any more.
                    let _ = answer.send(self.end(end));
                    return;
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() >= self.next {
                let pause = match self.send() {
                    Ok(Sent::All) => {
                        self.failing = false;
                        EVERY
                    }
                    Ok(Sent::Some) => Duration::ZERO,
                    Ok(Sent::Refused) => EVERY,
                    Err(refusal) => {
                        self.warn(&refusal);
                        PAUSE
                    }
                };
                self.next = Instant::now() + pause;
            }
        }
    }

    fn take(&mut self, metrics: Vec<Value>) {
        self.metrics.extend(metrics);
        while self.metrics.len() > BACKLOG {
            self.metrics.pop_front();
            self.lost += 1;
        }
    }

    /// Warns at the first of a series of failures.
    fn warn(&mut self, refusal: &Refusal) {
        if !std::mem::replace(&mut self.failing, true) {
            complain(&format!(
                "warning: MLflow at {} takes no numbers; training continues and tries again: \
                 {refusal}",
                self.client.url()
            ));
        }
    }

    /// Sends some of what waits.
    fn send(&mut self) -> Result<Sent, Refusal> {
        let run_id = self.run_id()?;
        let mut refused = false;
        for kind in [PARAMS, TAGS] {
            while let (name, pairs @ [_, ..]) = (self.pairs[kind].0, &self.pairs[kind].1[..]) {
                let part = pairs.len().min(PAIRS);
                let sent = self.batch(&json!({"run_id": run_id, name: pairs[..part]}));
                refused |= self.is_refused(sent)?;
                self.pairs[kind].1.drain(..part);
            }
        }
        for _ in 0..REQUESTS {
            if self.metrics.is_empty() {
                break;
            }
            let part = self.metrics.len().min(METRICS);
            let metrics: Vec<&Value> = self.metrics.iter().take(part).collect();
            let sent = self.batch(&json!({"run_id": run_id, "metrics": metrics}));
            if sent.is_err() {
                self.lost += u64::from(matches!(sent, Err(Refusal::Refused { .. }))) * part as u64;
            }
            refused |= self.is_refused(sent)?;
            self.metrics.drain(..part);
        }
        Ok(match (refused, self.metrics.is_empty()) {
            (true, _) => Sent::Refused,
            (false, true) => Sent::All,
            (false, false) => Sent::Some,
        })
    }

    /// Sends everything that waits.
    fn send_all(&mut self) -> Result<(), Refusal> {
        self.send()?;
        while !self.metrics.is_empty() {
            self.send()?;
        }
        Ok(())
    }

    fn batch(&self, body: &Value) -> Result<Value, Refusal> {
        self.client.post("runs/log-batch", body)
    }

    /// Whether the server refuses something for good. It is given up, with a warning.
    fn is_refused(&mut self, sent: Result<Value, Refusal>) -> Result<bool, Refusal> {
        match sent {
            Ok(_) => Ok(false),
            Err(refused @ Refusal::Refused { .. }) => {
                self.warn(&refused);
                Ok(true)
            }
            Err(unreachable) => Err(unreachable),
        }
    }

    /// The run on the server: that of before, or a new one.
    fn run_id(&mut self) -> Result<String, Refusal> {
        if let Some(run_id) = &self.run_id {
            return Ok(run_id.clone());
        }
        let run_id = match self.continued()? {
            Some(run_id) => run_id,
            None => self.created()?,
        };
        Ok(self.run_id.insert(run_id).clone())
    }

    fn continued(&self) -> Result<Option<String>, Refusal> {
        let Some(Known { run_id, .. }) = &self.described.known else {
            return Ok(None);
        };
        let body = json!({"run_id": run_id, "status": "RUNNING"});
        match self.client.post("runs/update", &body) {
            Ok(_) => Ok(Some(run_id.clone())),
            // It was deleted there.
            Err(Refusal::Refused { .. }) => Ok(None),
            Err(unreachable) => Err(unreachable),
        }
    }

    fn created(&mut self) -> Result<String, Refusal> {
        let described = &self.described;
        let experiment = self.client.experiment(&described.experiment)?;
        let body = json!({
            "experiment_id": experiment,
            "run_name": described.name,
            "start_time": described.started,
        });
        let answer = self.client.post("runs/create", &body)?;
        let run_id = text(&answer, "/run/info/run_id")?;
        let known = Known {
            url: self.client.url().to_owned(),
            run_id: run_id.clone(),
        };
        // Without the file, a resume makes another run on the server.
        let file = serde_json::to_vec(&known).unwrap_or_default();
        let kept = fs::write(&described.file, file);
        self.pairs[PARAMS].1 = described.params.clone();
        if let Err(error) = kept {
            complain(&format!(
                "warning: cannot write {}; a resumed run will be another one on the MLflow server: \
                 {error}",
                described.file.display()
            ));
        }
        Ok(run_id)
    }

    /// Sends the rest, and the end.
    fn end(&mut self, end: LoggedEnd) -> Result<(), LogError> {
        let status = match end {
            LoggedEnd::Done => "FINISHED",
            LoggedEnd::Paused => "SCHEDULED",
            LoggedEnd::Failed => "FAILED",
        };
        let sent = self.send_all().and_then(|()| {
            let run_id = self.run_id()?;
            let body = json!({"run_id": run_id, "status": status, "end_time": milliseconds()});
            self.client.post("runs/update", &body)
        });
        let failed = |refusal| {
            let left = self.metrics.len() as u64 + self.lost;
            LogError(format!(
                "{left} numbers did not reach {}: {refusal}",
                self.client.url()
            ))
        };
        sent.map_err(failed)?;
        match self.lost {
            0 => Ok(()),
            lost => Err(LogError(format!(
                "{lost} numbers did not reach {}",
                self.client.url()
            ))),
        }
    }
}
