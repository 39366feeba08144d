//! Runs the real program in an empty folder under a hard time limit, and finds the processes of a
//! run.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Time limit of any run in these tests.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Settings of a run that takes seconds: a small model on few digits, without dropout or default
/// checkpoints.
pub const TINY: &[&str] = &[
    "model.filters=[4, 8]",
    "model.hidden=16",
    "model.dropout_conv=0.0",
    "model.dropout_hidden=0.0",
    "data.train_samples=240",
    "data.test_samples=101",
    "train.batch_size=12",
    "train.epochs=1",
    "checkpoint.every_epochs=0",
];

/// A folder and arguments to run the program with.
pub struct Trial {
    folder: TempDir,
    command: Command,
}

/// Result of a run.
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub time: Duration,
    folder: TempDir,
}

/// A run in progress.
pub struct Running {
    child: Child,
    stdout: Output,
    stderr: Output,
    begin: Instant,
    folder: TempDir,
}

/// A port of this machine that was free a moment ago and that no other process binds on purpose.
pub fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

impl Trial {
    /// `trainer <args>` in an empty folder, without a launcher's variables.
    pub fn new(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
        command
            .args(args)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env("RAYON_NUM_THREADS", "1");
        for name in ["RANK", "LOCAL_RANK", "WORLD_SIZE", "BURN_DIST_LAUNCH"] {
            command.env_remove(name);
        }
        Self { folder, command }
    }

    /// A tiny run with more settings, into the folder `run`. Its absolute path is an argument of
    /// all its processes and identifies them.
    pub fn tiny(args: &[&str], settings: &[&str]) -> Self {
        Self::with_settings(args, &[TINY, settings].concat())
    }

    /// A tiny run into another folder, which outlives it.
    pub fn tiny_at(run_dir: &Path, args: &[&str], settings: &[&str]) -> Self {
        let all = [TINY, settings].concat();
        Self::new(args).into_run_dir(run_dir, &all)
    }

    /// A tiny run with the model in `settings`.
    pub fn of_model(args: &[&str], settings: &[&str]) -> Self {
        let others = TINY.iter().filter(|setting| !setting.starts_with("model."));
        let all: Vec<&str> = others.chain(settings).copied().collect();
        Self::with_settings(args, &all)
    }

    fn with_settings(args: &[&str], settings: &[&str]) -> Self {
        let trial = Self::new(args);
        let run_dir = trial.folder.path().join("run");
        trial.into_run_dir(&run_dir, settings)
    }

    fn into_run_dir(mut self, run_dir: &Path, settings: &[&str]) -> Self {
        self.command.arg("--run-dir").arg(run_dir);
        for setting in settings {
            self.command.args(["--set", setting]);
        }
        self
    }

    /// Adds an argument, which need not be UTF-8.
    pub fn arg(mut self, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.arg(value);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Makes it one of `size` ranks of another launcher on this machine, with the store at `port`.
    pub fn rank(self, rank: usize, size: usize, port: &str) -> Self {
        let (rank, size) = (rank.to_string(), size.to_string());
        self.env("RANK", &rank)
            .env("LOCAL_RANK", &rank)
            .env("WORLD_SIZE", &size)
            .env("LOCAL_WORLD_SIZE", &size)
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port)
            .env("BURN_DIST_SECRET", "a secret of this test only")
    }

    /// Redirects standard output, which is otherwise captured.
    pub fn to(mut self, stdout: impl Into<Stdio>) -> Self {
        self.command.stdout(stdout);
        self
    }

    /// Runs it under another host name; see [`can_pretend_hosts`].
    pub fn on_host(self, name: &str) -> Self {
        self.through(pretend(name))
    }

