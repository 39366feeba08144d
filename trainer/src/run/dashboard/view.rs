//! The picture of a run: progress, curves, numbers, ranks and messages.

use std::collections::VecDeque;
use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Block, Chart, Clear, Dataset, Gauge, GraphType, Padding, Paragraph, Wrap,
};

use super::curve::{Curve, Ticks};
use super::ranks::{Does, Ranks, Row, gravest};
use crate::config::metric::{Measure, Shown};
use crate::run::eta::TimeLeft;
use crate::system::output::{duration, short};

/// Messages kept for display, and for printing at the end.
const MESSAGES: usize = 1000;
/// Height from which more room is for ranks and messages.
const TALL: u16 = 36;

const TRAINED: Color = Color::Cyan;
const EVALUATED: Color = Color::Yellow;
const VALUES: Color = Color::Green;

const HELP: &str = "\
q       leave the dashboard; the run goes on and prints lines
?       show or hide this help
Ctrl-C  stop the run

left    time to the end of the epoch and of the run; at most, if
        early stopping may end the run before
work    share of the last epoch in which a rank computed and did
        not wait for others
late    the others wait for this rank
files   the rank reads or writes files";

/// The numbers after a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    /// Steps of the run, and of the epoch.
    pub step: u64,
    pub step_of_epoch: u64,
    /// Steps that are left of the run.
    pub run_steps: u64,
    pub rate: f64,
    pub share_of_peak: Option<f64>,
    pub left: Option<TimeLeft>,
}

/// Memory of this rank in MiB.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    pub host: Option<f64>,
    pub device: Option<f64>,
}

/// The state to draw.
#[derive(Debug)]
pub(super) struct View {
    /// Name of the data that the run evaluates on.
    evaluated: &'static str,
    /// Unit of the throughput.
    unit: &'static str,
    /// The metric that is shown, if any.
    measure: Option<Measure>,
    pub epoch: u64,
    pub epochs: u64,
    /// Steps of the epoch.
    pub steps: u64,
    /// Whether the run evaluates now.
    pub evaluates: bool,
    begin: Instant,
    numbers: Numbers,
    /// Time of the numbers.
    counted: Instant,
    /// Loss and learning rate of the last known step.
    known: Option<(f64, f64)>,
    losses: Curve,
    /// Loss of the last evaluation, and its values by step.
    eval_loss: Option<f64>,
    eval_losses: Curve,
    /// The shown metric of the last evaluation, and its values by step, shares in percent.
    value: Option<f64>,
    values: Curve,
    /// The best value.
    best: Option<f64>,
    pub memory: Memory,
    pub ranks: Ranks,
    messages: VecDeque<String>,
    pub helps: bool,
}

impl View {
    pub(super) fn new(
        unit: &'static str,
        measure: Option<Measure>,
        evaluated: &'static str,
    ) -> Self {
        Self {
            evaluated,
            unit,
            measure,
            epoch: 0,
            epochs: 0,
            steps: 0,
            evaluates: false,
            begin: Instant::now(),
            numbers: Numbers::default(),
            counted: Instant::now(),
            known: None,
            losses: Curve::default(),
            eval_loss: None,
            eval_losses: Curve::default(),
            value: None,
            values: Curve::default(),
            best: None,
            memory: Memory::default(),
            ranks: Ranks::default(),
            messages: VecDeque::new(),
            helps: false,
        }
    }

    /// Adds a message.
    pub(super) fn add(&mut self, text: String) {
        if self.messages.len() == MESSAGES {
            self.messages.pop_front();
        }
        self.messages.push_back(text);
    }

    /// Takes all messages.
    pub(super) fn take_messages(&mut self) -> VecDeque<String> {
        std::mem::take(&mut self.messages)
    }

    /// Takes loss and learning rate of a step.
    pub(super) fn know(&mut self, step: u64, loss: f64, lr: f64) {
        self.losses.push(step as f64, loss);
        self.known = Some((loss, lr));
    }

