//! Signals of a rank.
//!
//! SIGINT (Ctrl-C), SIGTERM (from `scancel` and preemption), SIGUSR1 (from Slurm's `--signal`),
//! SIGXCPU (at a CPU time limit) and the end of the launcher end a training with a checkpoint. A
//! second Ctrl-C or SIGTERM ends it at once.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use burn_dist::world::{Launch, World};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXCPU, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// A signal within this time of another counts as the same. A signal to the whole process group
/// reaches a rank twice: from its sender and from the launcher.
const SAME: Duration = Duration::from_secs(1);

/// Whether a training polls [`request`], and so ends by itself.
static HEEDED: AtomicBool = AtomicBool::new(false);
/// Whether a training is about to begin. Ending it loses nothing.
static BEGINNING: AtomicBool = AtomicBool::new(false);
/// Whether this rank waits for the other ranks or opens data before a training. Ending it loses
/// nothing.
static WAITING: AtomicBool = AtomicBool::new(false);
/// Whether this process has saved and only has to exit, with the exit code of a pause.
static PAUSED: AtomicBool = AtomicBool::new(false);
/// Signal that asked the training to end; 0 if none did.
static REQUESTED: AtomicI32 = AtomicI32::new(0);
/// Whether this process reports on the terminal what ends it.
static SPEAKS: AtomicBool = AtomicBool::new(false);
/// Whether a signal is about to end this process.
static ENDS: AtomicBool = AtomicBool::new(false);
/// Exit code of a failure that ends this process anyway; 0 if none does.
static FAILURE: AtomicI32 = AtomicI32::new(0);
/// Stands for a signal if the launcher is gone.
const GONE: i32 = -1;
/// Name of the launcher that is gone.
static LAUNCHER: OnceLock<String> = OnceLock::new();

/// Makes writes beyond the file size limit (`ulimit -f`) fail like those on a full disk.
///
/// By default they kill the process.
///
/// # Errors
/// Fails if the system refuses the handler.
pub fn survive_large_files() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Handles signals of the rank in `world` from now on.
///
/// - SIGINT and SIGTERM end the process with 128 + their number, without a training or the second
///   time. A launcher may send a copy within a second, which does not count.
/// - SIGXCPU, which repeats every second, does so without a training.
/// - While a training [begins](Beginning), SIGTERM and SIGXCPU end the process with the exit code
///   of a pause. So does SIGUSR1 while the rank [waits](Waiting).
/// - After a pause ([`Heed::pause`]), the first SIGINT or SIGTERM is ignored, since the process is
///   ending. A second one ends it with the exit code of a pause.
///
/// # Errors
/// Fails if the system refuses the handlers or their thread.
pub fn listen(world: &World) -> io::Result<()> {
    survive_large_files()?;
    let mut listener = Listener::of(world);
    SPEAKS.store(listener.speaks, Ordering::SeqCst);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1, SIGXCPU])?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                listener.hear(signal);
            }
        })?;
    Ok(())
}

/// Said at the first Ctrl-C of a training.
const INTERRUPTED: &str = "stopping after this step with a checkpoint; Ctrl-C again ends at once";

/// The state of the thread that handles signals.
struct Listener {
    launch: Launch,
    is_main: bool,
    /// Whether this process reports what ends it. The own launcher does that itself.
    speaks: bool,
    /// When a training was asked to end.
    heeded_at: Option<Instant>,
    /// Whether a signal came after the pause.
    asked_to_leave: bool,
}

impl Listener {
    fn of(world: &World) -> Self {
        Self {
            launch: world.launch(),
            is_main: world.is_main(),
            speaks: world.is_main() && !world.is_of_own_launcher(),
            heeded_at: None,
            asked_to_leave: false,
        }
    }

