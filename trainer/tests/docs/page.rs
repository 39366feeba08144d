//! The pages of the documentation and their fences.

use std::path::{Path, PathBuf};

/// README.md or a file below docs/.
pub struct Page {
    /// Relative to the repository.
    pub name: String,
    pub text: String,
    pub fences: Vec<Fence>,
}

/// A block of code.
pub struct Fence {
    /// The line of its first mark, from 1.
    pub line: usize,
    /// `sh` of `sh,slurm`.
    pub language: String,
    /// `slurm` of `sh,slurm`.
    pub tags: Vec<String>,
    pub code: String,
    /// The last lines before it that are not empty: a comment, or a paragraph.
    pub before: String,
}

/// The root of the repository.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap().to_owned()
}

/// README.md and every page below docs/, in the order of their names.
pub fn all() -> Vec<Page> {
    let mut paths = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|end| end == "md") => paths.push(path),
                false => {}
            }
        }
    }
    paths.sort();
    paths.iter().map(|path| Page::read(path)).collect()
}

impl Page {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        let fences = fences(&text);
        Self { name, text, fences }
    }

    /// The page of that name.
    pub fn named(name: &str) -> Self {
        Self::read(&root().join(name))
    }

    /// The fences of that language and those tags, in order.
    pub fn fences(&self, language: &str, tags: &[&str]) -> impl Iterator<Item = &Fence> {
        let wanted = move |fence: &&Fence| fence.language == language && fence.tags == tags;
        self.fences.iter().filter(wanted)
    }

    /// The place of a fence.
    pub fn place(&self, fence: &Fence) -> String {
        format!("{}:{}", self.name, fence.line)
    }
}

/// The fences of a text. Fences in lists may be indented.
fn fences(text: &str) -> Vec<Fence> {
    let mut found: Vec<Fence> = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut before: Vec<&str> = Vec::new();
    let mut paragraph_ended = false;
    for (index, line) in text.lines().enumerate() {
        let shown = line.trim_start();
        match (&open, shown.strip_prefix("```")) {
            (None, Some(info)) => {
                let mut words = info.split(',').map(|word| word.trim().to_owned());
                found.push(Fence {
                    line: index + 1,
                    language: words.next().unwrap_or_default(),
                    tags: words.collect(),
                    code: String::new(),
                    before: before.join("\n"),
                });
                let indent = line.len() - shown.len();
                open = Some((indent, "```".to_owned()));
                before.clear();
            }
            (Some((_, mark)), Some(_)) if shown.trim_end() == mark => open = None,
            (Some((indent, _)), _) => {
                let fence = found.last_mut().unwrap();
                let blank = line.chars().take(*indent).all(|letter| letter == ' ');
                let from = if blank { (*indent).min(line.len()) } else { 0 };
                fence.code.push_str(&line[from..]);
                fence.code.push('\n');
            }
            (None, None) if shown.is_empty() => paragraph_ended = true,
            (None, None) => {
                if std::mem::take(&mut paragraph_ended) {
                    before.clear();
                }
                before.push(line);
            }
        }
    }
    assert!(open.is_none(), "a fence is never closed");
    found
}
