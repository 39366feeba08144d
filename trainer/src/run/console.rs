//! Progress of a run for people: a progress bar on a terminal, plain lines elsewhere.
//!
//! Rank 0 prints; the other ranks have a silent console.

use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_dist::device::is_host;
use burn_dist::group::RankStates;

use crate::config::metric::Measure;
use crate::run::dashboard::Dashboard;
use crate::run::eta::{Pace, StepDone, TimeLeft};
use crate::run::evaluation::Evaluation;
use crate::run::metrics::{RanksLine, TrainLine};
use crate::system::output::outlet::{self, Bar};
use crate::system::output::{complain, say, short, style};
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
    /// The current epoch, such as `epoch 1/2`, and its steps.
    epoch: (String, u64),
    pace: Pace,
    last_line: Instant,
    /// Begin of an evaluation in progress.
    evaluates: Option<Instant>,
    /// Loss and learning rate of the last known step.
    known: Option<(f64, f64)>,
    /// The metric that is shown, if the task has one.
    measure: Option<Measure>,
    /// Its value in the last evaluation.
    value: Option<f64>,
    /// Unit of throughput.
    unit: &'static str,
    /// The device, if it has its own memory.
    device: Option<Device>,
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
            epoch: (String::new(), 0),
            pace: Pace::default(),
            last_line: Instant::now(),
            evaluates: None,
            known: None,
            measure,
            value: None,
            unit,
            device: None,
            screen: None,
        }
    }

    /// Also shows the memory that this process has on `device`.
    #[must_use]
    pub fn measuring_memory_of(mut self, device: &Device) -> Self {
        self.device = (!is_host(device)).then(|| device.clone());
        self
    }

    /// Shows the dashboard from now on, if the terminal allows it. It asks the ranks for their
    /// states.
    pub fn open_dashboard(&mut self, states: RankStates) {
        if !self.main {
            return;
        }
        let (measure, device) = (self.measure.clone(), self.device.clone());
        match Dashboard::open(self.unit, measure, self.evaluated, device, states) {
            Ok(screen) => self.screen = Some(screen),
            Err(error) => complain(&format!("warning: no dashboard: {error}")),
        }
    }

    /// The dashboard, if it is shown. The user may have left it.
    fn screen(&mut self) -> Option<&Dashboard> {
        self.screen.take_if(|screen| screen.is_left());
        self.screen.as_ref()
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
        let main = self.main;
        match self.screen() {
            Some(screen) => screen.line(text),
            None if main => say(text),
            None => {}
        }
    }

    /// Starts the progress of an epoch of `steps` steps; `done` of them were done before.
    pub fn start_epoch(&mut self, epoch: u64, epochs: u64, steps: u64, done: u64) {
        self.last_line = Instant::now();
        self.pace.start();
        self.epoch = (format!("epoch {epoch}/{epochs}"), steps);
        if let Some(screen) = self.screen() {
            screen.start_epoch(epoch, epochs, steps, done);
            return;
        }
        if self.main && style::redraws() {
            self.start_bar(done);
        }
    }

    fn start_bar(&mut self, done: u64) {
        self.bars += 1;
        let bar = Bar {
            number: self.bars,
            prefix: self.epoch.0.clone(),
            steps: self.epoch.1,
            done,
            message: String::new(),
        };
        outlet::put_bar(Some(bar.clone()));
        self.bar = Some(bar);
    }

    /// Takes the numbers of a step that all ranks know.
    pub fn step_is_known(&mut self, line: &TrainLine) {
        self.known = Some((line.loss, line.lr));
        if let Some(screen) = self.screen() {
            screen.step_is_known(line);
        }
    }

    /// Notes that an evaluation begins.
    pub fn start_evaluation(&mut self) {
        self.evaluates = Some(Instant::now());
        if let Some(screen) = self.screen() {
            screen.start_evaluation();
        }
    }

    /// Takes an evaluation.
    pub fn evaluation(&mut self, evaluation: &Evaluation) {
        if let Some(begin) = self.evaluates.take() {
            self.pace.evaluated(begin.elapsed());
        }
        let name = self.measure.as_ref().map(|measure| measure.name.as_ref());
        let value = name.and_then(|name| evaluation.metric(name));
        self.value = value;
        if let Some(screen) = self.screen() {
            screen.evaluation(evaluation.loss, value);
        }
    }

    /// Takes the work of the ranks in an epoch.
    pub fn ranks(&mut self, line: &RanksLine) {
        if let Some(screen) = self.screen() {
            screen.ranks(line);
        }
    }

    /// Shows that a step is done.
    pub fn step(&mut self, done: &StepDone) {
        if !self.main {
            return;
        }
        self.pace.step();
        let left = self.pace.left(&done.ahead);
        let had_screen = self.screen.is_some();
        if let Some(screen) = self.screen() {
            screen.step(done, left);
            return;
        }
        if had_screen {
            self.start_bar(done.step_of_epoch);
        }
        if self.bar.is_some() {
            if self.last_line.elapsed() < BAR_EVERY {
                return;
            }
            self.last_line = Instant::now();
            let message = self.numbers(done, left);
            if let Some(bar) = &mut self.bar {
                (bar.done, bar.message) = (done.step_of_epoch, message);
                outlet::put_bar(Some(bar.clone()));
            }
        } else if self.last_line.elapsed() >= LINE_EVERY && done.ahead.epoch_steps > 0 {
            self.last_line = Instant::now();
            say(&self.progress_line(done, left));
        }
    }

    /// A plain line of progress.
    fn progress_line(&self, done: &StepDone, left: Option<TimeLeft>) -> String {
        let ((epoch, steps), numbers) = (&self.epoch, self.numbers(done, left));
        format!("  {epoch}, step {}/{steps}{numbers}", done.step_of_epoch)
    }

    /// Loss, learning rate, speed, time, memory and metric for a line of progress.
    fn numbers(&self, done: &StepDone, left: Option<TimeLeft>) -> String {
        let known = self.known;
        let device = self.device.as_ref();
        let value = self.measure.as_ref().zip(self.value);
        let parts = [
            known.map(|(loss, _)| format!("loss {loss:.4}")),
            known.map(|(_, lr)| format!("lr {}", short(lr))),
            Some(format!("{:.0} {}/s", done.rate, self.unit)),
            left.map(|left| left.to_string()),
            memory::resident_mib().map(|mib| format!("{mib:.0} MiB")),
            device
                .and_then(memory::device_mib)
                .map(|mib| format!("GPU {mib:.0} MiB")),
            done.share_of_peak
                .map(|share| format!("MFU {:.0} %", 100.0 * share)),
            value.map(|(measure, value)| {
                let (set, label) = (self.evaluated, &measure.label);
                format!("{set} {label} {}", measure.shown.text(value))
            }),
        ];
        let parts = parts.into_iter().flatten();
        parts.map(|part| format!(", {part}")).collect()
    }

    /// Removes the progress bar.
    pub fn end_epoch(&mut self) {
        if self.bar.take().is_some() {
            outlet::put_bar(None);
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.end_epoch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::eta::{Ahead, RunEnd};

    #[test]
    fn a_line_of_progress_has_the_numbers_that_people_watch() {
        let accuracy = Measure::share("accuracy", "accuracy");
        let mut console = Console::new(false, "images", Some(accuracy), "val");
        console.start_epoch(2, 3, 937, 0);
        console.step_is_known(&TrainLine {
            loss: 0.21063,
            lr: 1e-3,
            ..TrainLine::default()
        });
        console.evaluation(&Evaluation::new(0.3, 9, [("accuracy", 0.975)]));
        let done = StepDone {
            step: 1030,
            step_of_epoch: 93,
            rate: 1190.2,
            share_of_peak: Some(0.414),
            ahead: Ahead::default(),
        };
        let left = TimeLeft {
            epoch: Duration::from_millis(45_400),
            run: Duration::from_secs(125),
            end: RunEnd::MayBeEarly,
        };
        let line = console.progress_line(&done, Some(left));
        let (front, back) = line.split_once(" MiB").unwrap();
        let begin = "  epoch 2/3, step 93/937, loss 0.2106, lr 0.001, 1190 images/s, 45.4 s left \
                     (run at most 2 min 05 s), ";
        let memory = front
            .strip_prefix(begin)
            .unwrap_or_else(|| panic!("{line}"));
        assert!(memory.parse::<u64>().is_ok(), "{line}");
        assert_eq!(back, ", MFU 41 %, val accuracy 97.50 %");
    }
}
