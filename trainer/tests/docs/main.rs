//! Runs what README.md and the pages in docs/ show.
//!
//! | fence | what happens |
//! |---|---|
//! | `sh` | runs, block after block of a page in one shell and folder |
//! | `sh,slurm` | runs on the test cluster (scripts/slurm-test.sh) |
//! | `sh,gpu` | needs a GPU, is not run |
//! | `sh,skip` | is not run; `<!-- not run: REASON -->` stands above |
//! | `toml` | is a configuration, or a part of one that is merged over digits.toml; or a manifest |
//! | `rust` | is compiled: the page is in bench/src/readme.rs |
//! | `text`, `json`, … | is shown |
//!
//! A block whose commands all belong to the build ([`BUILD`], scripts/) is not run either. Any other
//! fence is an error.
//!
//! Every command of a block must end with 0, with 75 (stopped early), or with 141 (in a pipe whose
//! reader has read enough). A page has
//! [`LIMIT`] seconds. Its folder has images in `photos/` and small copies of MNIST and CIFAR-100 in
//! `data/`. A `toml` block whose paragraph names one file (`photos.toml`) is written to that file.
//!
//! To be fast, `trainer` on PATH is scripts/small-trainer.sh. It makes trainings
//! short, and runs all other commands as they are.

mod fixture;
mod own_crate;
mod page;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use page::{Fence, Page, root};
use trainer::config::{EMBEDDED, Loaded};

/// Seconds that the blocks of one page may take.
const LIMIT: u32 = 120;
/// Commands that build the project, which the tests have done.
const BUILD: &[&str] = &["cargo", "git", "apt-get", "sudo", "just", "rustup"];
/// Languages of blocks that are only shown.
const SHOWN: &[&str] = &["text", "json", "yaml", "python", "dockerfile", "ini"];
/// The page that trains on the images in `photos/`.
const OWN_IMAGES: &str = "docs/getting-started.md";
/// The page that starts from weights of ResNet-18.
const FINE_TUNE: &str = "docs/tutorials/fine-tune.md";

