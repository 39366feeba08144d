//! The alternate screen of the terminal.
//!
//! A picture appears whole or not at all. Nothing is drawn after the terminal was restored,
//! whichever thread does that.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::style::force_color_output;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::crossterm::{execute, queue};
use ratatui::{Frame, Terminal};
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetpgrp, tcsetattr};
use signal_hook::consts::SIGCONT;
use signal_hook::flag;

use crate::system::in_time::in_time;
use crate::system::output::{outlet, style};

/// Maximum delay of the process's end by a terminal that accepts no more, as after Ctrl-S.
const PATIENCE: Duration = Duration::from_secs(1);

/// Messages that the screen has not shown yet; `None` without the alternate screen.
///
/// Changes between the two only while standard error is locked, as does the screen.
static UNSEEN: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Whether the terminal was restored since the last screen was opened.
static GIVEN_BACK: AtomicBool = AtomicBool::new(false);

/// Modes that were on and are off now: echo, and line editing, which would hold keys back until
/// Enter.
static HUSHED: Mutex<LocalModes> = Mutex::new(LocalModes::empty());

/// Takes a message for the screen, if it is open.
pub fn takes(text: &str) -> bool {
    let mut unseen = UNSEEN.lock();
    let texts = unseen.as_mut();
    texts.map(|texts| texts.push(text.to_owned())).is_some()
}

/// Messages taken since the last call.
pub(crate) fn taken() -> Vec<String> {
    UNSEEN
        .lock()
        .as_mut()
        .map(std::mem::take)
        .unwrap_or_default()
}

/// Restores the terminal. Called by every path that ends the process.
///
/// If the terminal accepts no more, this returns nevertheless, and [`takes`] keeps messages away
/// from it.
pub fn restore() {
    GIVEN_BACK.store(true, Ordering::SeqCst);
    if UNSEEN.lock().is_none() {
        return;
    }
    if !in_time("terminal", PATIENCE, leave) {
        echo(true);
    }
}

/// Enters the alternate screen, unless the terminal was restored meanwhile.
fn enter() {
    let mut terminal = io::stderr().lock();
    if GIVEN_BACK.load(Ordering::SeqCst) {
        return;
    }
    // A lost terminal must not end the run.
    if execute!(terminal, EnterAlternateScreen, Hide).is_ok() {
        UNSEEN.lock().get_or_insert_default();
        echo(false);
    }
}

/// Leaves the screen once the current picture is complete.
fn leave() {
    let mut terminal = io::stderr().lock();
    if UNSEEN.lock().is_none() {
        return;
    }
    echo(true);
    // A failure cannot be reported.
    let _ = execute!(terminal, LeaveAlternateScreen, Show);
    while let Some(texts) = rest() {
        for text in texts {
            let _ = writeln!(terminal, "{text}");
        }
    }
}

/// Takes the remaining messages; closes once none is left.
fn rest() -> Option<Vec<String>> {
    let mut unseen = UNSEEN.lock();
    let texts = std::mem::take(unseen.as_mut()?);
    if texts.is_empty() {
        *unseen = None;
        return None;
    }
    Some(texts)
}

/// Whether the terminal would stop this process for changing its modes.
pub(crate) fn is_in_background() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|group| group != getpgrp())
}

/// Turns echo and line editing on, if they were on before, or off. Ctrl-C and Ctrl-Z keep working.
fn echo(on: bool) {
    let mut hushed = HUSHED.lock();
    if is_in_background() || (on && hushed.is_empty()) {
        return;
    }
    let Ok(mut modes) = tcgetattr(io::stderr()) else {
        return;
    };
    let changed = match on {
        true => *hushed,
        false => modes.local_modes & (LocalModes::ECHO | LocalModes::ICANON),
    };
    modes.local_modes.set(changed, on);
    // The screen works without it.
    if tcsetattr(io::stderr(), OptionalActions::Now, &modes).is_ok() {
        *hushed = if on {
            LocalModes::empty()
        } else {
            *hushed | changed
        };
    }
}

/// Buffer of a picture until it is complete.
#[derive(Clone, Debug, Default)]
struct Canvas(Arc<Mutex<Vec<u8>>>);

impl Write for Canvas {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The alternate screen, shown from construction on.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Canvas>>,
    canvas: Canvas,
    /// Whether another program may have used the terminal while Ctrl-Z stopped this process.
    continued: Arc<AtomicBool>,
}

impl Screen {
    /// Takes over the terminal of standard error.
    ///
    /// # Errors
    /// Fails if standard error is no terminal, or the terminal refuses.
    pub fn open() -> io::Result<Self> {
        if !io::stderr().is_terminal() {
            return Err(io::Error::other("standard error is not a terminal"));
        }
        if style::is_dumb() {
            return Err(io::Error::other(
                "TERM=dumb says that the terminal cannot draw",
            ));
        }
        force_color_output(style::has_colors());
        let canvas = Canvas::default();
        let continued = Arc::new(AtomicBool::new(false));
        flag::register(SIGCONT, continued.clone())?;
        let screen = Self {
            terminal: Terminal::new(CrosstermBackend::new(canvas.clone()))?,
            canvas,
            continued,
        };
        GIVEN_BACK.store(false, Ordering::SeqCst);
        outlet::put_work(enter);
        Ok(screen)
    }

    /// Draws a picture, unless the terminal was restored or has not accepted the last picture yet.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) {
        if !outlet::is_idle() {
            return;
        }
        let is_new = self.continued.load(Ordering::SeqCst) && !is_in_background();
        if is_new {
            self.begin_anew();
        }
        // A lost terminal must not end the run.
        let _ = self.terminal.draw(picture);
        let bytes = std::mem::take(&mut *self.canvas.0.lock());
        outlet::put_work(move || {
            let mut terminal = io::stderr().lock();
            if UNSEEN.lock().is_none() {
                return;
            }
            if is_new {
                echo(false);
            }
            let _ = terminal.write_all(&bytes);
        });
    }

    /// Makes the next picture redraw everything.
    fn begin_anew(&mut self) {
        self.continued.store(false, Ordering::SeqCst);
        let _ = queue!(
            self.canvas,
            EnterAlternateScreen,
            Hide,
            Clear(ClearType::All)
        );
        if let Ok(terminal) = Terminal::new(CrosstermBackend::new(self.canvas.clone())) {
            self.terminal = terminal;
        }
    }
}