    /// Runs it on a simulated machine of 64 CPUs, of which it may use the real ones; see
    /// [`can_pretend_hosts`].
    pub fn on_large_machine(self) -> Self {
        let file = self.folder.path().join("online");
        std::fs::write(&file, "0-63\n").unwrap();
        let script =
            "mount --bind \"$0\" /sys/devices/system/cpu/online && RAYON_NUM_THREADS= exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--", "sh", "-c", script])
            .arg(file);
        self.through(command)
    }

    /// Sets a limit in the format of `prlimit`.
    pub fn with_limit(self, limit: &str) -> Self {
        let mut command = Command::new("prlimit");
        command.args([limit, "--"]);
        self.through(command)
    }

    /// Limits its files to this many blocks of 512 bytes.
    pub fn with_file_limit(self, blocks: u32) -> Self {
        let mut command = Command::new("sh");
        let script = "ulimit -f \"$0\" && exec \"$@\"";
        command.args(["-c", script, &blocks.to_string()]);
        self.through(command)
    }

    /// Starts it as `ranks` ranks from one process, like torchrun's agent, which waits for them.
    /// The files `code.0`, `code.1` and so on get the exit codes. Without `TORCHELASTIC_RUN_ID`,
    /// the parent is a script.
    pub fn by_agent(self, ranks: usize) -> Self {
        let script = r#"
            ranks=$0
            for rank in $(seq 0 $((ranks - 1))); do
              RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks \
                sh -c '"$@"; echo $? >"code.$RANK"' sh "$@" &
            done
            wait"#;
        let mut command = Command::new("sh");
        command.args(["-c", script, &ranks.to_string()]);
        self.env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", &free_port())
            .env("BURN_DIST_SECRET", "a secret of this test only")
            .through(command)
    }

    /// Gives it a parent process with this program name.
    pub fn named_parent(self, name: &str) -> Self {
        let parent = self.folder.path().join(name);
        std::os::unix::fs::symlink("/bin/sh", &parent).unwrap();
        let mut command = Command::new(parent);
        command.args(["-c", "\"$@\"; exit $?", name]);
        self.through(command)
    }

    /// Limits its threads and processes, as for a user who has no others; see
    /// [`can_limit_threads`].
    pub fn with_thread_limit(self, threads: usize) -> Self {
        let folder = self.folder.path();
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder, everybody).unwrap();
        self.through(limited(threads))
    }

    /// Runs it through `command`, as its last arguments.
    fn through(mut self, mut command: Command) -> Self {
        command.arg(self.command.get_program());
        command.args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.command = command;
        self
    }

    /// Writes a file into the folder.
    pub fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    pub fn start(mut self) -> Running {
        let mut child = self.command.spawn().unwrap();
        let stdout = match child.stdout.take() {
            Some(pipe) => Output::of(pipe),
            None => Output::of(std::io::empty()),
        };
        let stderr = Output::of(child.stderr.take().unwrap());
        Running {
            child,
            stdout,
            stderr,
            begin: Instant::now(),
            folder: self.folder,
        }
    }

    pub fn run(self) -> Finished {
        self.start().wait(LIMIT)
    }
}

/// Beginning of a command that runs under another host name.
fn pretend(host: &str) -> Command {
    let script = "echo \"$0\" >/proc/sys/kernel/hostname && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--uts", "--", "sh", "-c", script, host]);
    command
}

/// Whether other host names can be set for processes, which needs root.
pub fn can_pretend_hosts() -> bool {
    let tried = pretend("node-a").args(["uname", "-n"]).output();
    tried.is_ok_and(|output| output.stdout == b"node-a\n")
}

/// Beginning of a command that runs as another user with a thread limit. It keeps the right to
/// read and write any file.
fn limited(threads: usize) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=61234", "--regid=61234", "--clear-groups"])
        .args([
            "--inh-caps=-all,+dac_override",
            "--ambient-caps=-all,+dac_override",
        ])
        .args(["--bounding-set=-all,+dac_override", "--", "prlimit"])
        .arg(format!("--nproc={threads}"));
    command
}

/// Whether threads can be limited, which needs root: the limit counts all threads of a user.
pub fn can_limit_threads() -> bool {
    let tried = limited(4).arg("true").output();
    tried.is_ok_and(|output| output.status.success())
}

