//! The dashboard: a full-screen view of a run with progress, curves, numbers and messages.
//!
//! It only draws and reads no keys, so Ctrl-C ends the run as usual.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph};

use crate::config::metric::{Measure, Shown};
use crate::system::output::screen::{self, Screen};
use crate::system::output::{duration, say};

/// Time between two redraws.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// Maximum points of a curve. A fuller curve drops every other point.
const POINTS: usize = 512;
/// Messages kept for display, and for printing at the end.
const MESSAGES: usize = 1000;

/// A curve with a bounded number of points.
#[derive(Debug, Default)]
struct Curve {
    points: Vec<(f64, f64)>,
    /// Values per point.
    stride: u64,
    seen: u64,
}

impl Curve {
    fn push(&mut self, x: f64, y: f64) {
        let stride = self.stride.max(1);
        self.seen += 1;
        if !self.seen.is_multiple_of(stride) || !y.is_finite() {
            return;
        }
        self.points.push((x, y));
        if self.points.len() >= POINTS {
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            self.stride = stride * 2;
        }
    }

    /// Minimum and maximum of one coordinate, slightly apart if they are equal.
    fn bounds(&self, coordinate: impl Fn(&(f64, f64)) -> f64) -> [f64; 2] {
        let values = || self.points.iter().map(&coordinate);
        let low = values().fold(f64::INFINITY, f64::min);
        let high = values().fold(f64::NEG_INFINITY, f64::max);
        match low < high {
            true => [low, high],
            false if low.is_finite() => [low - 0.5, low + 0.5],
            false => [0.0, 1.0],
        }
    }
}

/// The state to draw.
#[derive(Debug)]
struct View {
    /// Name of the data that the run evaluates on.
    evaluated: &'static str,
    epoch: u64,
    epochs: u64,
    done: u64,
    steps: u64,
    epoch_begin: Instant,
    /// Steps of the epoch done by other processes.
    done_before: u64,
    begin: Instant,
    step: u64,
    losses: Curve,
    /// The metric that is shown, if any.
    measure: Option<Measure>,
    /// Its values, shares in percent.
    values: Curve,
    /// Unit of the throughput.
    unit: &'static str,
    rate: f64,
    memory: Option<f64>,
    messages: VecDeque<String>,
}

impl View {
    /// Adds a message.
    fn add(&mut self, text: String) {
        if self.messages.len() == MESSAGES {
            self.messages.pop_front();
        }
        self.messages.push_back(text);
    }

    fn new(unit: &'static str, measure: Option<Measure>, evaluated: &'static str) -> Self {
        Self {
            evaluated,
            epoch: 0,
            epochs: 0,
            done: 0,
            steps: 0,
            epoch_begin: Instant::now(),
            done_before: 0,
            begin: Instant::now(),
            step: 0,
            losses: Curve::default(),
            measure,
            values: Curve::default(),
            unit,
            rate: 0.0,
            memory: None,
            messages: VecDeque::new(),
        }
    }

    /// Estimated time for the rest of the epoch.
    fn left(&self) -> Option<Duration> {
        let done = self.done.checked_sub(self.done_before)?;
        let each = self.epoch_begin.elapsed().as_secs_f64() / (done > 0).then_some(done)? as f64;
        Duration::try_from_secs_f64(each * self.steps.saturating_sub(self.done) as f64).ok()
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let [progress, curves, numbers, messages] = Layout::vertical([
            Constraint::Length(3),
            Constraint::Min(8),
            Constraint::Length(3),
            Constraint::Length(8),
        ])
        .areas(frame.area());
        let [loss, value] = Layout::horizontal([Constraint::Percentage(50); 2]).areas(curves);
        self.draw_progress(frame, progress);
        draw_curve(frame, loss, "loss", &self.losses, Color::Cyan);
        let title = self.measure.as_ref().map(|measure| {
            let percent = if is_share(measure) { ", %" } else { "" };
            format!("{} {}{percent}", self.evaluated, measure.label)
        });
        draw_curve(
            frame,
            value,
            &title.unwrap_or_default(),
            &self.values,
            Color::Green,
        );
        self.draw_numbers(frame, numbers);
        self.draw_messages(frame, messages);
    }

    fn draw_progress(&self, frame: &mut Frame<'_>, area: Rect) {
        let title = format!(" epoch {} of {} ", self.epoch, self.epochs);
        let share = self.done as f64 / self.steps.max(1) as f64;
        let left = self.left().map(|left| format!(", {} left", duration(left)));
        let label = format!("{}/{}{}", self.done, self.steps, left.unwrap_or_default());
        let gauge = Gauge::default()
            .block(Block::bordered().title(title))
            .gauge_style(Style::new().fg(Color::Blue))
            .ratio(share.clamp(0.0, 1.0))
            .label(label);
        frame.render_widget(gauge, area);
    }

    fn draw_numbers(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut text = format!(
            "step {}   {:.0} {}/s   {} so far",
            self.step,
            self.rate,
            self.unit,
            duration(self.begin.elapsed())
        );
        if let Some((_, loss)) = self.losses.points.last() {
            text += &format!("   loss {loss:.4}");
        }
        if let (Some(measure), Some((_, value))) = (&self.measure, self.values.points.last()) {
            let value = match is_share(measure) {
                true => format!("{value:.2} %"),
                false => measure.shown.text(*value),
            };
            text += &format!("   {} {value}", measure.label);
        }
        if let Some(memory) = self.memory {
            text += &format!("   {memory:.0} MiB");
        }
        let numbers = Paragraph::new(text).block(Block::bordered().title(" numbers "));
        frame.render_widget(numbers, area);
    }