    fn hear(&mut self, signal: i32) {
        let before = REQUESTED.load(Ordering::SeqCst);
        let trains = HEEDED.load(Ordering::SeqCst);
        let paused = PAUSED.load(Ordering::SeqCst);
        let ending = matches!(before, SIGTERM | SIGINT);
        match signal {
            SIGUSR1 | SIGXCPU if paused || ending => {}
            SIGTERM | SIGINT if paused && !self.asked_to_leave => {
                self.asked_to_leave = true;
            }
            // It repeats every second, even when the training has just ended.
            SIGXCPU if before == SIGXCPU => {}
            SIGUSR1 => {
                REQUESTED.store(signal, Ordering::SeqCst);
                // The order matters: see `Waiting::start`.
                if WAITING.load(Ordering::SeqCst) {
                    end(signal, self.speaks);
                }
            }
            SIGXCPU if trains => REQUESTED.store(signal, Ordering::SeqCst),
            SIGTERM | SIGINT if trains && !ending => {
                self.heeded_at = Some(Instant::now());
                REQUESTED.store(signal, Ordering::SeqCst);
                if signal == SIGINT && self.is_main {
                    crate::system::output::complain(INTERRUPTED);
                }
            }
            SIGTERM | SIGINT if self.is_copy(before, signal) => {}
            _ => end(signal, self.speaks),
        }
    }

    /// Whether a launcher sent `signal` because of the signal `before`, which this rank has heard.
    fn is_copy(&self, before: i32, signal: i32) -> bool {
        let soon = self.heeded_at.is_some_and(|at| at.elapsed() < SAME);
        match (before, signal, self.launch) {
            // A terminal reaches both. At a second Ctrl-C, the launcher sends SIGTERM.
            (SIGINT, SIGINT, Launch::Local | Launch::Agent) => true,
            (SIGINT, SIGTERM, Launch::Local | Launch::Agent) => false,
            (SIGINT, SIGINT, Launch::Single) | (SIGTERM, SIGINT, _) => false,
            _ => soon,
        }
    }
}

/// Lets a signal end this process with the exit code of its failure, without a word.
pub(crate) fn end_with(failure: i32) {
    FAILURE.store(failure, Ordering::SeqCst);
}

fn end(signal: i32, speaks: bool) -> ! {
    if ENDS.swap(true, Ordering::SeqCst) {
        // Another thread is ending the process.
        std::thread::sleep(ENDING);
    }
    crate::system::output::outlet::put_bar(None);
    crate::system::output::screen::restore();
    let failure = FAILURE.load(Ordering::SeqCst);
    if failure != 0 {
        crate::system::output::flush();
        std::process::exit(failure);
    }
    if matches!(signal, SIGTERM | SIGINT) && PAUSED.load(Ordering::SeqCst) {
        crate::system::output::flush();
        std::process::exit(crate::STOPPED_EARLY);
    }
    let is_early = signal != SIGINT && BEGINNING.load(Ordering::SeqCst);
    let why = match LAUNCHER.get() {
        Some(launcher) if signal == GONE => gone(launcher),
        _ => format!("{STOPPED_BY}{}", name(signal)),
    };
    let told = match is_early {
        true => format!("{why} before the first step; start the run again"),
        false => why.clone(),
    };
    tell(&told, speaks);
    crate::system::output::flush();
    // Last, because ranks with the same signal are about to end by themselves.
    crate::system::panics::abort(why);
    std::process::exit(match (is_early, signal) {
        (true, _) => crate::STOPPED_EARLY,
        (false, GONE) => crate::FAILED,
        (false, signal) => 128 + signal,
    });
}

/// Prefix of the message of a rank ended by a signal.
pub(crate) const STOPPED_BY: &str = "stopped by ";

/// Time limit for the end by a signal.
const ENDING: Duration = Duration::from_secs(5);

/// A signal that ended another rank may arrive here this much later: most go to all ranks.
const SAME_SIGNAL: Duration = Duration::from_millis(300);

/// Leaves the end to a signal that ends this process or is about to. Call it after the run failed;
/// `another` is another rank's reason.
pub(crate) fn come_first(another: Option<&str>) {
    if another.is_some_and(|why| why.contains(STOPPED_BY)) {
        let _waiting = Waiting::start();
        std::thread::sleep(SAME_SIGNAL);
    }
    if ENDS.load(Ordering::SeqCst) {
        std::thread::sleep(ENDING);
    }
}

fn gone(launcher: &str) -> String {
    format!("{launcher}, which started this rank, is gone")
}

fn tell(text: &str, speaks: bool) {
    match speaks {
        true => crate::system::output::complain(text),
        false => crate::system::log::write(text),
    }
}

