//! Tells the program its source revision, features and target.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Sources of the program, relative to the package. Only their changes run this script again: they
/// compile the program anyway, so a commit alone compiles nothing.
const SOURCES: [&str; 12] = [
    "build.rs",
    "Cargo.toml",
    "src",
    "../Cargo.lock",
    "../Cargo.toml",
    "../burn-dist/src",
    "../contained/src",
    "../datasets/src",
    "../kernel-cache/src",
    "../kernels/src",
    "../loader/src",
    "../models/src",
];

fn main() {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    println!("cargo::rerun-if-env-changed=BURN_DIST_REVISION");
    // Cargo would run the script again and again for a missing file.
    for source in SOURCES.iter().filter(|path| package.join(path).exists()) {
        println!("cargo::rerun-if-changed={source}");
    }
    let given = env::var("BURN_DIST_REVISION").ok();
    let given = given.filter(|revision| !revision.trim().is_empty());
    let revision = given.or_else(|| revision(&package));
    let revision = revision.unwrap_or_else(|| "unknown".to_owned());
    let target = env::var("TARGET").unwrap_or_default();
    tell("TRAINER_REVISION", &revision);
    tell("TRAINER_FEATURES", &features());
    tell("TRAINER_TARGET", &target);
}

/// Sets a variable of the compiler.
fn tell(name: &str, value: &str) {
    let line = value.lines().next().unwrap_or_default();
    println!("cargo::rustc-env={name}={line}");
}

/// The features of this build, or `none`.
fn features() -> String {
    let names = env::vars().filter_map(|(name, _)| {
        let name = name.strip_prefix("CARGO_FEATURE_")?;
        Some(name.to_lowercase().replace('_', "-"))
    });
    let mut names: Vec<String> = names.filter(|name| name != "default").collect();
    names.sort();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(" "),
    }
}

/// The git revision of a package's sources: that of the published package, else that of its
/// repository. `None` without either.
pub fn revision(package: &Path) -> Option<String> {
    packaged(package).or_else(|| checked_out(package))
}

/// The revision in the file that `cargo package` adds.
fn packaged(package: &Path) -> Option<String> {
    let text = fs::read_to_string(package.join(".cargo_vcs_info.json")).ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    let hash = rest.split('"').nth(1)?;
    let hash = hash.get(..12).unwrap_or(hash);
    let dirty = text.contains("\"dirty\": true");
    Some(format!("{hash}{}", if dirty { "-dirty" } else { "" }))
}

/// The revision of the repository that the package is part of, with `-dirty` if files differ.
fn checked_out(package: &Path) -> Option<String> {
    // A copy of the package may lie in somebody else's repository without being part of it.
    git(package, &["ls-files", "--error-unmatch", "Cargo.toml"])?;
    let describe = [
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ];
    git(package, &describe)
}

/// The output of a git command, if it succeeds.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(folder);
    let output = git.env("GIT_OPTIONAL_LOCKS", "0").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
