//! Starts this test executable again, to play a part on several processes, and reads the logs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio, exit};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const PART: &str = "LEARNER_TEST_PART";
/// Arguments that make the test executable run only its test function `parts`.
const PARTS: [&str; 4] = ["parts", "--exact", "--nocapture", "--quiet"];

/// What a process is to do.
pub struct Part {
    pub nproc: usize,
    pub name: String,
    pub argument: String,
    pub folder: PathBuf,
}

/// The part of this process, if a test started it.
pub fn part() -> Option<Part> {
    let part = std::env::var(PART).ok()?;
    let mut fields = part.splitn(4, '|');
    let mut field = || fields.next().unwrap().to_owned();
    Some(Part {
        nproc: field().parse().unwrap(),
        name: field(),
        argument: field(),
        folder: field().into(),
    })
}

/// Ends a process that has played its part. `ExitCode` cannot be read, and the test harness must
/// not print its own result.
pub fn leave(code: ExitCode) -> ! {
    exit(i32::from(code != ExitCode::SUCCESS))
}

/// Ranks that have ended.
pub struct Ranks {
    folder: TempDir,
    is_good: bool,
    output: String,
}

impl Ranks {
    /// Plays a part on `nproc` ranks with a new folder. Panics if it does not end.
    pub fn run(nproc: usize, name: &str, argument: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (is_good, output) = play(nproc, name, argument, folder.path());
        Self {
            folder,
            is_good,
            output,
        }
    }

    /// Plays another part on `nproc` ranks with the same folder.
    pub fn again(self, nproc: usize, name: &str, argument: &str) -> Self {
        let (is_good, output) = play(nproc, name, argument, self.folder.path());
        Self {
            is_good,
            output,
            ..self
        }
    }

    /// Panics unless the exit code was 0.
    pub fn good(self) -> Self {
        assert!(self.is_good, "{}", self.output);
        self
    }

    pub fn is_good(&self) -> bool {
        self.is_good
    }

    pub fn output(&self) -> &str {
        &self.output
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn play(nproc: usize, name: &str, argument: &str, folder: &Path) -> (bool, String) {
    let path = folder.join("output");
    let output = File::create(&path).unwrap();
    let part = format!("{nproc}|{name}|{argument}|{}", folder.display());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(PARTS).env(PART, part).stdin(Stdio::null());
    command.stderr(output.try_clone().unwrap()).stdout(output);
    for name in ["RANK", "LOCAL_RANK", "WORLD_SIZE", "BURN_DIST_LAUNCH"] {
        command.env_remove(name);
    }
    let mut process = command.spawn().unwrap();
    let begin = Instant::now();
    loop {
        let output = || fs::read_to_string(&path).unwrap_or_default();
        if let Some(status) = process.try_wait().unwrap() {
            return (status.success(), output());
        }
        if begin.elapsed() > LIMIT {
            // Its ranks end with it.
            let _ = process.kill();
            let _ = process.wait();
            panic!(
                "still not done after {LIMIT:?}: {name} {argument}\n{}",
                output()
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The values that burn-train has logged; the last one is that of the epoch.
pub fn logged(folder: &Path, split: &str, epoch: usize, name: &str) -> Vec<f64> {
    let path = folder.join(format!("{split}/epoch-{epoch}/{name}.log"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let value = |line: &str| line.split(',').next().unwrap().parse().unwrap();
    text.lines().map(value).collect()
}

/// All logs of an epoch, by file name.
pub fn all_logged(folder: &Path, split: &str, epoch: usize) -> BTreeMap<String, String> {
    let folder = folder.join(format!("{split}/epoch-{epoch}"));
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    files
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}
