//! `tools/gpu-lab/gpu-check.sh` on a machine without a GPU: the files that it leaves after a
//! signal, and the parts of CUDA that it selects.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/gpu-lab");

/// Makes a shell script executable at `path`.
fn program(path: &Path, text: &str) {
    write(path, &format!("#!/bin/sh\n{text}"));
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a program");
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("a file");
}

fn started(script: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(script);
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for name in [
        "LD_LIBRARY_PATH",
        "CUDA_PATH",
        "PYTHON",
        "BURN_DIST_KERNELS",
    ] {
        command.env_remove(name);
    }
    command
}

/// Waits until `done` returns a value.
fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(begin.elapsed() < LIMIT, "{what}: not in {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ended(mut child: Child) -> Output {
    until("the script's end", || child.try_wait().expect("a child"));
    child.wait_with_output().expect("it has ended")
}

fn rows(json: &Path) -> Vec<Value> {
    let text = fs::read(json).unwrap_or_default();
    let report: Value = serde_json::from_slice(&text).unwrap_or_default();
    report["results"].as_array().cloned().unwrap_or_default()
}

/// A fake Python that has PyTorch's results in bf16, and takes long in f32.
const PYTHON: &str = r#"
[ "$1" != -c ] || exit 0
echo "$*" >>arguments
case "$*" in *'precision f32'*) echo begun; echo $$ >arriving; mv arriving pid; exec sleep 60 ;; esac
echo '{"images_per_second": 10, "median_images_per_second": 10, "memory_mib": null}'
"#;

#[test]
fn a_check_that_is_ended_leaves_what_it_has_found_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    program(&at("python"), PYTHON);
    let script = Path::new(SCRIPTS).join("gpu-check.sh");
    let arguments = "--device cpu --quick --parts speed,torch --recipes wrn-16-4 \
                     --precisions bf16,f32 --json new/out.json";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let mut command = started(&script, folder.path(), &arguments);
    command.env("BENCH", env!("CARGO_BIN_EXE_bench"));
    let child = command
        .env("PYTHON", at("python"))
        .spawn()
        .expect("the script");

    let json = at("new/out.json");
    let pid = until("the last cell", || fs::read_to_string(at("pid")).ok());
    let cells = rows(&json);
    assert_eq!(cells.len(), 3, "each is written when it is known");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("the script runs");
    let output = ended(child);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "{said}");

    let found = rows(&json);
    assert_eq!(found[..3], cells, "{said}");
    assert_eq!(found.len(), 4, "{said}");
    assert_eq!(found[1]["good"], Value::Bool(true), "{said}");
    assert!(found[1]["values"]["speed_ratio"].as_f64() > Some(0.0));
    let words = found[3]["words"].as_str().expect("words");
    assert!(words.starts_with("stopped by a signal; begun"), "{words}");
    let log = fs::read_to_string(at("new/out.logs/torch-wrn-16-4-f32.log"));
    assert_eq!(log.expect("what it said"), "begun\n");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("speed"), "{table}");

    // Both train on the same images, and no other files are left.
    let images = found[0]["values"]["images"].as_u64().expect("a number");
    let told = fs::read_to_string(at("arguments")).expect("arguments");
    assert!(told.contains(&format!("--images {images} ")), "{told}");
    let mut left: Vec<_> = fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["arguments", "new", "pid", "python"]);
}

#[test]
fn the_seconds_to_the_first_step_are_those_of_a_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = "gpu --device cpu --parts start --recipes wrn-16-4 --precisions f32 --batch 2 \
                     --json out.json";
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let bench = Path::new(env!("CARGO_BIN_EXE_bench"));
    let begin = Instant::now();
    let output = ended(
        started(bench, folder.path(), &arguments)
            .spawn()
            .expect("the program"),
    );
    let took = begin.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let found = rows(&folder.path().join("out.json"));
    assert_eq!(found.len(), 1, "{said}");
    assert_eq!(found[0]["part"], "start");
    assert_eq!(found[0]["what"], "wrn-16-4 f32");
    let seconds = found[0]["values"]["seconds"].as_f64();
    let seconds = seconds.expect("a number");
    assert!(seconds > 0.0 && seconds < took, "{seconds} of {took}");
}

/// A fake Python that has PyTorch's results, and records its arguments.
const ASKED: &str = r#"
[ "$1" != -c ] || exit 0
shift
echo "$*" >>"$ASKED"
echo '{"images_per_second": 10, "median_images_per_second": 10, "memory_mib": null}'
"#;