/// What a program writes, read as it comes.
struct Output {
    text: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Output {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let into = text.clone();
        let reader = thread::spawn(move || {
            let mut part = [0; 4096];
            loop {
                match pipe.read(&mut part) {
                    Ok(count @ 1..) => into.lock().unwrap().extend_from_slice(&part[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    _ => break,
                }
            }
        });
        Self { text, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }

    /// Everything, once the program has closed it.
    fn all(self) -> String {
        self.reader.join().unwrap();
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }
}

impl Running {
    /// Waits for the program to end within `limit`. Otherwise kills it and all its ranks, and
    /// fails.
    pub fn wait(mut self, limit: Duration) -> Finished {
        let status = self.end(limit);
        let time = self.begin.elapsed();
        let Some(status) = status else {
            for pid in self.processes() {
                let _ = kill_process(pid, Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
            let (out, err) = (self.stdout.all(), self.stderr.all());
            panic!("still running after {limit:?}\nstdout:\n{out}\nstderr:\n{err}");
        };
        Finished {
            code: status.code(),
            stdout: self.stdout.all(),
            stderr: self.stderr.all(),
            time,
            folder: self.folder,
        }
    }

    fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Waits until the program has written `part` to its stderr.
    #[track_caller]
    pub fn wait_to_say(&self, part: &str) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let ended = self.stderr.reader.is_finished();
            let said = self.stderr.so_far();
            if said.contains(part) {
                return;
            }
            let late = Instant::now() > deadline;
            assert!(!ended && !late, "{part:?} is not in stderr:\n{said}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the started process is alive.
    pub fn goes_on(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The started process: the launcher if it starts ranks.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// All processes of this run.
    pub fn processes(&self) -> Vec<Pid> {
        processes_of(self.folder.path())
    }

    /// The process of a rank.
    pub fn rank(&self, rank: usize) -> Pid {
        rank_of(self.folder.path(), rank)
    }

    /// Waits until the run has written this many lines of metrics.
    pub fn wait_for_metrics(&mut self, lines: usize) {
        let file = self.folder.path().join("run/metrics.jsonl");
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            if text.matches('\n').count() >= lines {
                return;
            }
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "the run ended before it wrote {lines} lines"
            );
            thread::sleep(Duration::from_millis(10));
        }
        panic!("no {lines} lines of metrics after {LIMIT:?}");
    }
}

/// Processes with this folder in their arguments. Zombies have no arguments.
pub fn processes_of(folder: &Path) -> Vec<Pid> {
    let marker = folder.as_os_str().as_encoded_bytes();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let arguments = std::fs::read(entry.path().join("cmdline")).ok()?;
            let named = arguments.windows(marker.len()).any(|part| part == marker);
            if named { Pid::from_raw(pid) } else { None }
        })
        .collect()
}

/// The process of a rank with this folder in its arguments.
#[track_caller]
pub fn rank_of(folder: &Path, rank: usize) -> Pid {
    let variable = format!("RANK={rank}");
    let of_rank = |pid: &Pid| {
        let environment = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
        let environment = environment.unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == variable.as_bytes())
    };
    let found = processes_of(folder).into_iter().find(of_rank);
    found.unwrap_or_else(|| panic!("there is no rank {rank}"))
}

impl Finished {
    #[track_caller]
    pub fn assert_code(&self, code: i32) -> &Self {
        assert_eq!(
            self.code,
            Some(code),
            "\nstdout:\n{}\nstderr:\n{}",
            self.stdout,
            self.stderr
        );
        self
    }

    #[track_caller]
    pub fn assert_stderr(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(
                self.stderr.contains(part),
                "{part:?} is not in stderr:\n{}",
                self.stderr
            );
        }
        self
    }

    /// Asserts that no process of the run is left.
    #[track_caller]
    pub fn assert_nobody_left(&self) -> &Self {
        let left = processes_of(self.folder.path());
        assert!(left.is_empty(), "left behind: {left:?}");
        self
    }

    /// Asserts that nothing was written.
    #[track_caller]
    pub fn assert_no_files(&self, but: &[&str]) -> &Self {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| !but.contains(&name.as_str()))
            .collect();
        assert!(names.is_empty(), "left behind: {names:?}");
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The lines of this kind in the run's `metrics.jsonl`.
    pub fn metrics(&self, kind: &str) -> Vec<serde_json::Value> {
        self.metrics_in(&self.path("run"), kind)
    }

    /// The lines of this kind for the run in that folder.
    pub fn metrics_in(&self, run: &Path, kind: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .filter(|object| object["kind"] == kind)
            .collect()
    }

    /// The losses of all training steps.
    pub fn losses(&self) -> Vec<f64> {
        let steps = self.metrics("train");
        steps
            .iter()
            .map(|step| step["loss"].as_f64().unwrap())
            .collect()
    }
}
