//! The programs in `examples/` on two ranks. Each fails if it has not learned its task.

mod world_support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use world_support::*;

/// Where cargo puts examples: beside the folder of this test.
fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let target = own.parent().and_then(Path::parent).unwrap();
    target.join("examples").join(name)
}

/// Runs an example on two ranks in `folder`, and returns its output.
fn run_in(folder: &Path, name: &'static str) -> String {
    let mut command = Command::new(program(name));
    command
        .args(["--nproc", "2"])
        .env("RAYON_NUM_THREADS", "1")
        .stdin(Stdio::null())
        .current_dir(folder);
    limited(move || {
        let (status, output) = Process::start(command).end();
        assert!(status.success(), "{name}: {status}\n{output}");
        output
    })
}

fn run(name: &'static str) -> String {
    run_in(tempfile::tempdir().unwrap().path(), name)
}

#[test]
fn a_generator_learns_from_a_discriminator() {
    assert!(run("gan").contains("mean distance"));
}

#[test]
fn adapters_learn_on_a_frozen_model() {
    assert!(run("lora").contains("parameters in adapters"));
}

#[test]
fn an_encoder_learns_from_the_batches_of_all_ranks() {
    assert!(run("contrastive").contains("loss"));
}

#[test]
fn ranks_with_fewer_batches_end_with_the_others() {
    let output = run("uneven");
    assert!(output.contains("epoch 20: loss 0.0"), "{output}");
}

#[test]
fn two_ranks_go_on_when_the_third_dies() {
    let mut command = Command::new(program("reform"));
    command.env("RAYON_NUM_THREADS", "1").stdin(Stdio::null());
    let (status, output) = limited(move || Process::start(command).end());
    assert!(status.success(), "{status}\n{output}");
    assert_eq!(
        output.matches("of 2 goes on after step 4").count(),
        2,
        "{output}"
    );
    assert_eq!(output.matches("of 2 is done").count(), 2, "{output}");
}

#[test]
fn an_lstm_learns_and_is_not_trained_twice() {
    let folder = tempfile::tempdir().unwrap();
    let output = run_in(folder.path(), "lstm");
    assert!(output.contains("step 150: loss 0.0"), "{output}");
    let again = run_in(folder.path(), "lstm");
    assert!(!again.contains("step"), "{again}");
}