    /// Takes the numbers after a step.
    pub(super) fn count(&mut self, numbers: Numbers) {
        self.numbers = numbers;
        self.counted = Instant::now();
    }

    /// Starts an epoch after `done` of its steps. How long it takes is not known yet.
    pub(super) fn start_epoch(&mut self, done: u64) {
        self.numbers.step_of_epoch = done;
        self.numbers.left = None;
    }

    /// Takes an evaluation: its loss, and the shown metric.
    pub(super) fn evaluation(&mut self, loss: f64, value: Option<f64>) {
        let step = self.numbers.step as f64;
        self.eval_losses.push(step, loss);
        self.eval_loss = Some(loss);
        self.evaluates = false;
        self.value = value;
        let (Some(measure), Some(value)) = (&self.measure, value) else {
            return;
        };
        let factor = if is_share(measure) { 100.0 } else { 1.0 };
        self.values.push(step, factor * value);
        let is_better = |best: f64| measure.better.is_better(value, best, 0.0);
        if self.best.is_none_or(is_better) {
            self.best = Some(value);
        }
    }

    /// The time that is left now. It was estimated after the last step.
    fn left(&self) -> Option<TimeLeft> {
        let passed = self.counted.elapsed();
        self.numbers.left.map(|left| TimeLeft {
            epoch: left.epoch.saturating_sub(passed),
            run: left.run.saturating_sub(passed),
            ..left
        })
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let is_tall = frame.area().height >= TALL;
        let [progress, curves, numbers, below, keys] = Layout::vertical([
            Constraint::Length(4),
            Constraint::Min(6),
            Constraint::Length(4),
            Constraint::Length(if is_tall { 14 } else { 7 }),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_progress(frame, progress);
        self.draw_curves(frame, curves);
        self.draw_numbers(frame, numbers);
        let rows = self.ranks.rows(Instant::now());
        let width = if rows.is_empty() { 0 } else { 38 };
        let [messages, ranks] =
            Layout::horizontal([Constraint::Min(20), Constraint::Length(width)]).areas(below);
        self.draw_messages(frame, messages);
        if width > 0 {
            draw_ranks(frame, ranks, rows);
        }
        let keys_line = Line::raw(" q leave   ? help   Ctrl-C stop").dim();
        frame.render_widget(keys_line, keys);
        if self.helps {
            draw_help(frame);
        }
    }

    fn draw_progress(&self, frame: &mut Frame<'_>, area: Rect) {
        let so_far = duration(self.begin.elapsed());
        let title = format!(" epoch {} of {}, {so_far} so far ", self.epoch, self.epochs);
        let block = Block::bordered().title(title);
        let [epoch, run] = Layout::vertical([Constraint::Length(1); 2]).areas(block.inner(area));
        frame.render_widget(block, area);
        let numbers = &self.numbers;
        let (left, done) = (self.left(), numbers.step_of_epoch);
        let epoch_left = match (self.evaluates, left) {
            (true, _) => format!(", evaluates on {} data", self.evaluated),
            (false, Some(left)) => format!(", {} left", duration(left.epoch)),
            (false, None) => String::new(),
        };
        let label = format!("step {done}/{}{epoch_left}", self.steps);
        draw_bar(frame, epoch, "epoch", (done, self.steps), label);
        let all = numbers.step + numbers.run_steps;
        let run_left = left.map(|left| format!(", {} left", left.run_in_words()));
        let label = format!(
            "step {}/{all}{}",
            numbers.step,
            run_left.unwrap_or_default()
        );
        draw_bar(frame, run, "run", (numbers.step, all), label);
    }

    fn draw_curves(&self, frame: &mut Frame<'_>, area: Rect) {
        let (loss, value) = match &self.measure {
            Some(measure) => {
                let [loss, value] = Layout::horizontal([Constraint::Percentage(50); 2]).areas(area);
                (loss, Some((value, measure)))
            }
            None => (area, None),
        };
        let title = Line::from(vec![
            Span::raw(" loss: "),
            Span::styled("train", TRAINED),
            Span::raw(", "),
            Span::styled(self.evaluated, EVALUATED),
            Span::raw(" "),
        ]);
        let curves = [(&self.losses, TRAINED), (&self.eval_losses, EVALUATED)];
        draw_chart(frame, loss, title, &curves, ("no step yet", None));
        if let Some((area, measure)) = value {
            let is_share = is_share(measure);
            let percent = if is_share { ", %" } else { "" };
            let title = format!(" {} {}{percent} ", self.evaluated, measure.label);
            let most = is_share.then_some(100.0);
            let curves = [(&self.values, VALUES)];
            draw_chart(
                frame,
                area,
                title.into(),
                &curves,
                ("no evaluation yet", most),
            );
        }
    }

    fn draw_numbers(&self, frame: &mut Frame<'_>, area: Rect) {
        let numbers = &self.numbers;
        let known = self.known;
        let share = numbers.share_of_peak;
        let of_training = [
            Some(format!("step {}", numbers.step)),
            known.map(|(loss, _)| format!("loss {loss:.4}")),
            known.map(|(_, lr)| format!("lr {}", short(lr))),
            Some(format!("{:.0} {}/s", numbers.rate, self.unit)),
            share.map(|share| format!("MFU {:.0} %", 100.0 * share)),
        ];
        let value = self
            .measure
            .as_ref()
            .zip(self.value)
            .map(|(measure, value)| {
                let best = self.best.filter(|best| *best != value);
                let best = best.map(|best| format!(" (best {})", measure.shown.text(best)));
                let value = measure.shown.text(value);
                format!("{} {value}{}", measure.label, best.unwrap_or_default())
            });
        let memory = self.memory;
        let of_evaluation = [
            self.eval_loss
                .map(|loss| format!("{} loss {loss:.4}", self.evaluated)),
            value,
            memory.host.map(|mib| format!("{mib:.0} MiB")),
            memory.device.map(|mib| format!("GPU {mib:.0} MiB")),
        ];
        let line = |parts: &[Option<String>]| {
            let parts: Vec<&str> = parts.iter().flatten().map(String::as_str).collect();
            Line::raw(parts.join("   "))
        };
        let text = vec![line(&of_training), line(&of_evaluation)];
        let numbers = Paragraph::new(text).block(Block::bordered().title(" numbers "));
        frame.render_widget(numbers, area);
    }

    fn draw_messages(&self, frame: &mut Frame<'_>, area: Rect) {
        let room = usize::from(area.height.saturating_sub(2));
        let width = usize::from(area.width.saturating_sub(2)).max(1);
        let last = self.messages.iter().rev().take(room);
        let mut lines: Vec<String> = last.rev().flat_map(|text| wrapped(text, width)).collect();
        lines.drain(..lines.len().saturating_sub(room));
        let lines: Vec<Line<'_>> = lines.into_iter().map(Line::raw).collect();
        let messages = Paragraph::new(lines).block(Block::bordered().title(" messages "));
        frame.render_widget(messages, area);
    }
}

/// A text in lines of this many characters.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    match characters.is_empty() {
        true => vec![String::new()],
        false => characters
            .chunks(width)
            .map(|line| line.iter().collect())
            .collect(),
    }
}

