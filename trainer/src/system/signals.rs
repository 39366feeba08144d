//! What signals do to a rank: Ctrl-C ends it at once, and polite requests (SIGTERM as `scancel` and
//! preemption send it, SIGUSR1 as `--signal` asks Slurm for, SIGXCPU at a limit of processor time)
//! end a training that leaves a checkpoint. So does the end of the launcher.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXCPU, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// A SIGTERM that comes so soon after another is the same: a signal to a whole process group
/// reaches a rank from its sender and from the launcher.
const SAME: Duration = Duration::from_secs(1);

/// Whether somebody asks for [`request`] often enough to be left to end by itself.
static HEEDED: AtomicBool = AtomicBool::new(false);
/// Whether a training is about to begin, of which nothing is lost if it does so later.
static BEGINNING: AtomicBool = AtomicBool::new(false);
/// Whether this rank waits for the others of a training that is about to begin, or opens its data:
/// none of them has anything to lose.
static WAITING: AtomicBool = AtomicBool::new(false);
/// Whether this process only has to end, and to say that its run wants to be continued.
static PAUSED: AtomicBool = AtomicBool::new(false);
/// The signal that asked the training to end; 0 if none did.
static REQUESTED: AtomicI32 = AtomicI32::new(0);
/// Whether this process says on the terminal what ends it.
static SPEAKS: AtomicBool = AtomicBool::new(false);
/// Whether a signal is about to end this process.
static ENDS: AtomicBool = AtomicBool::new(false);
/// Stands for a signal where the launcher is gone.
const GONE: i32 = -1;
/// The launcher that is gone.
static LAUNCHER: OnceLock<String> = OnceLock::new();

/// From now on a write beyond the largest size that a file may have (`ulimit -f`) fails like one on
/// a full disk; it would end this process without a word.
///
/// # Errors
/// If the system refuses the handler.
pub fn survive_large_files() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// From now on SIGINT ends this process with 128 + the signal's number, and so does SIGTERM while
/// nothing is trained, or the second time, but for one within a second; SIGXCPU, which comes every
/// second, while nothing is trained. It says so if it `speaks`. While a training
/// [begins](Beginning), those end the process with the exit code of a pause, and so does SIGUSR1
/// while its rank [waits](Waiting). After a pause ([`Heed::pause`]) SIGTERM asks for what is being
/// done, and only a second one ends the process, with the exit code of a pause.
///
/// # Errors
/// If the system refuses the handlers or their thread.
pub fn listen(speaks: bool) -> io::Result<()> {
    survive_large_files()?;
    SPEAKS.store(speaks, Ordering::SeqCst);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1, SIGXCPU])?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let mut heeded_at: Option<Instant> = None;
            let mut asked_to_leave = false;
            for signal in signals.forever() {
                let before = REQUESTED.load(Ordering::SeqCst);
                let trains = HEEDED.load(Ordering::SeqCst);
                let heeded = trains && before != SIGTERM;
                let paused = PAUSED.load(Ordering::SeqCst);
                match signal {
                    SIGUSR1 | SIGXCPU if paused => {}
                    SIGTERM if paused && !asked_to_leave => {
                        asked_to_leave = true;
                    }
                    SIGUSR1 | SIGXCPU if before == SIGTERM => {}
                    // It comes again every second, also when the training has just ended.
                    SIGXCPU if before == SIGXCPU => {}
                    SIGUSR1 => {
                        REQUESTED.store(signal, Ordering::SeqCst);
                        // In this order: see `Waiting::start`.
                        if WAITING.load(Ordering::SeqCst) {
                            end(signal, speaks);
                        }
                    }
                    SIGXCPU if trains => REQUESTED.store(signal, Ordering::SeqCst),
                    SIGTERM if heeded => {
                        heeded_at = Some(Instant::now());
                        REQUESTED.store(signal, Ordering::SeqCst);
                    }
                    SIGTERM if heeded_at.is_some_and(|at| at.elapsed() < SAME) => {}
                    _ => end(signal, speaks),
                }
            }
        })?;
    Ok(())
}

