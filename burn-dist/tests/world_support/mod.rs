//! Helpers for the tests of rendezvous and launch: worlds without an environment, time limits, and
//! processes that play a part of the test executable.
#![allow(dead_code)] // Not every test file uses all of it.

use burn_dist::rendezvous::{RendezvousError, Store, StoreServer};
use burn_dist::wire::Secret;
use burn_dist::world::World;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

pub const SECRET: &str = "the secret of these tests";
pub const LIMIT: Duration = Duration::from_secs(30);

/// Variable that names the part of a test executable started by a test.
const PART: &str = "BURN_DIST_TEST_PART";

pub fn secret() -> Secret {
    Secret::from_text(SECRET).unwrap()
}

pub fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Returns a port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind(any_port())
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

pub fn server(size: usize) -> StoreServer {
    StoreServer::bind(any_port(), size, secret()).unwrap()
}

pub fn world(rank: usize, size: usize, store: SocketAddr) -> World {
    World::local(rank, size, store, secret()).unwrap()
}

pub fn connect(rank: usize, size: usize, store: SocketAddr) -> Result<Store, RendezvousError> {
    Store::connect(&world(rank, size, store), Duration::from_secs(10))
}

/// Returns the world that torchrun's variables describe.
pub fn torchrun(rank: usize, size: usize, master: &str, port: u16) -> World {
    torchrun_with(rank, size, master, port, [])
}

/// Does the same with additional variables.
pub fn torchrun_with<const N: usize>(
    rank: usize,
    size: usize,
    master: &str,
    port: u16,
    more: [(&'static str, String); N],
) -> World {
    let mut vars = HashMap::from([
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("WORLD_SIZE", size.to_string()),
        ("MASTER_ADDR", master.to_string()),
        ("MASTER_PORT", port.to_string()),
        ("BURN_DIST_SECRET", SECRET.to_string()),
    ]);
    vars.extend(more);
    World::from_vars(&|name| vars.get(name).cloned()).unwrap()
}

/// Connects all ranks of a world, each on a thread with its own store.
pub fn ranks(size: usize) -> (StoreServer, Vec<Store>) {
    let server = server(size);
    let address = server.address();
    let stores = (0..size).map(|rank| connect(rank, size, address).unwrap());
    let stores = stores.collect();
    (server, stores)
}

/// Runs `body`, which must end before the time limit.
pub fn limited<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        let result = body();
        let _ = sender.send(());
        result
    });
    match receiver.recv_timeout(LIMIT) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("still not done after {LIMIT:?}"),
        _ => match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}

/// Waits until `done` returns a value; panics after `limit`.
pub fn eventually<T>(limit: Duration, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(result) = done() {
            return result;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the part of this process, if a test started it.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Arguments that make the test executable run only its test function `parts`.
pub const PARTS: [&str; 4] = ["parts", "--exact", "--nocapture", "--quiet"];

/// Returns a command that plays a part with this test executable.
pub fn play(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(PARTS).env(PART, part).stdin(Stdio::null());
    // A test may itself run under a launcher.
    for name in ["RANK", "LOCAL_RANK", "WORLD_SIZE", "BURN_DIST_LAUNCH"] {
        command.env_remove(name);
    }
    command
}

/// A process that is killed when dropped, and its output lines.
pub struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
    /// Lines that no test has read yet.
    unasked: Vec<String>,
}

impl Process {
    /// Starts `command` and reads its output.
    pub fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        read_lines(child.stdout.take().unwrap(), sender.clone());
        read_lines(child.stderr.take().unwrap(), sender);
        Self {
            child,
            lines,
            seen: Vec::new(),
            unasked: Vec::new(),
        }
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Stops the process and waits until all its threads have halted.
    pub fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid().as_raw_nonzero());
        eventually(LIMIT, "all threads stop", || {
            let running = std::fs::read_dir(&tasks).unwrap().any(|task| {
                let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
                stat.is_ok_and(|stat| !stat.contains(") T "))
            });
            (!running).then_some(())
        });
    }

    /// Waits for the next line that contains `text`, and returns it.
    pub fn line(&mut self, text: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(found) = self.unasked.iter().position(|line| line.contains(text)) {
                return self.unasked.remove(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    self.unasked.push(line);
                }
                Err(_) => panic!("no line with `{text}`, only {:#?}", self.seen),
            }
        }
    }

    /// Waits for the end. Returns the exit status and the whole output.
    pub fn end(mut self) -> (ExitStatus, String) {
        let status = eventually(LIMIT, "the process ends", || self.child.try_wait().unwrap());
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(_) => return (status, self.seen.join("\n")),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(from: impl Read + Send + 'static, to: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}