/// Ends this rank because its launcher is gone.
///
/// A training saves first; anything else ends at once. Reports it if this process `speaks`.
pub fn launcher_is_gone(launcher: String, speaks: bool) {
    if PAUSED.load(Ordering::SeqCst) {
        return;
    }
    let told = gone(&launcher);
    let _ = LAUNCHER.set(launcher);
    if !HEEDED.load(Ordering::SeqCst) {
        end(GONE, speaks);
    }
    // An earlier request stays the reason.
    let _ = REQUESTED.compare_exchange(0, GONE, Ordering::SeqCst, Ordering::SeqCst);
    tell(&told, speaks);
}

/// Guard: a training is about to begin, as while data is loaded and ranks connect.
#[derive(Debug)]
pub struct Beginning(());

impl Beginning {
    /// Begins the phase, which lasts until [`Heed::start`].
    pub fn start() -> Self {
        BEGINNING.store(true, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        BEGINNING.store(false, Ordering::SeqCst);
    }
}

/// Guard: the rank waits for the other ranks or for data.
#[derive(Debug)]
pub struct Waiting(());

impl Waiting {
    /// Begins to wait.
    ///
    /// If a training is about to begin, SIGUSR1 now ends the process, even one that came before.
    pub fn start() -> Self {
        if BEGINNING.load(Ordering::SeqCst) {
            WAITING.store(true, Ordering::SeqCst);
            // Check after the store above, so that a signal in between is seen here or by its
            // handler.
            if REQUESTED.load(Ordering::SeqCst) == SIGUSR1 {
                end(SIGUSR1, SPEAKS.load(Ordering::SeqCst));
            }
        }
        Self(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.store(false, Ordering::SeqCst);
    }
}

/// The request to end the training, if any.
pub fn request() -> Option<&'static str> {
    match REQUESTED.load(Ordering::SeqCst) {
        0 => None,
        signal => Some(name(signal)),
    }
}

fn name(signal: i32) -> &'static str {
    match signal {
        SIGINT => "SIGINT",
        SIGUSR1 => "SIGUSR1",
        SIGXCPU => "SIGXCPU",
        GONE => "a dead launcher",
        _ => "SIGTERM",
    }
}

/// Guard: a training heeds requests.
#[derive(Debug)]
pub struct Heed(());

impl Heed {
    /// From now on, the caller polls requests.
    pub fn start() -> Self {
        PAUSED.store(false, Ordering::SeqCst);
        HEEDED.store(true, Ordering::SeqCst);
        BEGINNING.store(false, Ordering::SeqCst);
        Self(())
    }

    /// Marks the run as saved: this process only has to exit.
    ///
    /// Launchers send SIGTERM to the other ranks when one has exited. Batch systems requeue the job
    /// only if no rank exits with another code.
    pub fn pause(&self) {
        PAUSED.store(true, Ordering::SeqCst);
    }
}

impl Drop for Heed {
    fn drop(&mut self) {
        HEEDED.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// Set in the child process that gets signals.
    const PAUSED_PROCESS: &str = "TRAINER_TEST_SIGNALS";

    /// Pauses a rank that got a SIGTERM. Runs only in a child process of the test below.
    #[test]
    fn paused() {
        if std::env::var_os(PAUSED_PROCESS).is_none() {
            return;
        }
        let send = |signal| {
            kill_process(getpid(), signal).unwrap();
            std::thread::sleep(Duration::from_millis(200));
        };
        listen(&World::single()).unwrap();
        let heed = Heed::start();
        send(Signal::TERM);
        assert_eq!(request(), Some("SIGTERM"));
        std::thread::sleep(SAME);
        heed.pause();
        // The launcher's SIGTERM after another rank has exited.
        send(Signal::TERM);
        drop(heed);
        send(Signal::USR1);
        println!("went on");
        send(Signal::TERM);
        unreachable!("the second one ends it");
    }

    #[test]
    fn a_pause_stays_one_whatever_comes_while_the_process_ends() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "system::signals::tests::paused", "--nocapture"])
            .env(PAUSED_PROCESS, "1")
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(crate::STOPPED_EARLY), "{words}");
        assert!(words.contains("went on"), "{words}");
    }
}