#[test]
fn a_lease_compiles_the_models_of_the_next_parts_in_pytorch_beside_what_is_not_timed() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    program(&at("python"), ASKED);
    // Replaces our program, so that nothing is trained.
    program(&at("bench"), "echo \"ours: $*\" >>\"$ASKED\"\n");
    let script = Path::new(SCRIPTS).join("gpu-lease.sh");
    let parts = ["out", "60", "bf16", "wide", "vits", "memory", "resnet"];
    let child = started(&script, folder.path(), &parts)
        .env("BENCH", at("bench"))
        .env("PYTHON", at("python"))
        .env("ASKED", at("asked"))
        .env("FOUND", "found")
        .env("DEVICE", "cpu")
        .spawn()
        .expect("the script");
    let output = ended(child);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let asked = fs::read_to_string(at("asked")).expect("what was asked for");
    let line = |text: &str| {
        let place = asked.lines().position(|line| line.contains(text));
        place.unwrap_or_else(|| panic!("no {text} in {asked}"))
    };
    let compiled = |recipe: &str| line(&format!("--recipe {recipe} --precision bf16"));
    let ours = |recipes: &str| line(&format!("--torch-compile --recipes {recipes} "));
    for recipe in ["wrn-28-10", "vit-tiny", "vit-b-16"] {
        assert!(compiled(recipe) < ours("wrn-28-10"), "{asked}");
    }
    assert!(ours("vit-tiny,vit-b-16") < compiled("resnet-50"), "{asked}");
    assert!(compiled("resnet-50") < ours("resnet-50"), "{asked}");
    let each = asked.lines().filter(|line| line.ends_with(" --compile"));
    assert_eq!(each.count(), 4, "{asked}");
}

#[test]
fn a_lease_brings_back_what_was_known_before_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    program(
        &at("python"),
        "[ \"$1\" != -c ] || exit 0\necho begun\nexec sleep 60\n",
    );
    let script = Path::new(SCRIPTS).join("gpu-lease.sh");
    let begin = Instant::now();
    let child = started(
        &script,
        folder.path(),
        &["out", "24", "olivia", "wide", "moon"],
    )
    .env("BENCH", env!("CARGO_BIN_EXE_bench"))
    .env("PYTHON", at("python"))
    .env("FOUND", "found")
    .env("DEVICE", "cpu")
    .env("ALSO", "--quick")
    .spawn()
    .expect("the script");
    let output = ended(child);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(begin.elapsed() < Duration::from_secs(24), "{said}");
    for told in [
        "olivia: exit code 124",
        "wide: not begun",
        "moon is no part",
    ] {
        assert!(said.contains(told), "{said}");
    }
    let unpacked = Command::new("tar")
        .args(["xzf", "out/found.tar.gz", "--one-top-level=back"])
        .current_dir(folder.path())
        .status();
    assert!(unpacked.expect("tar").success());
    let found = rows(&at("back/olivia.json"));
    assert_eq!(found.len(), 2, "{said}");
    assert_eq!(found[0]["good"], Value::Bool(true), "{said}");
    assert!(at("back/olivia.logs").is_dir() && at("back/machine.txt").is_file());
    assert!(!at("back/kernels").exists() && !at("back/found").exists());
}

/// The folder of a packed file, with two versions of CUDA, and programs that print their arguments.
fn packed(folder: &Path, driver: &str) -> PathBuf {
    for name in ["gpu-check.sh", "gpu-libraries.sh"] {
        let to = folder.join("tools/gpu-lab").join(name);
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(Path::new(SCRIPTS).join(name), to).expect("a script");
    }
    for (version, number) in [("98.7", 98070), ("97.1", 97010)] {
        let at = |name: String| folder.join(format!("cuda-{version}")).join(name);
        let (major, _) = version.split_once('.').expect("two numbers");
        write(&at("include/cuda_runtime.h".to_owned()), "");
        write(&at("include/crt/mma.h".to_owned()), "");
        let define = format!("#define CUDA_VERSION {number}\n");
        write(&at("include/cuda.h".to_owned()), &define);
        write(&at(format!("lib/libnvrtc.so.{major}")), "");
        write(&at(format!("lib/libnvrtc-builtins.so.{version}")), "");
    }
    let header = format!("| NVIDIA-SMI 1.2  Driver Version: 1.2  CUDA Version: {driver}  |");
    program(
        &folder.join("bin/nvidia-smi"),
        &format!("echo '{header}'\n"),
    );
    program(
        &folder.join("bin/python3"),
        "echo \"python: $LD_LIBRARY_PATH ${CUDA_PATH-unset}\"\n",
    );
    write(&folder.join("kept/kernel.ptx"), "");
    let said = "echo \"ours: $LD_LIBRARY_PATH $CUDA_PATH $BURN_DIST_KERNELS\"\n\
                while [ \"$1\" != --python ]; do shift; done\n\"$2\" -c pass\n";
    program(&folder.join("bench-gpu"), said);
    folder.join("tools/gpu-lab/gpu-check.sh")
}

