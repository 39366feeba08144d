//! The dashboard: a full-screen view of a run with progress, curves, numbers, ranks and messages.
//!
//! Its thread reads keys, asks the ranks what they do, and draws once per second, also while a step
//! or an evaluation takes long. Ctrl-C is a signal as usual.

mod curve;
mod keys;
mod ranks;
mod view;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_dist::group::RankStates;
use parking_lot::Mutex;

use crate::config::metric::Measure;
use crate::run::eta::{StepDone, TimeLeft};
use crate::run::metrics::{RanksLine, TrainLine};
use crate::system::memory;
use crate::system::output::say;
use crate::system::output::screen::{self, Screen};
use keys::{Key, Keyboard};
use view::{Memory, Numbers, View};

/// Time between two redraws after steps.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// Time between two questions to the ranks, and between two redraws without steps.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Maximum wait for the answers.
const ANSWER: Duration = Duration::from_millis(500);
/// Time between two looks at the keyboard.
const KEYS_EVERY: Duration = Duration::from_millis(100);

/// The dashboard: its state and its terminal.
#[derive(Debug)]
pub struct Dashboard {
    shared: Arc<Shared>,
    /// The device, unless it is the CPU.
    device: Option<Device>,
}

/// State that the training shares with the dashboard's thread.
#[derive(Debug)]
struct Shared {
    picture: Mutex<Picture>,
    /// Locked while the ranks are asked, which keeps their connections open.
    asking: Mutex<()>,
    /// Whether the run does without the dashboard from now on.
    over: AtomicBool,
}

#[derive(Debug)]
struct Picture {
    view: View,
    screen: Screen,
    drawn: Instant,
}

impl Picture {
    fn draw(&mut self) {
        self.drawn = Instant::now();
        for text in screen::taken() {
            self.view.add(text);
        }
        let view = &self.view;
        self.screen.draw(|frame| view.draw(frame));
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Changes the view and draws it, unless the user has left it.
    fn change(&self, change: impl FnOnce(&mut View)) {
        let mut picture = self.picture.lock();
        if !self.is_over() {
            change(&mut picture.view);
            picture.draw();
        }
    }

    /// Restores the terminal and prints all messages.
    fn close(&self) {
        let mut picture = self.picture.lock();
        if self.over.swap(true, Ordering::SeqCst) {
            return;
        }
        screen::restore();
        for message in picture.view.take_messages() {
            say(&message);
        }
    }

    /// Attends to keys and ranks until the dashboard is over.
    fn attend(&self, states: &RankStates) {
        let keyboard = Keyboard::open().ok();
        let mut asked = Instant::now();
        while !self.is_over() {
            let typed = match &keyboard {
                Some(keyboard) => keyboard.typed(KEYS_EVERY),
                None => {
                    thread::sleep(KEYS_EVERY);
                    Vec::new()
                }
            };
            for key in typed {
                match key {
                    Key::Leave => self.close(),
                    Key::Help => self.change(|view| view.helps = !view.helps),
                }
            }
            if asked.elapsed() >= ASK_EVERY {
                self.ask(states);
                asked = Instant::now();
            }
        }
    }

    /// Asks the ranks what they do.
    fn ask(&self, states: &RankStates) {
        let asking = self.asking.lock();
        if self.is_over() {
            return;
        }
        let states = states.ask(ANSWER);
        drop(asking);
        self.change(|view| {
            if !states.is_empty() {
                view.ranks.hear(&states, Instant::now());
            }
        });
    }
}

impl Dashboard {
    /// Takes over the terminal of standard error.
    ///
    /// Shows `measure`, and a throughput in `unit`. `evaluated` is the name of the data that the
    /// run evaluates on, `device` the device unless it is the CPU, and `states` asks the ranks.
    ///
    /// # Errors
    /// Fails if standard error is no terminal, the terminal refuses, or no thread can start.
    pub fn open(
        unit: &'static str,
        measure: Option<Measure>,
        evaluated: &'static str,
        device: Option<Device>,
        states: RankStates,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            picture: Mutex::new(Picture {
                screen: Screen::open()?,
                view: View::new(unit, measure, evaluated),
                drawn: Instant::now(),
            }),
            asking: Mutex::new(()),
            over: AtomicBool::new(false),
        });
        let dashboard = Self { shared, device };
        let shared = dashboard.shared.clone();
        let thread = thread::Builder::new().name("dashboard".to_owned());
        // If it fails, the drop of the dashboard restores the terminal.
        thread.spawn(move || shared.attend(&states))?;
        Ok(dashboard)
    }

    /// Whether the user has left the dashboard.
    pub fn is_left(&self) -> bool {
        self.shared.is_over()
    }

    /// Adds a message.
    pub fn line(&self, text: &str) {
        let mut picture = self.shared.picture.lock();
        match self.shared.is_over() {
            true => say(text),
            false => {
                picture.view.add(text.to_owned());
                picture.draw();
            }
        }
    }

    /// Starts an epoch of `steps` steps; `done` of them were done before.
    pub fn start_epoch(&self, epoch: u64, epochs: u64, steps: u64, done: u64) {
        self.shared.change(|view| {
            (view.epoch, view.epochs, view.steps) = (epoch, epochs, steps);
            view.start_epoch(done);
        });
    }

    /// Takes the numbers of a step that all ranks know.
    pub fn step_is_known(&self, line: &TrainLine) {
        let mut picture = self.shared.picture.lock();
        picture.view.know(line.step, line.loss, line.lr);
    }

    /// Shows that an evaluation has begun.
    pub fn start_evaluation(&self) {
        self.shared.change(|view| view.evaluates = true);
    }

    /// Takes the loss of an evaluation and the value of the shown metric.
    pub fn evaluation(&self, loss: f64, value: Option<f64>) {
        self.shared.change(|view| view.evaluation(loss, value));
    }

    /// Takes the work of the ranks in an epoch.
    pub fn ranks(&self, line: &RanksLine) {
        self.shared.change(|view| view.ranks.worked(line));
    }

    /// Takes the progress after a step, and the time that is left.
    pub fn step(&self, done: &StepDone, left: Option<TimeLeft>) {
        let mut picture = self.shared.picture.lock();
        picture.view.count(Numbers {
            step: done.step,
            step_of_epoch: done.step_of_epoch,
            run_steps: done.ahead.run_steps,
            rate: done.rate,
            share_of_peak: done.share_of_peak,
            left,
        });
        if picture.drawn.elapsed() >= DRAW_EVERY && !self.shared.is_over() {
            picture.view.memory = Memory {
                host: memory::resident_mib(),
                device: self.device.as_ref().and_then(memory::device_mib),
            };
            picture.draw();
        }
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.shared.close();
        // From here on the thread does not ask, so it keeps no connection of the group.
        drop(self.shared.asking.lock());
    }
}

#[cfg(test)]
mod tests {
    use std::io::IsTerminal;

    use burn_dist::ProcessGroup;

    use super::*;

    #[test]
    fn without_a_terminal_there_is_no_screen() {
        // Tests have a terminal only if a person runs them.
        if !io::stderr().is_terminal() {
            let states = ProcessGroup::single().rank_states();
            assert!(Dashboard::open("images", None, "test", None, states).is_err());
        }
    }
}
