//! Late checkpoints, and folders that cannot be cleaned up.

use std::fs;
use std::thread;
use std::time::Duration;

use burn::module::Param;
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use burn_dist::checkpoint::{CheckpointError, Job, Writer, Written, list};
use burn_dist::parallel::{Parallel, Strategy};
use burn_dist::{GroupOptions, ProcessGroup};

use crate::models::Net;

fn job(training: &Parallel<Net>, step: u64) -> Job {
    Job {
        step,
        state: training.state().unwrap(),
        meta: serde_json::Value::Null,
        keep: 1,
        best: Vec::new(),
    }
}

fn training(group: &ProcessGroup) -> Parallel<Net> {
    Parallel::new(Net::new(1), SgdConfig::new(), Strategy::Ddp, group).unwrap()
}

/// A rank that is busy for longer than the collectives' timeout, as with a slow disk.
#[test]
fn a_rank_may_be_late_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let options = GroupOptions {
        first_timeout: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
        ..GroupOptions::default()
    };
    let groups = ProcessGroup::in_process(2, &options).unwrap();
    thread::scope(|scope| {
        for group in groups {
            let folder = folder.path();
            scope.spawn(move || {
                let training = training(&group);
                let mut writer = Writer::start(folder, &group, Duration::from_secs(5)).unwrap();
                let _ = writer.submit(job(&training, 1));
                writer.wait().unwrap().unwrap();
                if group.rank() == 1 {
                    thread::sleep(Duration::from_secs(3));
                }
                writer.close(&group).unwrap();
            });
        }
    });
    assert_eq!(list(folder.path()).unwrap().len(), 1);
}

/// It waits for the share of a rank that never comes, and its own next step would be late for the
/// others.
#[test]
fn a_checkpoint_is_left_out_rather_than_hold_up_the_other_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let groups = ProcessGroup::in_process(2, &GroupOptions::default()).unwrap();
    thread::scope(|scope| {
        for group in groups {
            let folder = folder.path();
            scope.spawn(move || {
                let training = training(&group);
                let mut writer = Writer::start(folder, &group, Duration::from_secs(10)).unwrap();
                if group.rank() == 0 {
                    assert!(writer.submit(job(&training, 1)).is_none());
                    let left_out = writer.submit(job(&training, 2)).unwrap().unwrap_err();
                    let is_second = matches!(left_out, CheckpointError::Behind { step: 2, .. });
                    assert!(is_second, "{left_out}");
                    let first = writer.wait().unwrap().unwrap_err();
                    assert!(
                        matches!(first, CheckpointError::Rank { rank: 1, .. }),
                        "{first}"
                    );
                    assert!(writer.wait().is_none());
                }
                writer.close(&group).unwrap();
            });
        }
    });
    assert!(list(folder.path()).unwrap().is_empty());
}

/// The number is in the share of one rank alone, and every rank of a run must learn of it.
#[test]
fn a_state_that_is_not_finite_is_refused_by_whose_it_is_and_by_rank_0() {
    let folder = tempfile::tempdir().unwrap();
    let groups = ProcessGroup::in_process(3, &GroupOptions::default()).unwrap();
    let wait = Duration::from_secs(20);
    let refused: Vec<Option<String>> = thread::scope(|scope| {
        let ranks: Vec<_> = groups
            .into_iter()
            .map(|group| {
                let folder = folder.path();
                scope.spawn(move || {
                    let mut net = Net::new(1);
                    let weight = net.extra.weight.val();
                    net.extra.weight =
                        Param::from_tensor(Tensor::from_inner(weight.inner() * f32::NAN));
                    let training =
                        Parallel::new(net, SgdConfig::new(), Strategy::Ddp, &group).unwrap();
                    let mut writer = Writer::start(folder, &group, wait).unwrap();
                    let _ = writer.submit(job(&training, 7));
                    let refused = writer.wait().unwrap().err().map(|error| error.to_string());
                    writer.close(&group).unwrap();
                    refused
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(list(folder.path()).unwrap().is_empty());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let told = refused[0].as_ref().unwrap();
    assert!(
        told.contains("`model/extra.weight` is NaN on rank"),
        "{told}"
    );
    assert!(told.contains("after step 7"), "{told}");
    let others = refused[1..]
        .iter()
        .flatten()
        .filter(|reason| *reason == told);
    // Whichever rank has the weight.
    assert_eq!(others.count(), usize::from(!told.contains("rank 0")));
}

#[test]
fn older_checkpoints_that_stay_do_not_spoil_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let group = ProcessGroup::single();
    let training = training(&group);
    let mut writer = Writer::start(folder.path(), &group, Duration::from_secs(5)).unwrap();
    let mut write = |step: u64| -> Written {
        let _ = writer.submit(job(&training, step));
        writer.wait().unwrap().unwrap()
    };
    assert_eq!(write(1).not_removed, None);
    // A file instead of a folder, so that it cannot be removed as a folder.
    let old = &list(folder.path()).unwrap()[0].path;
    fs::remove_dir_all(old).unwrap();
    fs::write(old, "").unwrap();
    let written = write(2);
    assert_eq!(written.step, 2);
    let reason = written.not_removed.unwrap();
    assert!(reason.contains("cannot remove"), "{reason}");
    assert_eq!(list(folder.path()).unwrap().len(), 1);
    assert_eq!(write(3).not_removed, None);
    assert_eq!(list(folder.path()).unwrap().len(), 1);
    // Occupies the name under which an older checkpoint is removed.
    let taken = folder.path().join(".writing-removed-0000000003");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("file"), "something").unwrap();
    assert_eq!(write(4).not_removed, None);
    assert!(!taken.exists());
}