#[test]
fn nvrtc_and_headers_fit_the_driver_and_are_not_pytorchs() {
    // Newer than the driver, and without all of its headers.
    for (driver, version, lacks) in [("97.5", "97.1", ""), ("99.0", "98.7", "97.1")] {
        let folder = tempfile::tempdir().expect("a folder");
        let script = packed(folder.path(), driver);
        let header = format!("cuda-{lacks}/include/crt/mma.h");
        let _ = fs::remove_file(folder.path().join(header));
        let mut command = started(&script, folder.path(), &["--device", "cuda"]);
        let path = std::env::var("PATH").expect("a PATH");
        let bin = folder.path().join("bin");
        command.env("PATH", format!("{}:{path}", bin.display()));
        command.env("LD_LIBRARY_PATH", "/theirs");
        command.env("KERNELS", "kernels");
        let output = ended(command.spawn().expect("the script"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(!said.contains("WARNING"), "{said}");
        let taken = folder.path().join(format!("cuda-{version}"));
        let taken = taken.display();
        let (major, _) = version.split_once('.').expect("two numbers");
        let nvrtc = format!("{taken}/lib/libnvrtc.so.{major}");
        let line = format!("NVRTC: {nvrtc}, {version}; headers: {taken}, {version}");
        assert!(said.contains(&line), "{said}");
        let told = String::from_utf8_lossy(&output.stdout);
        let (ours, python) = told.split_once('\n').expect("two lines");
        // Compiled kernels are kept, together with the packed ones.
        let kept = folder.path().join("kernels/nvrtc");
        assert!(ours.contains(&format!(":/theirs:{taken}/lib")), "{ours}");
        let end = format!(" {taken} {}", kept.display());
        assert!(ours.ends_with(&end), "{ours}");
        assert!(kept.join("kernel.ptx").exists());
        assert_eq!(python, "python: /theirs unset\n");
    }
}

/// Kernels are cached per build of NVRTC: another build of the same version would compile them
/// again.
#[test]
fn the_nvrtc_that_has_compiled_the_packed_kernels_is_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = packed(folder.path(), "99.0");
    // Found first, and equal by its version.
    let theirs = folder.path().join("theirs");
    write(&theirs.join("libnvrtc.so.98"), "another build");
    write(&theirs.join("libnvrtc-builtins.so.98.7"), "");
    let packed = folder.path().join("cuda-98.7/lib");
    write(&packed.join("libnvrtc.so.98"), "ours");
    let of_ours = "ae0bec9e9d33c56354bd612c8a6010840324fc5b9786ce0a18b696b304b09397";
    for (compiler, taken, warns) in [
        (None, &theirs, false),
        (Some(of_ours), &packed, false),
        (Some("0123456789abcdef"), &theirs, true),
    ] {
        if let Some(digest) = compiler {
            write(
                &folder.path().join("kept/compiler.sha256"),
                &format!("{digest}  -\n"),
            );
        }
        let mut command = started(&script, folder.path(), &["--device", "cuda"]);
        let path = std::env::var("PATH").expect("a PATH");
        let bin = folder.path().join("bin");
        command.env("PATH", format!("{}:{path}", bin.display()));
        command.env("LD_LIBRARY_PATH", &theirs);
        command.env("KERNELS", "kernels");
        let output = ended(command.spawn().expect("the script"));
        let said = String::from_utf8_lossy(&output.stderr);
        let line = format!("NVRTC: {}/libnvrtc.so.98, 98.7", taken.display());
        assert!(said.contains(&line), "{said}");
        assert_eq!(said.contains("will be compiled again"), warns, "{said}");
    }
}
