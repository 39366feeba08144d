//! `trainer launch`: agents of several nodes, on this machine. Ranks, agents and leaders die, and
//! the run goes on.

mod common;

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Finished, LIMIT, Running, TINY, Trial, free_port, processes_of, rank_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const SECRET: &str = "0f3a09c4d1e85b26a0f97c3e4d5b1862";

/// A run folder that several agents share, and their rendezvous.
struct Group {
    folder: TempDir,
    rendezvous: String,
    settings: Vec<String>,
}

impl Group {
    fn new(settings: &[&str]) -> Self {
        let usual = ["checkpoint.every_steps=50", "log.every_steps=10"];
        let settings = TINY
            .iter()
            .copied()
            .chain(usual)
            .chain(settings.iter().copied());
        Self {
            folder: tempfile::tempdir().unwrap(),
            rendezvous: format!("127.0.0.1:{}", free_port()),
            settings: settings.map(str::to_owned).collect(),
        }
    }

    /// A run that goes on for seconds.
    fn long() -> Self {
        Self::new(&["train.epochs=100"])
    }

    fn dir(&self) -> &Path {
        self.folder.path()
    }

    fn agent(&self, args: &[&str]) -> Trial {
        self.agent_with(args, &[])
    }

    /// An agent whose ranks get more arguments.
    fn agent_with(&self, args: &[&str], more: &[&str]) -> Trial {
        let run = self.dir().join("run");
        let run = run.to_str().unwrap();
        let mut all = vec!["launch", "--nproc", "2", "--rendezvous", &self.rendezvous];
        all.extend(args);
        all.extend(["--", "--run-dir", run]);
        for setting in &self.settings {
            all.extend(["--set", setting]);
        }
        all.extend(more);
        Trial::new(&all).env("BURN_DIST_SECRET", SECRET)
    }

    /// Starts an agent, and waits until it leads.
    fn leader(&self, args: &[&str]) -> Running {
        let mut running = self.agent(args).start();
        let deadline = Instant::now() + LIMIT;
        while std::net::TcpStream::connect(&self.rendezvous).is_err() {
            assert!(running.goes_on() && Instant::now() < deadline);
            sleep(Duration::from_millis(20));
        }
        running
    }

    fn lines(&self) -> Vec<Value> {
        let file = self.dir().join("run/metrics.jsonl");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let text = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Waits until the last generation has done so many steps, and returns it.
    fn wait_for(&self, generation: u64, steps: u64) -> Value {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            let lines = self.lines();
            let world = lines.iter().rev().find(|line| line["kind"] == "world");
            let last = lines.iter().rev().find(|line| line["kind"] == "train");
            if let (Some(world), Some(last)) = (world, last)
                && world["generation"] == generation
                && last["step"].as_u64() >= world["step"].as_u64().map(|begin| begin + steps)
            {
                return world.clone();
            }
            sleep(Duration::from_millis(10));
        }
        panic!(
            "no generation {generation} with {steps} steps: {:?}",
            self.lines()
        );
    }

    /// Ranks and nodes of all generations whose metrics were kept.
    fn worlds(&self) -> Vec<[u64; 2]> {
        let lines = self.lines();
        let worlds = lines.iter().filter(|line| line["kind"] == "world");
        worlds
            .map(|line| ["ranks", "nodes"].map(|key| line[key].as_u64().unwrap()))
            .collect()
    }

    #[track_caller]
    fn assert_complete(&self, steps: u64) {
        let lines = self.lines();
        let last = lines.iter().rev().find(|line| line["kind"] == "train");
        assert_eq!(last.unwrap()["step"], steps);
        assert!(lines.iter().any(|line| line["kind"] == "eval"));
    }

