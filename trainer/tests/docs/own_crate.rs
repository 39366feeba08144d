//! The first program of docs/library.md in a new crate outside the workspace, by the page's own
//! manifest and commands.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::page::{Page, root};

pub const PAGE: &str = "docs/library.md";

#[test]
fn a_new_user_trains_an_own_model() {
    let page = Page::named(PAGE);
    let manifest = page.fences("toml", &[]).next().unwrap();
    let programs = page.fences.iter().filter(|fence| fence.language == "rust");
    let program = programs
        .clone()
        .find(|fence| fence.code.contains("fn main()"));
    let program = program.unwrap();
    let copies_lock = |fence: &&crate::Fence| fence.code.contains("Cargo.lock");
    let lock = page.fences("sh", &[]).find(copies_lock).unwrap();

    let work = tempfile::tempdir().unwrap();
    let own = work.path().join("own");
    fs::create_dir_all(own.join("src")).unwrap();
    symlink(root(), work.path().join("burn-dist")).unwrap();
    let package = "[package]\nname = \"own\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n";
    fs::write(
        own.join("Cargo.toml"),
        format!("{package}{}", manifest.code),
    )
    .unwrap();
    fs::write(own.join("src/main.rs"), &program.code).unwrap();
    succeed(Command::new("bash").args(["-euc", &lock.code]), &own);

    // Names, versions and features of the manifest, and the lock file.
    let lists = |command: &mut Command| {
        let output = succeed(command, &own);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let host = host();
    let metadata = lists(
        cargo()
            .args(["metadata", "--offline", "--format-version=1"])
            .args(["--filter-platform", &host]),
    );
    let manifest: toml::Table = manifest.code.parse().unwrap();
    let dependencies = manifest["dependencies"].as_table().unwrap();
    let tested = locked(&root());
    for package in metadata["packages"].as_array().unwrap() {
        let (name, version) = (&package["name"], &package["version"]);
        let known = format!("{} {}", name.as_str().unwrap(), version.as_str().unwrap());
        assert!(
            known == "own 0.1.0" || tested.contains(&known),
            "{known} is not in Cargo.lock"
        );
    }

    // Compiled against what the workspace has built: Burn alone would take ten minutes.
    let (libraries, folders) = built();
    let mut rustc = Command::new("rustc");
    rustc.args([
        "--edition=2024",
        "-Copt-level=1",
        "-o",
        "own",
        "src/main.rs",
    ]);
    for name in dependencies.keys() {
        let name = name.replace('-', "_");
        let library = libraries
            .get(&name)
            .unwrap_or_else(|| panic!("no library {name}"));
        rustc.arg("-L").arg(library.parent().unwrap());
        rustc.args(["--extern", &format!("{name}={}", library.display())]);
    }
    for folder in folders {
        rustc.args(["-L", &folder]);
    }
    succeed(&mut rustc, &own);

    // Two ranks, as every launcher may start them.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let start = |rank: &str| {
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", "60", "./own"])
            .env("RANK", rank)
            .env("LOCAL_RANK", rank)
            .env("WORLD_SIZE", "2")
            .env("LOCAL_WORLD_SIZE", "2")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", &port)
            .env("BURN_DIST_SECRET", "a secret of this test only")
            .env("RAYON_NUM_THREADS", "1")
            .env_remove("BURN_DIST_LAUNCH")
            .current_dir(&own)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let ranks = [start("0"), start("1")];
    let said = ranks.map(|rank| {
        let output = rank.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    });
    // The program fails if the ranks hold different parameters.
    assert!(
        said[0].contains("mean loss ") && said[0].contains("parameters "),
        "{}",
        said[0]
    );
    assert_eq!(said[1], "");
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a command that must succeed, in `folder`.
fn succeed(command: &mut Command, folder: &Path) -> Output {
    let output = command
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}",
        output.status
    );
    output
}

/// The platform that rustc compiles for.
fn host() -> String {
    let output = succeed(Command::new("rustc").arg("-vV"), &root());
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    line.unwrap().to_owned()
}

/// Names and versions in the lock file of a workspace.
fn locked(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("Cargo.lock")).unwrap();
    let lock: toml::Table = text.parse().unwrap();
    let packages = lock["package"].as_array().unwrap().iter();
    let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
    packages
        .map(|package| format!("{} {}", text(&package["name"]), text(&package["version"])))
        .collect()
}

/// Libraries by their names, and folders to link from, of the build that this test belongs to.
fn built() -> (BTreeMap<String, PathBuf>, Vec<String>) {
    let arguments = [
        "test",
        "--release",
        "--workspace",
        "--no-run",
        "--offline",
        "--message-format=json",
    ];
    let output = succeed(cargo().args(arguments), &root());
    let (mut libraries, mut folders) = (BTreeMap::new(), Vec::new());
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        let files = message["filenames"].as_array().into_iter().flatten();
        for file in files
            .filter_map(Value::as_str)
            .filter(|file| file.ends_with(".rlib"))
        {
            let name = message["target"]["name"]
                .as_str()
                .unwrap()
                .replace('-', "_");
            libraries.insert(name, PathBuf::from(file));
        }
        let linked = message["linked_paths"].as_array().into_iter().flatten();
        folders.extend(linked.filter_map(Value::as_str).map(str::to_owned));
    }
    (libraries, folders)
}