#[test]
fn every_fence_runs_or_says_why_not() {
    let mut faults = Vec::new();
    for page in page::all() {
        let found = page.fences.iter().filter_map(|fence| {
            let fault = fault(fence)?;
            Some(format!("{}: {fault}", page.place(fence)))
        });
        faults.extend(found);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The error in the tags of a block.
fn fault(fence: &Fence) -> Option<String> {
    let tags: Vec<&str> = fence.tags.iter().map(String::as_str).collect();
    let excused = fence.before.lines().last().is_some_and(|line| {
        let reason = line.trim().strip_prefix("<!-- not run: ");
        reason.is_some_and(|reason| reason.len() > 8 && reason.ends_with(" -->"))
    });
    match (fence.language.as_str(), &tags[..]) {
        ("sh", ["skip"]) if !excused => {
            Some("write `<!-- not run: REASON -->` into the line above".to_owned())
        }
        ("sh", [] | ["slurm" | "gpu" | "skip"]) => None,
        ("sh", _) => Some(format!("sh has no tags {tags:?}: slurm, gpu or skip")),
        ("rust", _) | ("toml", []) => None,
        (language, []) if SHOWN.contains(&language) => None,
        ("", _) => Some("has no language; output is `text`".to_owned()),
        (language, _) => Some(format!("unknown kind {language} {tags:?}")),
    }
}

/// The words that begin the commands of a block.
fn commands(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut goes_on = false;
    for line in code.lines() {
        let begins = !std::mem::replace(&mut goes_on, line.ends_with('\\'));
        let first = line.split_whitespace().next();
        if let (true, Some(first)) = (begins, first)
            && !first.starts_with('#')
        {
            found.push(first);
        }
    }
    found
}

/// Whether all commands of a block belong to the build.
fn builds(code: &str) -> bool {
    let script = |word: &str| {
        (word.starts_with("scripts/") || word == ".ci/run") && root().join(word).is_file()
    };
    let commands = commands(code);
    let of_build = |word: &&str| BUILD.contains(word) || script(word);
    commands.iter().any(of_build)
        && commands
            .iter()
            .all(|word| of_build(word) || ["cd", "export"].contains(word))
}

#[test]
fn the_commands_of_every_page_run() {
    let commands = |page: &Page| page.fences("sh", &[]).count();
    let mut pages = page::all();
    pages.retain(|page| commands(page) > 0);
    // Long pages first, so that both workers end together.
    pages.sort_by_key(|page| std::cmp::Reverse(commands(page)));
    assert!(pages.len() >= 5, "few pages have commands");
    let left = Mutex::new(pages.iter());
    let failures = Mutex::new(Vec::new());
    // Two pages at a time.
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(page) = { left.lock().unwrap().next() } {
                    let begin = Instant::now();
                    if let Err(reason) = run(page) {
                        failures.lock().unwrap().push(reason);
                    }
                    eprintln!("{}: {:.1} s", page.name, begin.elapsed().as_secs_f64());
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Runs the blocks of a page.
fn run(page: &Page) -> Result<(), String> {
    let work = tempfile::tempdir().unwrap();
    let folder = work.path().join("page");
    let bin = work.path().join("bin");
    let home = work.path().join("home");
    for folder in [&folder, &bin, &home] {
        fs::create_dir(folder).unwrap();
    }
    // Pages say ../burn-dist for a checkout.
    symlink(root(), work.path().join("burn-dist")).unwrap();
    fixture::make(&folder);
    if page.name == FINE_TUNE {
        fixture::weights(&folder);
    }
    symlink(root().join("scripts/small-trainer.sh"), bin.join("trainer")).unwrap();
    let script = work.path().join("page.sh");
    fs::write(&script, script_of(page, &folder)).unwrap();
    let log = work.path().join("log");
    let output = File::create(&log).unwrap();

    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", &LIMIT.to_string(), "bash"])
        .arg(&script)
        .current_dir(&folder)
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("HOME", &home)
        .env("REAL_TRAINER", env!("CARGO_BIN_EXE_trainer"))
        .env("RAYON_NUM_THREADS", "1");
    for (name, _) in std::env::vars() {
        let launcher = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "RUST_LOG"].contains(&name.as_str());
        if launcher || name.starts_with("XDG_") || name.starts_with("BURN_DIST_LAUNCH") {
            command.env_remove(name);
        }
    }
    let status = command.status().unwrap();
    if status.success() {
        return match page.name == OWN_IMAGES && own_images_accuracy(&folder) < Some(0.6) {
            true => Err(format!(
                "{OWN_IMAGES}: the images in photos/ were not learned"
            )),
            false => Ok(()),
        };
    }
    let said = fs::read(&log).unwrap();
    let said = String::from_utf8_lossy(&said).into_owned();
    let lines: Vec<&str> = said.lines().collect();
    let block = lines.iter().rev().find(|line| line.starts_with("=== "));
    let what = match status.code() {
        Some(124 | 137) => format!("took over {LIMIT} s"),
        _ => format!("{status}"),
    };
    let tail = lines.split_at(lines.len().saturating_sub(25)).1.join("\n");
    let block = block.copied().unwrap_or("before its first block");
    Err(format!("{}: {what} in {block}\n{tail}", page.name))
}

/// The best accuracy of the runs on a folder of images, if there is one.
fn own_images_accuracy(folder: &Path) -> Option<f64> {
    let runs = fs::read_dir(folder.join("runs")).ok()?.flatten();
    let accuracies = runs.filter_map(|run| {
        let config = fs::read_to_string(run.path().join("config.toml")).ok()?;
        let metrics = fs::read_to_string(run.path().join("metrics.jsonl")).ok()?;
        let lines = metrics.lines().map(serde_json::from_str);
        let lines = lines.collect::<Result<Vec<serde_json::Value>, _>>().ok()?;
        let last = lines.iter().rfind(|line| line["kind"] == "eval")?;
        let of_images = config.contains("\"image-folder\"");
        of_images.then_some(last["accuracy"].as_f64()?)
    });
    accuracies.reduce(f64::max)
}

#[test]
fn the_readme_leads_a_new_user_on() {
    let readme = Page::named("README.md");
    for name in [OWN_IMAGES, own_crate::PAGE] {
        assert!(
            readme.text.contains(&format!("]({name})")),
            "no link to {name}"
        );
    }
    let of_cluster = readme.fences("sh", &["slurm"]).next();
    assert!(of_cluster.unwrap().code.contains("srun"));
}

/// The blocks of a page as one script, and its files.
fn script_of(page: &Page, folder: &Path) -> String {
    let mut script =
        "set -E -o pipefail\ntrap 'code=$?; [ $code -eq 75 ] || [ $code -eq 141 ] || { \
        echo \"exit code $code: $BASH_COMMAND\"; exit $code; }' ERR\n"
            .to_owned();
    for fence in &page.fences {
        match (fence.language.as_str(), fence.tags.is_empty()) {
            ("sh", true) if !builds(&fence.code) => {
                script.push_str(&format!("echo '=== {}'\n", page.place(fence)));
                script.push_str(&fence.code);
            }
            // Written when the page has come to it.
            ("toml", true) => {
                if let Some(name) = file_of(fence) {
                    let from = folder.with_file_name(format!("block-{}", fence.line));
                    fs::write(&from, &fence.code).unwrap();
                    script.push_str(&format!("cp '{}' '{name}'\n", from.display()));
                }
            }
            _ => {}
        }
    }
    script
}

/// The file that the paragraph before a block names.
fn file_of(fence: &Fence) -> Option<&str> {
    let mut names = fence.before.split('`').skip(1).step_by(2);
    names.find(|name| name.ends_with(".toml") && !name.contains('/'))
}

#[test]
fn every_configuration_in_the_pages_is_valid() {
    let base = EMBEDDED.iter().find(|config| config.name == "digits.toml");
    let mut base: toml::Table = base.unwrap().text.parse().unwrap();
    // Part of it may be for a global batch that grows with the ranks.
    let train = base["train"].as_table_mut().unwrap();
    train.remove("batch_size");
    train.insert("micro_batch_size".to_owned(), 48.into());
    let mut checked = 0;
    let mut faults = Vec::new();
    for page in page::all() {
        for fence in page.fences("toml", &[]) {
            let place = page.place(fence);
            let part: toml::Table = match fence.code.parse() {
                Ok(part) => part,
                Err(error) => {
                    faults.push(format!("{place}: {error}"));
                    continue;
                }
            };
            // A manifest of cargo; a_new_user_trains_an_own_model builds with it.
            if part.contains_key("dependencies") || part.contains_key("profile") {
                continue;
            }
            let merged = toml::to_string(&over(base.clone(), part)).unwrap();
            if let Err(error) = Loaded::parse(&place, "docs", &merged, &[]) {
                faults.push(format!("{place}: {error:?}\n{merged}"));
            }
            checked += 1;
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(checked >= 5, "{checked} configurations");
}

/// `part` over `base`: a section with a name replaces the whole section, others add their keys.
fn over(mut base: toml::Table, part: toml::Table) -> toml::Table {
    for (section, keys) in part {
        match (base.get_mut(&section), keys) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new))
                if !new.contains_key("name") =>
            {
                if new.contains_key("batch_size") {
                    old.remove("micro_batch_size");
                }
                old.extend(new);
            }
            (_, keys) => {
                base.insert(section, keys);
            }
        }
    }
    base
}

/// Whether rustdoc compiles a block.
fn is_compiled(fence: &Fence) -> bool {
    fence.language == "rust" && !fence.tags.iter().any(|tag| tag == "ignore")
}

#[test]
fn pages_with_programs_are_compiled() {
    let list = fs::read_to_string(root().join("bench/src/readme.rs")).unwrap();
    let listed: BTreeSet<&str> = list
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .filter_map(|line| {
            line.split_once("include_str!(\"../../")?
                .1
                .split('"')
                .next()
        })
        .collect();
    let pages = page::all();
    let have: BTreeSet<&str> = pages
        .iter()
        .filter(|page| page.fences.iter().any(is_compiled))
        .map(|page| page.name.as_str())
        .collect();
    assert_eq!(
        listed, have,
        "pages listed in bench/src/readme.rs, and pages with ```rust"
    );
}
