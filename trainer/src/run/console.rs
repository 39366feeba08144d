//! Progress of a run for people: a progress bar on a terminal, plain lines elsewhere.
//!
//! Rank 0 prints; the other ranks have a silent console.

use std::time::{Duration, Instant};

use crate::config::metric::Measure;
use crate::run::dashboard::Dashboard;
use crate::run::evaluation::Evaluation;
use crate::system::output::outlet::{self, Bar};
use crate::system::output::{complain, duration, say, style};
use crate::system::{log, memory};

/// Time between two plain progress lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Time between two redraws of the progress bar.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// The output of a rank for people.
#[derive(Debug)]
pub struct Console {
    main: bool,
    /// Name of the data that the run evaluates on.
    evaluated: &'static str,
    bar: Option<Bar>,
    /// Number of bars shown so far.
    bars: u64,
    epoch: Epoch,
    last_line: Instant,
    /// Loss of the last known step.
    loss: Option<f64>,
    /// The metric that is shown, if the task has one.
    measure: Option<Measure>,
    /// Its value in the last evaluation.
    value: Option<f64>,
    /// Unit of throughput.
    unit: &'static str,
    /// The dashboard, if requested. It replaces lines and bars.
    screen: Option<Dashboard>,
}

impl Console {
    /// Makes a console that prints if this is the main rank.
    ///
    /// It shows `measure`, and a throughput in `unit`, such as `images`. `evaluated` is the name of
    /// the data that the run evaluates on.
    pub fn new(
        main: bool,
        unit: &'static str,
        measure: Option<Measure>,
        evaluated: &'static str,
    ) -> Self {
        Self {
            main,
            evaluated,
            bar: None,
            bars: 0,
            epoch: Epoch {
                of: String::new(),
                begin: Instant::now(),
                done_before: 0,
            },
            last_line: Instant::now(),
            loss: None,
            measure,
            value: None,
            unit,
            screen: None,
        }
    }

    /// Shows the dashboard from now on, if the terminal allows it.
    pub fn open_dashboard(&mut self) {
        if !self.main {
            return;
        }
        match Dashboard::open(self.unit, self.measure.clone(), self.evaluated) {
            Ok(screen) => self.screen = Some(screen),
            Err(error) => complain(&format!("warning: no dashboard: {error}")),
        }
    }

    /// Prints a line, also into the run's log.
    pub fn line(&mut self, text: &str) {
        // Like all other warnings, to standard error.
        if self.main && text.starts_with("warning: ") {
            return complain(text);
        }
        if self.main {
            log::write(text);
        }
        match &mut self.screen {
            Some(screen) => screen.line(text),
            None if self.main => say(text),
            None => {}
        }
    }

    /// Starts the progress of an epoch of `steps` steps; `done` of them were done before.
    pub fn start_epoch(&mut self, epoch: u64, epochs: u64, steps: u64, done: u64) {
        self.last_line = Instant::now();
        self.epoch = Epoch {
            of: format!("epoch {epoch}/{epochs}"),
            begin: Instant::now(),
            done_before: done,
        };
        if let Some(screen) = &mut self.screen {
            screen.start_epoch(epoch, epochs, steps, done);
            return;
        }
        if !self.main || !style::redraws() {
            return;
        }
        self.bars += 1;
        let bar = Bar {
            number: self.bars,
            prefix: self.epoch.of.clone(),
            steps,
            done,
            message: String::new(),
        };
        outlet::put_bar(Some(bar.clone()));
        self.bar = Some(bar);
    }

    /// Takes the loss of a step.
    pub fn loss(&mut self, step: u64, loss: f64) {
        self.loss = Some(loss);
        if let Some(screen) = &mut self.screen {
            screen.loss(step, loss);
        }
    }

    /// Takes an evaluation.
    pub fn evaluation(&mut self, evaluation: &Evaluation) {
        let name = self.measure.as_ref().map(|measure| measure.name.as_ref());
        self.value = name.and_then(|name| evaluation.metric(name));
        if let (Some(screen), Some(value)) = (&mut self.screen, self.value) {
            screen.value(value);
        }
    }

    /// Shows that `done` of `steps` steps of the epoch are done, at a rate in units per second.
    pub fn step(&mut self, done: u64, steps: u64, rate: f64) {
        if !self.main {
            return;
        }
        if let Some(screen) = &mut self.screen {
            screen.step(done, rate, memory::resident_mib());
        } else if self.bar.is_some() {
            if self.last_line.elapsed() < BAR_EVERY {
                return;
            }
            self.last_line = Instant::now();
            let message = self.numbers(rate);
            if let Some(bar) = &mut self.bar {
                (bar.done, bar.message) = (done, message);
                outlet::put_bar(Some(bar.clone()));
            }
        } else if self.last_line.elapsed() >= LINE_EVERY && done < steps {
            self.last_line = Instant::now();
            let numbers = self.numbers(rate);
            let (epoch, left) = (&self.epoch.of, duration(self.epoch.left(done, steps)));
            say(&format!(
                "  {epoch}, step {done}/{steps}{numbers}, {left} left"
            ));
        }
    }

    /// Loss, metric, speed and memory for a line of progress.
    fn numbers(&self, rate: f64) -> String {
        let mut text = String::new();
        if let Some(loss) = self.loss {
            text += &format!(", loss {loss:.4}");
        }
        if let (Some(measure), Some(value)) = (&self.measure, self.value) {
            let (set, label) = (self.evaluated, &measure.label);
            text += &format!(", {set} {label} {}", measure.shown.text(value));
        }
        text += &format!(", {rate:.0} {}/s", self.unit);
        if let Some(memory) = memory::resident_mib() {
            text += &format!(", {memory:.0} MiB");
        }
        text
    }

    /// Removes the progress bar.
    pub fn end_epoch(&mut self) {
        if self.bar.take().is_some() {
            outlet::put_bar(None);
        }
    }
}

/// The current epoch, as shown in progress lines.
#[derive(Debug)]
struct Epoch {
    of: String,
    begin: Instant,
    /// Steps done by another process, or by this one before an evaluation.
    done_before: u64,
}

impl Epoch {
    /// Estimated time for the rest of the epoch, at the rate so far.
    fn left(&self, done: u64, steps: u64) -> Duration {
        let own = done.saturating_sub(self.done_before).max(1);
        let per_step = self.begin.elapsed().as_secs_f64() / own as f64;
        let left = per_step * steps.saturating_sub(done) as f64;
        Duration::try_from_secs_f64(left).unwrap_or_default()
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.end_epoch();
    }
}