    #[track_caller]
    fn assert_nobody_left(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !processes_of(self.dir()).is_empty() {
            assert!(
                Instant::now() < deadline,
                "left behind: {:?}",
                processes_of(self.dir())
            );
            sleep(Duration::from_millis(20));
        }
    }
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

fn wait(running: Running) -> Finished {
    running.wait(LIMIT)
}

#[test]
fn a_rank_that_dies_is_started_again_with_all_others() {
    let group = Group::long();
    let first = group.leader(&["--nnodes", "2"]);
    let second = group.agent(&["--nnodes", "2"]).start();
    group.wait_for(1, 100);
    kill(rank_of(group.dir(), 3));
    let [first, second] = [first, second].map(wait);
    for agent in [&first, &second] {
        agent.assert_code(0);
        agent.assert_stderr(&[
            "generation 1: 4 ranks on 2 nodes",
            "generation 2: 4 ranks on 2 nodes, because rank 3 was killed by signal 9 (SIGKILL)",
        ]);
    }
    first.assert_stderr(&["restarting all ranks, restart 1 of 3"]);
    assert!(first.stdout.contains("continues from"), "{}", first.stdout);
    assert_eq!(group.worlds(), [[4, 2], [4, 2]]);
    group.assert_complete(2000);
    group.assert_nobody_left();
}

#[test]
fn the_other_node_goes_on_when_an_agent_dies() {
    let group = Group::long();
    let first = group.leader(&["--nnodes", "1:2"]);
    let second = group.agent(&["--nnodes", "1:2"]).start();
    group.wait_for(1, 100);
    kill(second.pid());
    let first = wait(first);
    first.assert_code(0);
    first.assert_stderr(&[
        "is gone (it closed the connection)",
        "generation 2: 2 ranks on 1 node",
    ]);
    let batch = "2 ranks instead of 4: the global batch stays 12 = 3 × 2 accumulation steps × 2";
    assert!(first.stdout.contains(batch), "{}", first.stdout);
    assert_eq!(wait(second).code, None);
    assert_eq!(group.worlds(), [[4, 2], [2, 1]]);
    group.assert_complete(2000);
    let report = std::fs::read_to_string(group.dir().join("run/report.html")).unwrap();
    assert!(
        report.contains("data-plot=\"world\""),
        "no curve of ranks and nodes"
    );
    group.assert_nobody_left();
}

#[test]
fn another_node_leads_when_the_leader_dies_and_one_that_returns_joins_it() {
    let group = Group::new(&["train.epochs=1000"]);
    let args = ["--nnodes", "1:2", "--join-after", "0"];
    let first = group.leader(&args);
    let second = group.agent(&args).start();
    group.wait_for(1, 100);
    kill(first.pid());
    let world = group.wait_for(2, 100);
    assert_eq!((&world["ranks"], &world["nodes"]), (&2.into(), &1.into()));
    assert!(
        world["reason"].as_str().unwrap().ends_with("is gone"),
        "{world}"
    );
    // It could listen at the rendezvous itself, but must find the group.
    let third = group.agent(&args).start();
    group.wait_for(3, 50);
    for pid in [second.pid(), third.pid()] {
        kill_process(pid, Signal::TERM).unwrap();
    }
    let [second, third] = [second, third].map(wait);
    second.assert_code(75);
    second.assert_stderr(&["the leading node", "this node leads the group now"]);
    third.assert_code(75);
    third.assert_stderr(&["joined the group", "generation 3: 4 ranks on 2 nodes"]);
    wait(first);
    assert_eq!(group.worlds(), [[4, 2], [2, 1], [4, 2]]);
    group.assert_nobody_left();
}

#[test]
fn the_first_of_two_others_leads_when_the_leader_dies() {
    let group = Group::new(&["train.epochs=1000"]);
    let first = group.leader(&["--nnodes", "1:3"]);
    let mut others = Vec::new();
    for _ in 0..2 {
        others.push(group.agent(&["--nnodes", "1:3"]).start());
        sleep(Duration::from_millis(500));
    }
    group.wait_for(1, 50);
    kill(first.pid());
    let world = group.wait_for(2, 50);
    assert_eq!((&world["ranks"], &world["nodes"]), (&4.into(), &2.into()));
    for agent in &others {
        kill_process(agent.pid(), Signal::TERM).unwrap();
    }
    let others: Vec<Finished> = others.into_iter().map(wait).collect();
    for agent in &others {
        agent
            .assert_code(75)
            .assert_stderr(&["the leading node", "generation 2: 4 ranks on 2"]);
    }
    let led = |agent: &&Finished| agent.stderr.contains("this node leads the group now");
    assert_eq!(others.iter().filter(led).count(), 1);
    wait(first);
    group.assert_nobody_left();
}

/// A leader that was started again forms no second group: the other agent asks it first, and tells
/// it of the generations before. When all agents are killed, their ranks end too.
#[test]
fn a_leader_that_returns_at_once_continues_the_run() {
    let group = Group::new(&["train.epochs=1000"]);
    let args = ["--nnodes", "1:2"];
    let first = group.leader(&args);
    let second = group.agent(&args).start();
    group.wait_for(1, 50);
    // The second one notices later.
    kill_process(second.pid(), Signal::STOP).unwrap();
    kill(first.pid());
    wait(first);
    let third = group.leader(&args);
    kill_process(second.pid(), Signal::CONT).unwrap();
    let world = group.wait_for(2, 50);
    assert_eq!((&world["ranks"], &world["nodes"]), (&4.into(), &2.into()));
    for pid in [second.pid(), third.pid()] {
        kill(pid);
    }
    let [second, third] = [second, third].map(wait);
    second.assert_stderr(&["the leading node", "joined the group led from"]);
    third.assert_stderr(&["joined, 2 ranks", "generation 2: 4 ranks on 2 nodes"]);
    group.assert_nobody_left();
}

#[test]
fn of_two_groups_that_meet_the_younger_joins_the_other() {
    let group = Group::new(&["train.epochs=1000"]);
    let args = ["--nnodes", "1:2", "--join-after", "0"];
    let first = group.leader(&args);
    let second = group.agent(&args).start();
    group.wait_for(1, 50);
    kill(first.pid());
    wait(first);
    // Keeps the second one from the rendezvous, as if that were another host's.
    let deadline = Instant::now() + LIMIT;
    let taken = loop {
        match std::net::TcpListener::bind(&group.rendezvous) {
            Ok(listener) => break Some(listener),
            // The second one was faster.
            Err(_) if processes_of(group.dir()).len() <= 3 => break None,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    let is_kept_off = taken.is_some();
    if is_kept_off {
        group.wait_for(2, 50);
        kill_process(second.pid(), Signal::STOP).unwrap();
        drop(taken);
    }
    let third = match is_kept_off {
        true => group.leader(&args),
        false => group.agent(&args).start(),
    };
    kill_process(second.pid(), Signal::CONT).unwrap();
    group.wait_for(3, 50);
    for pid in [second.pid(), third.pid()] {
        kill_process(pid, Signal::TERM).unwrap();
    }
    let [second, third] = [second, third].map(wait);
    second.assert_stderr(&["this node leads the group now", "joined, 2 ranks"]);
    third.assert_stderr(&[
        "joined the group led from",
        "generation 3: 4 ranks on 2 nodes",
    ]);
    if is_kept_off {
        third.assert_stderr(&["another group is ahead; joining it"]);
    }
    group.assert_nobody_left();
}

/// As when the network or the node's kernel fails: connections stay open, and nothing comes.
#[test]
fn a_silent_agent_is_left_behind_and_joins_again() {
    let group = Group::new(&["train.epochs=4000"]);
    let args = ["--nnodes", "1:2", "--join-after", "0"];
    let first = group.leader(&args);
    let second = group.agent(&args).start();
    group.wait_for(1, 50);
    kill_process(second.pid(), Signal::STOP).unwrap();
    let world = group.wait_for(2, 50);
    assert_eq!((&world["ranks"], &world["nodes"]), (&2.into(), &1.into()));
    kill_process(second.pid(), Signal::CONT).unwrap();
    group.wait_for(3, 50);
    for pid in [second.pid(), first.pid()] {
        kill_process(pid, Signal::TERM).unwrap();
    }
    let [first, second] = [first, second].map(wait);
    first
        .assert_code(75)
        .assert_stderr(&["it was silent for 10 s"]);
    second
        .assert_code(75)
        .assert_stderr(&["the leading node", "joined the group"]);
    assert_eq!(group.worlds(), [[4, 2], [2, 1], [4, 2]]);
    group.assert_nobody_left();
}

#[test]
fn a_late_node_is_taken_in_after_a_checkpoint() {
    let group = Group::long();
    let args = ["--nnodes", "1:2", "--join-wait", "0", "--join-after", "0"];
    let first = group.leader(&args);
    group.wait_for(1, 50);
    let second = group.agent(&args).start();
    let [first, second] = [first, second].map(wait);
    first.assert_code(0);
    second.assert_code(0);
    first.assert_stderr(&[
        "generation 1: 2 ranks on 1 node",
        "the ranks save and start again",
    ]);
    second.assert_stderr(&["generation 2: 4 ranks on 2 nodes, because node"]);
    assert_eq!(group.worlds(), [[2, 1], [4, 2]]);
    // Nothing was repeated: the ranks saved before they stopped.
    let lines = group.lines();
    let steps = lines.iter().filter(|line| line["kind"] == "train");
    let steps: Vec<u64> = steps.map(|line| line["step"].as_u64().unwrap()).collect();
    let expected: Vec<u64> = (1..=200).map(|line| line * 10).collect();
    assert_eq!(steps, expected);
    group.assert_nobody_left();
}

#[test]
fn a_node_that_is_told_to_stop_leaves_the_others_going_on() {
    let group = Group::long();
    let first = group.leader(&["--nnodes", "1:2"]);
    let second = group.agent(&["--nnodes", "1:2"]).start();
    group.wait_for(1, 100);
    // The leader, so that another one takes over.
    kill_process(first.pid(), Signal::TERM).unwrap();
    let [first, second] = [first, second].map(wait);
    first.assert_code(75);
    second.assert_code(0);
    second.assert_stderr(&[
        "this node leads the group now",
        "generation 2: 2 ranks on 1 node",
    ]);
    group.assert_complete(2000);
    group.assert_nobody_left();
}

/// A node with another configuration must not disturb the run.
#[test]
fn other_options_are_refused() {
    let group = Group::new(&["train.epochs=1000"]);
    let first = group.leader(&["--nnodes", "1:2", "--join-after", "0"]);
    group.wait_for(1, 10);
    let more = ["--set", "optimizer.lr=0.01"];
    let other = group.agent_with(&["--nnodes", "1:2"], &more).run();
    other.assert_code(2).assert_stderr(&[
        "all nodes need the same options: this node has `--set optimizer.lr=0.01` where the \
         leader has `--resume auto`",
    ]);
    let other = group.agent(&["--nnodes", "1:3"]).run();
    other
        .assert_code(2)
        .assert_stderr(&["this node has `--nnodes 1:3`"]);
    kill(first.pid());
    let first = wait(first);
    assert!(!first.stderr.contains("generation 2"), "{}", first.stderr);
    group.assert_nobody_left();
}

/// A file with settings that was changed after the others had read it.
#[test]
fn another_configuration_is_refused() {
    let group = Group::new(&["train.epochs=1000"]);
    let config = group.dir().join("config.toml");
    let args = ["--nnodes", "1:2", "--join-after", "0"];
    let more = ["--config", config.to_str().unwrap()];
    let digits = include_str!("../../configs/digits.toml");
    let with_decay = |decay: &str| format!("{digits}\n[ema]\ndecay = {decay}\n");
    std::fs::write(&config, with_decay("0.9")).unwrap();
    let first = group.agent_with(&args, &more).start();
    group.wait_for(1, 10);
    std::fs::write(&config, with_decay("0.8")).unwrap();
    let other = group.agent_with(&args, &more).run();
    other
        .assert_code(2)
        .assert_stderr(&["this node has `ema.decay = 0.8` where the leader has `ema.decay = 0.9`"]);
    kill(first.pid());
    let first = wait(first);
    assert!(!first.stderr.contains("generation 2"), "{}", first.stderr);
    group.assert_nobody_left();
}

/// A node that cannot train must not end the run of the others.
#[test]
fn a_new_node_whose_ranks_fail_is_left_out() {
    let group = Group::new(&["train.epochs=200", "checkpoint.every_steps=500"]);
    let args = ["--nnodes", "1:2", "--join-wait", "0", "--join-after", "0"];
    let first = group.leader(&args);
    group.wait_for(1, 50);
    let second = group
        .agent(&args)
        .env("BURN_DIST_KERNELS_ISA", "none")
        .run();
    second
        .assert_code(2)
        .assert_stderr(&["the group goes on without this node: rank"]);
    let first = wait(first);
    first.assert_code(0).assert_stderr(&[
        "generation 2: 4 ranks on 2 nodes",
        "going on without the new node",
        "generation 3: 2 ranks on 1 node",
    ]);
    assert!(!first.stderr.contains("restart 1 of"), "{}", first.stderr);
    group.assert_complete(4000);
    group.assert_nobody_left();
}

/// Nodes that wait for a place know the others: they go on after the leader.
#[test]
fn a_node_that_waits_leads_when_all_others_are_gone() {
    let group = Group::new(&["train.epochs=300"]);
    let args = ["--nnodes", "1", "--join-wait", "0"];
    let first = group.leader(&args);
    group.wait_for(1, 50);
    let second = group.agent(&args).start();
    let told = "waits for a place: --nnodes allows 1 node to train";
    second.wait_to_say(told);
    // The whole node at once.
    let ranks = [0, 1].map(|rank| rank_of(group.dir(), rank));
    kill(first.pid());
    ranks.into_iter().for_each(kill);
    let second = wait(second);
    second.assert_code(0).assert_stderr(&[
        told,
        "this node leads the group now",
        "generation 2: 2 ranks on 1",
    ]);
    wait(first);
    group.assert_complete(6000);
    group.assert_nobody_left();
}

#[test]
fn another_secret_is_refused() {
    let group = Group::new(&[]);
    let first = group.leader(&["--nnodes", "2", "--join-timeout", "3"]);
    let second = group.agent(&["--nnodes", "2"]);
    let second = second
        .env("BURN_DIST_SECRET", "another secret, long enough")
        .run();
    second
        .assert_code(2)
        .assert_stderr(&["error: the agent at 127.0.0.1:", "another secret"]);
    let first = wait(first);
    first.assert_code(1);
    first.assert_stderr(&["error: only 1 of at least 2 nodes came within 3 s"]);
    assert!(!group.dir().join("run").exists());
    group.assert_nobody_left();
}

#[test]
fn an_agent_that_finds_nobody_says_so() {
    // A port where nobody listens, at an address of this machine that it cannot bind.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let group = Group {
        rendezvous: listener.local_addr().unwrap().to_string(),
        ..Group::new(&[])
    };
    let alone = group.agent(&["--nnodes", "2", "--join-timeout", "1"]).run();
    alone
        .assert_code(1)
        .assert_stderr(&["error: found no agent at 127.0.0.1:"]);
    group.assert_nobody_left();
}

#[test]
fn a_failure_that_repeats_ends_with_the_code_of_the_rank() {
    let group = Group::new(&["optimizer.lr=1e30"]);
    let agent = group.agent(&["--nnodes", "1"]).run();
    agent.assert_code(1).assert_stderr(&[
        "restarting all ranks, restart 1 of 3",
        "generation 2: 2 ranks on 1 node, because rank",
        "the same error again, so the ranks are not restarted",
    ]);
    let twice = Group::new(&[]);
    twice.agent(&["--nnodes", "1"]).run().assert_code(0);
    // A late agent finds that the run is done.
    twice.agent(&["--nnodes", "1"]).run().assert_code(0);
    // Another run in the same folder is refused, and a restart does not help.
    let refused = twice
        .agent_with(&["--nnodes", "1"], &["--resume", "off"])
        .run();
    refused.assert_code(2);
    assert!(
        !refused.stderr.contains("generation 2"),
        "{}",
        refused.stderr
    );
    for group in [group, twice] {
        group.assert_nobody_left();
    }
}

#[test]
fn one_node_needs_no_rendezvous_and_wrong_arguments_are_explained() {
    let launch = |args: &[&str]| Trial::new(&[&["launch", "--standalone"], args].concat()).run();
    for (args, told) in [
        (
            &["--", "--config", "digits.toml"][..],
            "needs --run-dir after the --",
        ),
        (
            &["--", "--run-dir", "x", "--nproc", "2"],
            "go before the --",
        ),
        (&["--", "eval", "x"], "starts trainings"),
        (&["--", "--run-dir", "x", "--resume", "y"], "not a path"),
        (
            &["--", "--run-dir", "x", "--set", "train.epoch=2"],
            "train.epoch",
        ),
    ] {
        let finished = launch(args);
        finished.assert_code(2).assert_stderr(&[told]);
    }
    let wrong = Trial::new(&["launch", "--rendezvous", "node1", "--", "--run-dir", "x"]).run();
    wrong
        .assert_code(2)
        .assert_stderr(&["`node1` is not HOST:PORT"]);
    let none = Trial::new(&["launch", "--nnodes", "2", "--", "--run-dir", "x"]).run();
    none.assert_code(2).assert_stderr(&["--rendezvous"]);
}

/// After losses, without a checkpoint on disk. At most the step under way is done again.
#[test]
fn copies_in_memory_outlive_a_rank_and_a_node() {
    let group = Group::new(&[
        "train.epochs=1000",
        "train.max_steps=1500",
        "log.every_steps=1",
        "checkpoint.every_steps=0",
        "checkpoint.every_epochs=1000",
        "checkpoint.best=false",
        "checkpoint.in_memory=true",
    ]);
    let args = ["--nnodes", "1:2"];
    let first = group.leader(&args);
    let second = group.agent(&args).start();
    let done = |lines: &[Value]| trained(lines).into_iter().max().unwrap();
    group.wait_for(1, 100);
    kill(rank_of(group.dir(), 3));
    let before = done(&group.lines());
    let world = group.wait_for(2, 100);
    let begins = world["step"].as_u64().unwrap();
    assert!(begins >= before, "{begins} after {before} steps");
    assert_eq!((&world["ranks"], &world["nodes"]), (&4.into(), &2.into()));
    // The whole node at once, so that no rank saves before it ends.
    let ranks = [0, 1].map(|rank| rank_of(group.dir(), rank));
    kill(first.pid());
    ranks.into_iter().for_each(kill);
    let before = done(&group.lines());
    let world = group.wait_for(3, 100);
    let begins = world["step"].as_u64().unwrap();
    assert!(begins >= before, "{begins} after {before} steps");
    assert_eq!((&world["ranks"], &world["nodes"]), (&2.into(), &1.into()));
    let second = wait(second);
    second.assert_code(0);
    let from = "continues from the state in memory after step";
    assert!(second.stdout.contains(from), "{}", second.stdout);
    wait(first);
    assert_eq!(
        trained(&group.lines()),
        Vec::from_iter(1..=1500),
        "a step is missing or twice"
    );
    group.assert_nobody_left();
}

#[test]
fn copies_in_memory_of_every_tenth_state_lose_at_most_ten_steps() {
    let group = Group::new(&[
        "train.epochs=1000",
        "train.max_steps=600",
        "log.every_steps=1",
        "checkpoint.every_steps=0",
        "checkpoint.every_epochs=1000",
        "checkpoint.best=false",
        "checkpoint.in_memory=true",
        "checkpoint.in_memory_every_steps=10",
    ]);
    let agent = group.leader(&[]);
    group.wait_for(1, 100);
    kill(rank_of(group.dir(), 1));
    let before = trained(&group.lines()).into_iter().max().unwrap();
    let world = group.wait_for(2, 100);
    let begins = world["step"].as_u64().unwrap();
    assert_eq!(begins % 10, 1, "step {begins} does not follow a copy");
    assert!(begins + 9 >= before, "{begins} after {before} steps");
    wait(agent).assert_code(0);
    assert_eq!(trained(&group.lines()), Vec::from_iter(1..=600));
    group.assert_nobody_left();
}

/// The steps in the metrics.
fn trained(lines: &[Value]) -> Vec<u64> {
    let steps = lines.iter().filter(|line| line["kind"] == "train");
    steps.map(|line| line["step"].as_u64().unwrap()).collect()
}
