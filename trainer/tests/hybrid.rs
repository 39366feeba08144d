//! Sharding within sets of ranks that replicate each other, on one host and on two simulated hosts.

mod common;

use std::time::Duration;

use common::{Finished, LIMIT, Running, Trial, can_pretend_hosts, free_port};
use rustix::process::{Signal, kill_process};

const STEPS: &str = "train.max_steps=15";

#[track_caller]
fn assert_alike(finished: &Finished, expected: &Finished) {
    let (own, expected) = (finished, expected);
    assert_eq!(own.losses().len(), 15);
    for (a, b) in own.losses().iter().zip(expected.losses()) {
        assert!((a - b).abs() <= 1e-6 * b.abs(), "{a} and {b}");
    }
    let (own, expected) = (own.metrics("eval"), expected.metrics("eval"));
    assert_eq!(own[0]["samples"], 101);
    assert_eq!(own[0]["accuracy"], expected[0]["accuracy"]);
}

#[test]
fn sets_of_two_ranks_train_like_plain_data_parallelism() {
    let train = |settings: &[&str]| {
        let settings = [settings, &[STEPS, "ema.decay=0.9", "train.clip_norm=0.5"]].concat();
        let finished = Trial::tiny(&["--nproc", "4"], &settings).run();
        finished.assert_code(0).assert_nobody_left();
        finished
    };
    let expected = train(&[]);
    for strategy in ["zero-1", "zero-3"] {
        let strategy = format!("parallel.strategy={strategy}");
        let own = train(&[&strategy, "parallel.shard_within=2"]);
        let told = "shards over 2 ranks (shared memory), 2 replicas (shared memory)";
        assert!(own.stdout.contains(told), "{}", own.stdout);
        assert_alike(&own, &expected);
    }
}

#[test]
fn what_does_not_divide_is_refused_before_anything_starts() {
    for (settings, part) in [
        (
            ["parallel.strategy=zero-3", "parallel.shard_within=3"],
            "multiple of 3",
        ),
        (
            ["parallel.strategy=ddp", "parallel.shard_within=2"],
            "shards nothing",
        ),
    ] {
        let finished = Trial::tiny(&["--nproc", "4"], &settings).run();
        finished
            .assert_code(2)
            .assert_stderr(&[part, "parallel.shard_within"]);
        finished.assert_no_files(&[]);
    }
}

/// Starts four ranks as another launcher would, on hosts with these names.
fn start_on(hosts: [&str; 4], settings: &[&str]) -> Vec<Running> {
    let port = free_port();
    let start = |(rank, host): (usize, &str)| {
        Trial::tiny(&[], settings)
            // As on one node, because the store's address belongs to one node only.
            .rank(rank, 4, &port)
            .on_host(host)
            .start()
    };
    hosts.into_iter().enumerate().map(start).collect()
}

const NODE: [&str; 2] = ["parallel.strategy=zero-3", "parallel.shard_within=node"];

#[test]
fn nodes_hold_copies_of_each_other() {
    if !can_pretend_hosts() {
        eprintln!("SKIPPED: nodes_hold_copies_of_each_other: no right to change the host name");
        return;
    }
    let train = |hosts, settings: &[&str]| -> Vec<Finished> {
        let settings = [settings, &[STEPS]].concat();
        let ranks = start_on(hosts, &settings);
        ranks.into_iter().map(|rank| rank.wait(LIMIT)).collect()
    };
    let expected = train(["a"; 4], &[]);
    // Any placement of ranks on nodes.
    let placements = [
        (["a", "a", "b", "b"], "transport shared memory and TCP; "),
        (["a", "b", "b", "a"], "transport TCP; "),
    ];
    for (hosts, transport) in placements {
        let own = train(hosts, &NODE);
        for rank in &own {
            rank.assert_code(0).assert_nobody_left();
        }
        let told = [
            "4 ranks on 2 nodes",
            transport,
            "zero-3 shards over 2 ranks (shared memory), 2 replicas (TCP)",
        ];
        for part in told {
            assert!(own[0].stdout.contains(part), "{}", own[0].stdout);
        }
        assert_alike(&own[0], &expected[0]);
    }
    // A rank may report the failure of another one in place of its own.
    let refused = train(["a", "a", "b", "a"], &NODE);
    let told = refused.iter().map(|rank| &*rank.assert_code(1).stderr);
    let told = told.collect::<String>();
    let words = "the nodes have 3, 1. Start the same number on each";
    assert!(told.contains(words), "{told}");
}

#[test]
fn a_killed_rank_ends_all_sets_and_is_named_once() {
    if !can_pretend_hosts() {
        eprintln!("SKIPPED: a_killed_rank_ends_all_sets: no right to change the host name");
        return;
    }
    // With `auto` the ranks of a node share memory.
    for (transport, victim) in [("auto", 3), ("auto", 0), ("tcp", 1)] {
        let transport = format!("parallel.transport={transport}");
        let endless = ["train.epochs=1000000", "parallel.timeout_seconds=20"];
        let settings = [&NODE[..], &endless, &[&transport]].concat();
        let mut ranks = start_on(["a", "a", "b", "b"], &settings);
        ranks[0].wait_for_metrics(5);
        kill_process(ranks[victim].pid(), Signal::KILL).unwrap();
        for (rank, running) in ranks.into_iter().enumerate() {
            let finished = running.wait(Duration::from_secs(20));
            finished.assert_nobody_left();
            if rank != victim {
                finished.assert_code(1);
            }
            // The main rank speaks for all, or the next one if it is gone.
            if rank == usize::from(victim == 0) {
                finished.assert_stderr(&[&format!("rank {victim} ")]);
            }
        }
        let left = std::fs::read_dir("/dev/shm").unwrap().flatten();
        let left: Vec<_> = left
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains("burn"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