fn is_share(measure: &Measure) -> bool {
    measure.shown == Shown::Percent
}

fn draw_bar(frame: &mut Frame<'_>, area: Rect, name: &str, (done, all): (u64, u64), label: String) {
    let [left, right] = Layout::horizontal([Constraint::Length(6), Constraint::Min(1)]).areas(area);
    frame.render_widget(Line::raw(name), left);
    let share = done as f64 / all.max(1) as f64;
    let gauge = Gauge::default()
        .gauge_style(Style::new().fg(Color::Blue))
        .ratio(share.clamp(0.0, 1.0))
        .label(label);
    frame.render_widget(gauge, right);
}

/// Draws curves in one frame. Without points there is no scale, only the words for `empty`.
fn draw_chart(
    frame: &mut Frame<'_>,
    area: Rect,
    title: Line<'_>,
    curves: &[(&Curve, Color)],
    (empty, most): (&str, Option<f64>),
) {
    let block = Block::bordered().title(title);
    let points = || curves.iter().flat_map(|(curve, _)| curve.points());
    let x = Ticks::around(points().map(|point| point.0), 1.0, None);
    let y = Ticks::around(points().map(|point| point.1), 0.0, most);
    let (Some(x), Some(y)) = (x, y) else {
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let [_, middle, _] = Layout::vertical([
            Constraint::Fill(1),
            Constraint::Length(1),
            Constraint::Fill(1),
        ])
        .areas(inner);
        let words = Paragraph::new(empty).alignment(Alignment::Center).dim();
        frame.render_widget(words, middle);
        return;
    };
    let data = curves.iter().map(|(curve, color)| {
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(*color))
            .data(curve.points())
    });
    let axis = |ticks: Ticks| Axis::default().bounds(ticks.bounds).labels(ticks.labels);
    let chart = Chart::new(data.collect())
        .block(block)
        .x_axis(axis(x))
        .y_axis(axis(y));
    frame.render_widget(chart, area);
}

