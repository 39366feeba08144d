//! Groups that go on after ranks are lost.

mod world_support;

use std::process::exit;
use std::thread;
use std::time::{Duration, Instant};

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use burn_dist::autograd::boundary;
use burn_dist::checkpoint::{CheckpointError, MemoryCopies, NodeMemory};
use burn_dist::group::Abort;
use burn_dist::launch::LocalLauncher;
use burn_dist::parallel::{Parallel, ParallelOptions, Strategy};
use burn_dist::world::{Launch, World};
use burn_dist::{Error, GroupOptions, ProcessGroup, ReduceOp, TransportKind};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use world_support::*;

const WAIT: Duration = Duration::from_secs(20);

fn options(transport: TransportKind) -> GroupOptions {
    GroupOptions {
        transport,
        connect_timeout: WAIT,
        first_timeout: WAIT,
        timeout: WAIT,
        ..GroupOptions::default()
    }
}

/// Runs `work` as every rank, each with its number.
fn on_ranks<R: Send>(
    size: usize,
    options: &GroupOptions,
    work: impl Fn(usize, ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let groups = ProcessGroup::in_process(size, options).unwrap();
    thread::scope(|scope| {
        let work = &work;
        let spawn = |(rank, group)| scope.spawn(move || work(rank, group));
        let threads: Vec<_> = groups.into_iter().enumerate().map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, R>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

fn sum(group: &ProcessGroup, own: usize) -> Result<i64, Error> {
    let mut sum = [own as i64];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}

#[test]
fn those_that_are_left_go_on_until_one_is_alone() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        // Each is lost in turn: the first one, the last one, one in between.
        let lost = [0, 4, 2, 1];
        let found = on_ranks(5, &options(transport), |me, mut group| {
            let mut seen = vec![(group.rank(), sum(&group, me).unwrap())];
            for lost in lost {
                if me == lost {
                    group.abort("it was told to");
                    return seen;
                }
                let error = loop {
                    if let Err(error) = sum(&group, me) {
                        break error.to_string();
                    }
                };
                assert!(error.contains("it was told to"), "{error}");
                group = group.reform(WAIT).unwrap();
                seen.push((group.rank(), sum(&group, me).unwrap()));
            }
            assert_eq!(group.size(), 1);
            seen
        });
        assert_eq!(found[3], [(3, 10), (2, 10), (2, 6), (1, 4), (0, 3)]);
        assert_eq!(found[1], [(1, 10), (0, 10), (0, 6), (0, 4)]);
        assert_eq!(found[0], [(0, 10)]);
    }
}

/// Nobody is lost: a rank may want a new group for a reason of its own.
#[test]
fn a_rank_that_asks_takes_all_others_along() {
    let found = on_ranks(3, &options(TransportKind::Auto), |me, group| {
        if me != 1 {
            while sum(&group, me).is_ok() {}
        }
        let group = group.reform(WAIT).unwrap();
        (group.rank(), group.size(), sum(&group, me).unwrap())
    });
    assert_eq!(found, [(0, 3, 3), (1, 3, 3), (2, 3, 3)]);
}

#[test]
fn a_rank_that_comes_too_late_is_left_out() {
    let begin = Instant::now();
    let found = on_ranks(3, &options(TransportKind::Auto), |me, group| {
        if me == 2 {
            // Alive, and busy with something else.
            thread::sleep(Duration::from_secs(3));
            return group.reform(WAIT).err().map(|error| error.to_string());
        }
        let group = group.reform(Duration::from_secs(1)).unwrap();
        assert_eq!((group.rank(), group.size()), (me, 2));
        assert_eq!(sum(&group, me).unwrap(), 1);
        None
    });
    let late = "the others went on without rank 2, because it came too late to re-form the world";
    assert_eq!(found, [None, None, Some(late.to_owned())]);
    assert!(begin.elapsed() < WAIT);
}

/// The time after which a failed process ends must not end one that goes on.
#[test]
fn a_process_that_goes_on_is_not_ended_for_its_former_group() {
    let options = GroupOptions {
        abort: Some(Abort::after(Duration::from_secs(2))),
        ..options(TransportKind::Auto)
    };
    on_ranks(3, &options, |me, group| {
        if me == 2 {
            return group.abort("it was told to");
        }
        while sum(&group, me).is_ok() {}
        let next = group.reform(WAIT).unwrap();
        thread::sleep(Duration::from_secs(3));
        assert_eq!(sum(&next, me).unwrap(), 1);
        drop(group);
    });
}

/// Not a test. The test below starts this executable to run it: first as the launcher, then as its
/// ranks.
#[test]
fn parts() {
    match (part(), World::from_env()) {
        (None, _) => {}
        (Some(_), Ok(world)) if world.launch() == Launch::Local => train_on(&world),
        (Some(part), _) => {
            let launcher = LocalLauncher::new(3).args(PARTS);
            let launcher = match part.as_str() {
                "outlive" => launcher.outlive(2),
                _ => launcher,
            };
            let outcome = launcher.run().unwrap();
            eprintln!("outcome: {outcome}");
            exit(outcome.exit_code().into());
        }
    }
}

const STEPS: u64 = 12;
/// The step in which a rank is killed.
const KILLED: u64 = 5;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    last: Linear,
}

impl Net {
    fn new() -> Self {
        let device = Device::flex().autodiff();
        let linear = |inputs: usize, outputs: usize| {
            let values = (0..inputs * outputs).map(|i| ((i * 37 % 101) as f32 - 50.0) / 100.0);
            let values = Tensor::<1>::from_floats(&*values.collect::<Vec<_>>(), &device);
            let mut linear = LinearConfig::new(inputs, outputs)
                .with_bias(false)
                .init(&device);
            linear.weight = Param::from_tensor(values.reshape([inputs, outputs]));
            linear
        };
        Self {
            first: linear(4, 8),
            last: linear(8, 1),
        }
    }

    fn loss(&self, step: u64, virtual_rank: usize) -> Tensor<1> {
        let device = Device::flex().autodiff();
        let value =
            |i: usize| ((step as usize * 31 + virtual_rank * 17 + i * 7) % 13) as f32 / 13.0;
        let inputs: Vec<f32> = (0..12).map(value).collect();
        let inputs = Tensor::<1>::from_floats(&*inputs, &device).reshape([3, 4]);
        let hidden = self.first.forward(boundary(inputs)).tanh();
        self.last.forward(boundary(hidden)).square().mean()
    }
}

/// Trains to the end, from the newest state in memory on.
fn train(
    group: &ProcessGroup,
    memory: &NodeMemory,
    first: bool,
) -> Result<String, CheckpointError> {
    let (copies, newest) = MemoryCopies::open(Some(memory.clone()), group)?;
    let mut copies = copies.unwrap();
    let options = ParallelOptions {
        strategy: Strategy::Zero2,
        virtual_ranks: Some(4),
        ..ParallelOptions::default()
    };
    let mut parallel = Parallel::new(Net::new(), AdamWConfig::new(), options, group)?;
    let mut done = 0;
    if let Some(source) = newest {
        parallel.restore(&source)?;
        done = source.manifest().step;
        parallel.set_steps(done);
    }
    assert_eq!(done, if first { 0 } else { KILLED - 1 });
    for step in done + 1..=STEPS {
        if first && step == KILLED && group.rank() == 1 {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        while let Some(share) = parallel.next_share() {
            let loss = parallel.model().loss(step, share.virtual_rank);
            parallel.backward(loss)?;
        }
        parallel.step(0.02)?;
        copies.keep(group, step, parallel.state()?, &json!(null))?;
    }
    Ok(parallel.verify_replicas()?.to_string())
}

fn train_on(world: &World) {
    // Shorter than the wait for the last rank, which is late. Waiting is not hanging.
    let abort = (world.rank() == 0).then(|| Abort::after(Duration::from_secs(1)));
    let options = GroupOptions {
        abort,
        ..options(TransportKind::Auto)
    };
    let mut group = ProcessGroup::connect_with(world, options).unwrap();
    let memory = NodeMemory::new(1).unwrap();
    let mut first = true;
    let checksum = loop {
        match train(&group, &memory, first) {
            Ok(checksum) => break checksum,
            Err(error) if part().as_deref() == Some("outlive") => {
                eprintln!("rank {}: {error}", group.rank());
                if group.rank() == 2 {
                    thread::sleep(Duration::from_secs(3));
                }
                group = group.reform(WAIT).unwrap();
                first = false;
            }
            Err(error) => panic!("{error}"),
        }
    };
    println!("checksum {checksum} on {} ranks", group.size());
}

/// Plays a part to its end. Returns its exit code and all it wrote.
fn play_out(part: &str) -> (Option<i32>, String) {
    let part = part.to_owned();
    let output = limited(move || play(&part).output().unwrap());
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code(), text.concat())
}

/// A rank is killed; the others go on in the same processes, from copies of its shard, and end as
/// one rank would.
#[test]
fn processes_outlive_a_killed_one_and_lose_no_step() {
    let options = ParallelOptions {
        virtual_ranks: Some(4),
        ..ParallelOptions::default()
    };
    let alone = ProcessGroup::single();
    let mut parallel = Parallel::new(Net::new(), AdamWConfig::new(), options, &alone).unwrap();
    for step in 1..=STEPS {
        while let Some(share) = parallel.next_share() {
            let loss = parallel.model().loss(step, share.virtual_rank);
            parallel.backward(loss).unwrap();
        }
        parallel.step(0.02).unwrap();
    }
    let expected = parallel.verify_replicas().unwrap().to_string();
    let (code, text) = play_out("outlive");
    assert_eq!(code, Some(0), "{text}");
    let line = format!("checksum {expected} on 2 ranks");
    assert_eq!(text.matches(&line).count(), 2, "{text}");
    let lost = "outcome: all ranks finished but 1 that the others outlived";
    assert!(text.contains(lost), "{text}");
}

/// Without `outlive`, the launcher ends the others.
#[test]
fn a_launcher_ends_all_unless_told_otherwise() {
    let (code, text) = play_out("all or none");
    assert_ne!(code, Some(0), "{text}");
    assert!(text.contains("outcome: rank 1 was killed"), "{text}");
}
