//! Finds the runs in a folder of runs, such as `runs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::MOST_RUNS;
use super::folder::Run;
use crate::run::{dir, metrics};

/// Run folders, and notes about folders that are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Run folders.
    pub runs: Vec<PathBuf>,
    /// Why others are left out, one line each.
    pub notes: Vec<String>,
}

/// Replaces each path that is no run by the runs in it, if there are some.
///
/// Leaves out runs in it that cannot be read, and the oldest beyond [`MOST_RUNS`].
pub fn choose(paths: &[PathBuf]) -> Chosen {
    let mut chosen = Chosen::default();
    for path in paths {
        let within = match path.join(metrics::FILE).exists() {
            true => Vec::new(),
            false => runs_in(path),
        };
        match within.is_empty() {
            true => chosen.runs.push(path.clone()),
            false => chosen.take(path, within),
        }
    }
    chosen
}

impl Chosen {
    /// Takes the readable runs of a folder.
    fn take(&mut self, parent: &Path, mut within: Vec<PathBuf>) {
        within.retain(|run| match Run::read(run) {
            Ok(_) => true,
            Err(error) => {
                self.notes.push(format!("left out: {error}"));
                false
            }
        });
        let room = MOST_RUNS.saturating_sub(self.runs.len());
        if within.len() > room {
            within.sort_by_key(|run| std::cmp::Reverse(changed(run)));
            let left_out = within.split_off(room).len();
            self.notes.push(format!(
                "left out: the {left_out} oldest of the runs in {}",
                parent.display()
            ));
            within.sort();
        }
        self.runs.extend(within);
    }
}

/// The runs directly in a folder, sorted by name.
fn runs_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut runs: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    runs.retain(|run| dir::is_run(run));
    runs.sort();
    runs
}

/// When a run wrote its last line.
fn changed(run: &Path) -> SystemTime {
    let file = fs::metadata(run.join(metrics::FILE));
    let changed = file.and_then(|file| file.modified());
    changed.unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_runs_stands_for_its_runs() {
        let parent = tempfile::tempdir().unwrap();
        let run = |name: &str, text: &str| {
            let folder = parent.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(metrics::FILE), text).unwrap();
            folder
        };
        let line = "{\"kind\":\"train\",\"step\":1,\"loss\":2}\n";
        let (b, a) = (run("b", line), run("a", line));
        run("broken", "nothing\n");
        fs::create_dir(parent.path().join("no-run")).unwrap();
        let chosen = choose(&[parent.path().to_owned()]);
        assert_eq!(chosen.runs, [a.clone(), b]);
        assert_eq!(chosen.notes.len(), 1);
        assert!(chosen.notes[0].contains("broken"), "{:?}", chosen.notes);
        // A run, and a folder without runs, stand for themselves.
        let empty = parent.path().join("no-run");
        let paths = [a, empty];
        assert_eq!(choose(&paths).runs, paths);
        for number in 0..MOST_RUNS {
            run(&format!("more-{number:02}"), line);
        }
        let chosen = choose(&[parent.path().to_owned()]);
        assert_eq!((chosen.runs.len(), chosen.notes.len()), (MOST_RUNS, 2));
    }
}