fn draw_ranks(frame: &mut Frame<'_>, area: Rect, rows: Vec<Row>) {
    let block = Block::bordered().title(" ranks: state, work, memory ");
    let (rows, others) = gravest(rows, usize::from(area.height.saturating_sub(2)));
    let mut lines: Vec<Line<'_>> = rows.iter().map(rank_line).collect();
    if others > 0 {
        lines.push(Line::raw(format!("    and {others} more")));
    }
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn rank_line(row: &Row) -> Line<'static> {
    let color = match row.does {
        Does::NoAnswer => Color::Red,
        Does::Late | Does::Files => Color::Yellow,
        Does::Waits => Color::Blue,
        Does::Runs => Color::Green,
    };
    let work = row.work.map(|work| format!("{:.0} %", 100.0 * work));
    let memory = row.memory_mib.map(|mib| format!("{mib:.0} MiB"));
    Line::from(vec![
        Span::raw(format!("{:>3} ", row.rank)),
        Span::styled(format!("{:<16}", row.words), color),
        Span::raw(format!("{:>5}", work.unwrap_or_default())),
        Span::raw(format!("{:>10}", memory.unwrap_or_default())),
    ])
}

fn draw_help(frame: &mut Frame<'_>) {
    let lines = HELP.lines().count() as u16;
    let width = HELP.lines().map(|line| line.chars().count()).max();
    let whole = frame.area();
    let width = (width.unwrap_or(0) as u16 + 4).min(whole.width);
    let height = (lines + 2).min(whole.height);
    let area = Rect {
        x: (whole.width - width) / 2,
        y: (whole.height - height) / 2,
        width,
        height,
    };
    let block = Block::bordered()
        .title(" help ")
        .padding(Padding::horizontal(1));
    frame.render_widget(Clear, area);
    let help = Paragraph::new(HELP).wrap(Wrap { trim: false });
    frame.render_widget(help.block(block), area);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::run::eta::RunEnd;
    use crate::run::metrics::RanksLine;
    use burn_dist::group::RankState;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn accuracy() -> Option<Measure> {
        Some(Measure::share("accuracy", "accuracy"))
    }

    /// A run in its second epoch, with two ranks.
    fn view() -> View {
        let mut view = View::new("images", accuracy(), "val");
        (view.epoch, view.epochs, view.steps) = (2, 7, 120);
        for step in 1..=10_000u64 {
            view.know(step, 3.0 / step as f64, 1.25e-5);
        }
        view.count(Numbers {
            step: 10_000,
            step_of_epoch: 30,
            run_steps: 690,
            rate: 1234.0,
            share_of_peak: Some(0.414),
            left: Some(TimeLeft {
                epoch: Duration::from_secs(3630),
                run: Duration::from_secs(7230),
                end: RunEnd::MayBeEarly,
            }),
        });
        view.evaluation(0.25, Some(0.875));
        view.evaluation(0.5, Some(0.75));
        view.memory = Memory {
            host: Some(136.0),
            device: Some(4210.0),
        };
        let states = [RankState::Reached(5), RankState::Silent];
        view.ranks.hear(&states, Instant::now());
        view.ranks.worked(&RanksLine {
            compute: vec![3.0, 1.0],
            wait: vec![1.0, 1.0],
            ..RanksLine::default()
        });
        view.add("epoch 1/7 is over".to_owned());
        view
    }

    #[test]
    fn a_terminal_of_80_by_24_shows_everything() {
        let screen = screen(&view(), 80, 24);
        for part in [
            "epoch 2 of 7, ",
            "step 30/120, 1 h 00 min left",
            "step 10000/10690, at most 2 h 00 min left",
            "loss: train, val",
            "val accuracy, %",
            "loss 0.0003   lr 1.25e-5   1234 images/s   MFU 41 %",
            "val loss 0.5000   accuracy 75.00 % (best 87.50 %)   136 MiB   GPU 4210 MiB",
            "  0 runs             75 %",
            "  1 no answer ",
            " 50 %",
            "epoch 1/7 is over",
            "q leave   ? help",
        ] {
            assert!(screen.contains(part), "{part} is not on\n{screen}");
        }
        let is_dot = |c: char| ('\u{2801}'..='\u{28ff}').contains(&c);
        assert!(screen.chars().any(is_dot), "{screen}");
    }

    #[test]
    fn a_new_epoch_begins_without_steps() {
        let mut view = view();
        view.start_epoch(0);
        let screen = screen(&view, 80, 24);
        assert!(screen.contains("step 0/120 "), "{screen}");
        assert!(screen.contains("step 10000/10690 "), "{screen}");
    }

    #[test]
    fn a_large_terminal_has_room_for_more_ranks() {
        let mut view = view();
        view.ranks
            .hear(&[RankState::Reached(5); 20], Instant::now());
        let (small, large) = (screen(&view, 80, 24), screen(&view, 160, 50));
        assert!(small.contains("and 16 more"), "{small}");
        assert!(large.contains("and 9 more"), "{large}");
    }

    #[test]
    fn an_empty_panel_has_no_scale() {
        let view = View::new("images", accuracy(), "test");
        let empty = screen(&view, 80, 24);
        for words in ["no step yet", "no evaluation yet"] {
            assert!(empty.contains(words), "{empty}");
        }
        for label in ["0.000", "1.000", "0.5"] {
            assert!(!empty.contains(label), "{label} is on\n{empty}");
        }
        // A task without metrics has only the curve of its loss.
        let without = screen(&View::new("images", None, "test"), 80, 24);
        assert!(!without.contains("no evaluation yet"), "{without}");
    }

    #[test]
    fn the_help_names_the_keys() {
        let mut view = view();
        assert!(!screen(&view, 80, 24).contains("leave the dashboard"));
        view.helps = true;
        let help = screen(&view, 80, 24);
        assert!(help.contains("q       leave the dashboard"), "{help}");
        assert!(help.contains("files   the rank reads or writes"), "{help}");
    }

    #[test]
    fn a_small_screen_is_no_problem() {
        let mut view = view();
        view.helps = true;
        for (width, height) in [(1, 1), (20, 5), (39, 12)] {
            screen(&view, width, height);
        }
        view.know(1, f64::NAN, 0.1);
        view.evaluates = true;
        assert!(screen(&view, 80, 24).contains("evaluates on val data"));
    }

    #[test]
    fn long_messages_are_wrapped() {
        assert_eq!(wrapped("abcdefg", 3), ["abc", "def", "g"]);
        assert_eq!(wrapped("", 3), [""]);
    }
}
