//! Relative data paths of a run's configuration, seen from another folder.

use std::path::Path;

use super::Loaded;

/// Key of the data folder.
const DIR: &str = "data.dir";

impl Loaded {
    /// Resolves relative paths of `[data]` against `started`, the folder where the run was started.
    ///
    /// Paths on the command line stay. If only the current folder has the data, or `started` does
    /// not exist here, the current folder counts. Returns a message for the user if the two folders
    /// differ and the data folder is relative.
    pub(crate) fn resolve_data(&mut self, started: &Path) -> Option<String> {
        let here = std::env::current_dir().unwrap_or_default();
        self.resolve_data_from(started, &here)
    }

    fn resolve_data_from(&mut self, started: &Path, here: &Path) -> Option<String> {
        let dir = self.config.data.kind.folder().to_owned();
        let has_relative_dir = dir.is_relative() && !dir.as_os_str().is_empty();
        if started == here || !has_relative_dir || self.is_set(DIR) {
            return None;
        }
        let (there, relative) = (started.join(&dir), dir.display());
        let origin = format!("the run was started in {}", started.display());
        if !there.exists() {
            let advice = format!("Name the data with --set {DIR}=PATH");
            if here.join(&dir).exists() {
                return Some(format!(
                    "warning: {origin}, but {} does not exist. The data is taken from {relative} \
                     in the current folder",
                    there.display()
                ));
            }
            if !started.is_dir() {
                return Some(format!(
                    "warning: {origin}, which does not exist here. The relative path {relative} \
                     of the data now belongs to the current folder. {advice}"
                ));
            }
        }
        let is_set: Vec<&str> = ["data.dir", "data.cache_dir"]
            .into_iter()
            .filter(|key| self.is_set(key))
            .collect();
        for (key, path) in self.config.data.kind.paths() {
            if is_set.contains(&key) {
                continue;
            }
            match path {
                Some(path) => *path = started.join(&*path),
                None if key == DIR => *path = Some(there.clone()),
                None => {}
            }
        }
        Some(format!("data in {}, because {origin}", there.display()))
    }

    /// Whether a `--set` gives the key.
    fn is_set(&self, key: &str) -> bool {
        let span = self.spans.get(key);
        span.is_some_and(|span| self.sources.is_set(span))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::create_dir_all;
    use std::path::PathBuf;

    use super::*;

    const TEXT: &str = "[model]\nname = \"cnn\"\n[optimizer]\nname = \"sgd\"\n[data]\nname = ";

    fn load(data: &str, sets: &[&str]) -> Loaded {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Loaded::parse("config.toml", "run", &format!("{TEXT}{data}\n"), &sets).unwrap()
    }

    fn dir(loaded: &Loaded) -> PathBuf {
        loaded.config.data.kind.folder().to_owned()
    }

    #[test]
    fn relative_data_is_found_where_the_run_was_started() {
        let home = tempfile::tempdir().unwrap();
        let (started, here) = (home.path().join("started"), home.path().join("here"));
        create_dir_all(started.join("photos")).unwrap();
        create_dir_all(&here).unwrap();
        let folder = "\"image-folder\"\ndir = \"photos\"";
        let mut loaded = load(folder, &[]);
        let note = loaded.resolve_data_from(&started, &here).unwrap();
        assert_eq!(dir(&loaded), started.join("photos"));
        assert!(
            note.contains("was started in") && !note.contains("warning"),
            "{note}"
        );
        // A default folder, and one more path.
        let mut loaded = load("\"cifar-100\"\ncache_dir = \"cache\"", &[]);
        loaded.resolve_data_from(&started, &here).unwrap();
        assert_eq!(dir(&loaded), started.join("data/cifar-100"));
        let cache = loaded.config.data.kind.paths().pop().unwrap().1.clone();
        assert_eq!(cache, Some(started.join("cache")));
    }

    #[test]
    fn paths_that_need_no_other_folder_stay() {
        let home = tempfile::tempdir().unwrap();
        let started = home.path().join("started");
        create_dir_all(started.join("photos")).unwrap();
        let folder = "\"image-folder\"\ndir = \"photos\"";
        for (data, sets, expected) in [
            (folder, &["data.dir=here"][..], "here"),
            ("\"image-folder\"\ndir = \"/photos\"", &[], "/photos"),
            ("\"digits\"", &[], ""),
        ] {
            let mut loaded = load(data, sets);
            assert_eq!(loaded.resolve_data_from(&started, home.path()), None);
            assert_eq!(dir(&loaded), Path::new(expected));
        }
        let mut loaded = load(folder, &[]);
        assert_eq!(loaded.resolve_data_from(&started, &started), None);
        assert_eq!(dir(&loaded), Path::new("photos"));
    }

    #[test]
    fn data_of_a_moved_project_is_that_of_the_current_folder() {
        let home = tempfile::tempdir().unwrap();
        let (started, here) = (home.path().join("started"), home.path().join("here"));
        let mut loaded = load("\"image-folder\"\ndir = \"photos\"", &[]);
        let note = loaded.resolve_data_from(&started, &here).unwrap();
        assert!(note.contains("does not exist here") && note.contains("--set data.dir=PATH"));
        create_dir_all(here.join("photos")).unwrap();
        let note = loaded.resolve_data_from(&started, &here).unwrap();
        assert!(note.contains("in the current folder"), "{note}");
        assert_eq!(dir(&loaded), Path::new("photos"));
        // The folder is there without the data: the error names the full path.
        create_dir_all(&started).unwrap();
        std::fs::remove_dir(here.join("photos")).unwrap();
        loaded.resolve_data_from(&started, &here).unwrap();
        assert_eq!(dir(&loaded), started.join("photos"));
    }
}
