//! The other screen of a terminal while it is shown: what is written there comes whole or not at
//! all, and nothing after the terminal was given back, whichever thread does that.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::crossterm::{execute, queue};
use ratatui::{Frame, Terminal};
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetpgrp, tcsetattr};
use signal_hook::consts::SIGCONT;
use signal_hook::flag;

use crate::system::output::outlet;

/// How long a terminal that takes nothing more, as it is stopped, may delay the end of the process.
const PATIENCE: Duration = Duration::from_secs(1);

/// While the terminal shows the other screen: what was to be told on standard error and is not on
/// it yet. Changes between something and nothing only while standard error is locked, and so does
/// the screen.
static UNSEEN: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Whether the terminal was given back since the last screen was opened.
static GIVEN_BACK: AtomicBool = AtomicBool::new(false);

/// Whether keys were shown as they are typed, and are not now.
static HUSHED: AtomicBool = AtomicBool::new(false);

fn unseen() -> MutexGuard<'static, Option<Vec<String>>> {
    UNSEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a message for the screen, if there is one.
pub fn takes(text: &str) -> bool {
    let mut unseen = unseen();
    let texts = unseen.as_mut();
    texts.map(|texts| texts.push(text.to_owned())).is_some()
}

/// What [`takes`] took since the last call.
pub(crate) fn taken() -> Vec<String> {
    unseen().as_mut().map(std::mem::take).unwrap_or_default()
}

/// Gives the terminal back as it was; whoever ends the process calls it. If the terminal takes
/// nothing more, this ends nevertheless, and [`takes`] goes on to keep messages from it.
pub fn restore() {
    GIVEN_BACK.store(true, Ordering::SeqCst);
    if unseen().is_none() {
        return;
    }
    let (sender, left) = channel();
    let leaving = thread::Builder::new()
        .name("terminal".into())
        .spawn(move || {
            leave();
            // Nobody listens any more when it took too long.
            let _ = sender.send(());
        });
    match leaving {
        Ok(_) if left.recv_timeout(PATIENCE).is_ok() => {}
        Ok(_) => echo(true),
        Err(_) => leave(),
    }
}

/// Shows the other screen, unless the terminal was given back before it came to that.
fn enter() {
    let mut terminal = io::stderr().lock();
    if GIVEN_BACK.load(Ordering::SeqCst) {
        return;
    }
    // One that is gone is no reason to end the run.
    if execute!(terminal, EnterAlternateScreen, Hide).is_ok() {
        unseen().get_or_insert_default();
        echo(false);
    }
}

/// Leaves the screen when the picture that is being drawn is complete.
fn leave() {
    let mut terminal = io::stderr().lock();
    if unseen().is_none() {
        return;
    }
    echo(true);
    // Nobody can be told if this fails.
    let _ = execute!(terminal, LeaveAlternateScreen, Show);
    while let Some(texts) = rest() {
        for text in texts {
            let _ = writeln!(terminal, "{text}");
        }
    }
}

/// What was taken, until there is no more; then nothing more is.
fn rest() -> Option<Vec<String>> {
    let mut unseen = unseen();
    let texts = std::mem::take(unseen.as_mut()?);
    if texts.is_empty() {
        *unseen = None;
        return None;
    }
    Some(texts)
}

/// Whether the terminal would stop this process for changing how it works.
fn is_in_background() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|group| group != getpgrp())
}

/// Has the terminal show keys as they are typed, as it did before, or not. Nothing else changes:
/// Ctrl-C and Ctrl-Z are what they were.
fn echo(on: bool) {
    if is_in_background() || (on && !HUSHED.load(Ordering::SeqCst)) {
        return;
    }
    let Ok(mut modes) = tcgetattr(io::stderr()) else {
        return;
    };
    if modes.local_modes.contains(LocalModes::ECHO) == on {
        return;
    }
    modes.local_modes.set(LocalModes::ECHO, on);
    // The picture can do without.
    if tcsetattr(io::stderr(), OptionalActions::Now, &modes).is_ok() {
        HUSHED.store(!on, Ordering::SeqCst);
    }
}

/// What a picture consists of, until it is complete.
#[derive(Clone, Debug, Default)]
struct Canvas(Arc<Mutex<Vec<u8>>>);

impl Canvas {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Canvas {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The screen, which is shown from the begin.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Canvas>>,
    canvas: Canvas,
    /// Whether somebody else may have used the terminal, as this process was stopped by Ctrl-Z.
    continued: Arc<AtomicBool>,
}

impl Screen {
    /// Takes the terminal that standard error is connected to.
    ///
    /// # Errors
    /// If there is none, or it refuses.
    pub fn open() -> io::Result<Self> {
        if !io::stderr().is_terminal() {
            return Err(io::Error::other("standard error is not a terminal"));
        }
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

    /// Draws a picture, if the terminal was not given back meanwhile, and has taken the picture
    /// before.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) {
        if !outlet::is_idle() {
            return;
        }
        let is_new = self.continued.load(Ordering::SeqCst) && !is_in_background();
        if is_new {
            self.begin_anew();
        }
        // A terminal that is gone is no reason to end the run.
        let _ = self.terminal.draw(picture);
        let bytes = std::mem::take(&mut *self.canvas.bytes());
        outlet::put_work(move || {
            let mut terminal = io::stderr().lock();
            if unseen().is_none() {
                return;
            }
            if is_new {
                echo(false);
            }
            let _ = terminal.write_all(&bytes);
        });
    }

    /// The next picture relies on nothing that was drawn.
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