    fn draw_messages(&self, frame: &mut Frame<'_>, area: Rect) {
        let room = usize::from(area.height.saturating_sub(2));
        let skipped = self.messages.len().saturating_sub(room);
        let lines: Vec<Line<'_>> = self
            .messages
            .iter()
            .skip(skipped)
            .map(|line| Line::raw(line.as_str()))
            .collect();
        let messages = Paragraph::new(lines).block(Block::bordered().title(" messages "));
        frame.render_widget(messages, area);
    }
}

fn is_share(measure: &Measure) -> bool {
    measure.shown == Shown::Percent
}

fn draw_curve(frame: &mut Frame<'_>, area: Rect, title: &str, curve: &Curve, color: Color) {
    let (x, y) = (curve.bounds(|point| point.0), curve.bounds(|point| point.1));
    let data = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(Style::new().fg(color))
        .data(&curve.points);
    let chart = Chart::new(vec![data])
        .block(Block::bordered().title(format!(" {title} ")))
        .x_axis(
            Axis::default()
                .bounds(x)
                .labels(x.map(|step| format!("{step:.0}"))),
        )
        .y_axis(
            Axis::default()
                .bounds(y)
                .labels(y.map(|value| format!("{value:.3}"))),
        );
    frame.render_widget(chart, area);
}

/// The dashboard: its state and its terminal.
#[derive(Debug)]
pub struct Dashboard {
    screen: Screen,
    view: View,
    drawn: Instant,
}

impl Dashboard {
    /// Takes over the terminal of standard error.
    ///
    /// Shows `measure`, and a throughput in `unit`. `evaluated` is the name of the data that the
    /// run evaluates on.
    ///
    /// # Errors
    /// Fails if standard error is no terminal, or the terminal refuses.
    pub fn open(
        unit: &'static str,
        measure: Option<Measure>,
        evaluated: &'static str,
    ) -> io::Result<Self> {
        Ok(Self {
            screen: Screen::open()?,
            view: View::new(unit, measure, evaluated),
            drawn: Instant::now(),
        })
    }

    /// Adds a message.
    pub fn line(&mut self, text: &str) {
        self.view.add(text.to_owned());
        self.draw(true);
    }

    /// Starts an epoch of `steps` steps; `done` of them were done before.
    pub fn start_epoch(&mut self, epoch: u64, epochs: u64, steps: u64, done: u64) {
        let view = &mut self.view;
        (view.epoch, view.epochs) = (epoch, epochs);
        (view.done, view.done_before, view.steps) = (done, done, steps);
        view.epoch_begin = Instant::now();
        self.draw(true);
    }

    /// Takes the loss of a step.
    pub fn loss(&mut self, step: u64, loss: f64) {
        self.view.step = step;
        self.view.losses.push(step as f64, loss);
    }

    /// Takes the value of the shown metric in an evaluation.
    pub fn value(&mut self, value: f64) {
        let step = self.view.step as f64;
        let is_share = self.view.measure.as_ref().is_some_and(is_share);
        let factor = if is_share { 100.0 } else { 1.0 };
        self.view.values.push(step, factor * value);
        self.draw(true);
    }

    /// Takes the progress of the epoch.
    pub fn step(&mut self, done: u64, rate: f64, memory: Option<f64>) {
        self.view.done = done;
        self.view.rate = rate;
        self.view.memory = memory;
        self.draw(false);
    }

    /// Draws, at most as often as the redraw time allows.
    fn draw(&mut self, at_once: bool) {
        if !at_once && self.drawn.elapsed() < DRAW_EVERY {
            return;
        }
        self.drawn = Instant::now();
        screen::taken()
            .into_iter()
            .for_each(|text| self.view.add(text));
        let view = &self.view;
        self.screen.draw(|frame| view.draw(frame));
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        screen::restore();
        for message in &self.view.messages {
            say(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IsTerminal;

    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_shows_what_happens() {
        let mut view = View::new(
            "images",
            Some(Measure::share("accuracy", "accuracy")),
            "test",
        );
        (view.epoch, view.epochs, view.done, view.steps) = (2, 7, 30, 120);
        for step in 1..=10_000 {
            view.step = step;
            view.losses.push(step as f64, 3.0 / step as f64);
        }
        assert!(view.losses.points.len() < POINTS);
        view.values.push(10_000.0, 87.5);
        view.rate = 1234.0;
        view.messages.push_back("epoch 1/7 is over".to_owned());
        let screen = screen(&view, 100, 40);
        for part in [
            "epoch 2 of 7",
            "30/120",
            "step 10000",
            "1234 images/s",
            "accuracy 87.50 %",
            "epoch 1/7 is over",
            "test accuracy, %",
        ] {
            assert!(screen.contains(part), "{part} is not on\n{screen}");
        }
        // Braille dots of the curve.
        assert!(
            screen
                .chars()
                .any(|c| ('\u{2801}'..='\u{28ff}').contains(&c))
        );
    }

    #[test]
    fn a_small_or_empty_screen_is_no_problem() {
        let mut view = View::new(
            "images",
            Some(Measure::share("accuracy", "accuracy")),
            "test",
        );
        screen(&view, 1, 1);
        screen(&view, 20, 5);
        view.losses.push(1.0, f64::NAN);
        view.losses.push(1.0, 2.0);
        screen(&view, 80, 24);
    }

    #[test]
    fn without_a_terminal_there_is_no_screen() {
        // Tests have a terminal only if a person runs them.
        if !io::stderr().is_terminal() {
            assert!(Dashboard::open("images", None, "test").is_err());
        }
    }
}