fn end(signal: i32, speaks: bool) -> ! {
    if ENDS.swap(true, Ordering::SeqCst) {
        // Another thread is at it.
        std::thread::sleep(ENDING);
    }
    crate::system::output::screen::restore();
    if signal == SIGTERM && PAUSED.load(Ordering::SeqCst) {
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
    // Last: those that got the signal as well are about to end by themselves.
    crate::system::panics::abort(why);
    std::process::exit(match (is_early, signal) {
        (true, _) => crate::STOPPED_EARLY,
        (false, GONE) => crate::FAILED,
        (false, signal) => 128 + signal,
    });
}

/// How a rank that a signal has ended begins to say so.
const STOPPED_BY: &str = "stopped by ";

/// How long the end by a signal may take.
const ENDING: Duration = Duration::from_secs(5);

/// How much later a signal that has ended another rank may come here: most go to all of them.
const SAME_SIGNAL: Duration = Duration::from_millis(300);

/// To be called when the run has failed, and `another` rank says why: leaves the end to a signal,
/// if one ends this process or is about to.
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

/// To be called when the launcher of this rank is gone, which is named: a training saves and ends,
/// and anything else ends at once. It says so if it `speaks`.
pub fn launcher_is_gone(launcher: String, speaks: bool) {
    if PAUSED.load(Ordering::SeqCst) {
        return;
    }
    let told = gone(&launcher);
    let _ = LAUNCHER.set(launcher);
    if !HEEDED.load(Ordering::SeqCst) {
        end(GONE, speaks);
    }
    // Who has asked before is the reason.
    let _ = REQUESTED.compare_exchange(0, GONE, Ordering::SeqCst, Ordering::SeqCst);
    tell(&told, speaks);
}

/// While this is there, a training is about to begin: data is loaded, ranks are waited for.
#[derive(Debug)]
pub struct Beginning(());

impl Beginning {
    /// It is about to begin from now on, until [`Heed::start`].
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

/// While this is there, the rank waits for the others or for data.
#[derive(Debug)]
pub struct Waiting(());

impl Waiting {
    /// It waits from now on. Of a training that is about to begin it ends at SIGUSR1, also at one
    /// that has come before.
    pub fn start() -> Self {
        if BEGINNING.load(Ordering::SeqCst) {
            WAITING.store(true, Ordering::SeqCst);
            // After that, so that one that comes meanwhile is seen here or by who receives it.
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

/// What asked the training to end, if anything did.
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

/// While this is there, requests are heeded.
#[derive(Debug)]
pub struct Heed(());

impl Heed {
    /// From now on the caller looks for requests.
    pub fn start() -> Self {
        PAUSED.store(false, Ordering::SeqCst);
        HEEDED.store(true, Ordering::SeqCst);
        BEGINNING.store(false, Ordering::SeqCst);
        Self(())
    }

    /// The state is saved from which the run is to be continued: this process has nothing to do but
    /// to end. Launchers send SIGTERM to the others when one rank has ended so, and batch systems
    /// put the job into the queue again only if none of them ends with another exit code.
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

    /// Set for the process that gets signals.
    const PAUSED_PROCESS: &str = "TRAINER_TEST_SIGNALS";

    /// What a rank goes through that was stopped by a SIGTERM; in a process of the test below only.
    #[test]
    fn paused() {
        if std::env::var_os(PAUSED_PROCESS).is_none() {
            return;
        }
        let send = |signal| {
            kill_process(getpid(), signal).unwrap();
            std::thread::sleep(Duration::from_millis(200));
        };
        listen(false).unwrap();
        let heed = Heed::start();
        send(Signal::TERM);
        assert_eq!(request(), Some("SIGTERM"));
        std::thread::sleep(SAME);
        heed.pause();
        // That of the launcher, as another rank has ended.
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
