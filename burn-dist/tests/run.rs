//! `burn_dist::run` and the checkpoints of a loop, with processes that succeed, fail and panic.

mod world_support;

use std::process::{Command, ExitCode, exit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use burn_dist::checkpoint::{Checkpoints, list};
use burn_dist::parallel::{Parallel, Strategy};
use burn_dist::{Abort, GroupOptions, ProcessGroup, ReduceOp, Run, STOPPED_EARLY, StopSignal};
use world_support::*;

/// Not a test. The tests below start this executable to run it: first as the launcher, then as its
/// ranks.
#[test]
fn parts() {
    let Some(part) = part() else { return };
    if part == "stops" {
        exit(match stop_by_a_signal() == ExitCode::from(STOPPED_EARLY) {
            true => i32::from(STOPPED_EARLY),
            false => 1,
        });
    }
    if part == "nested" {
        exit(i32::from(!run_in_another_pool()));
    }
    let done = AtomicBool::new(false);
    let options = GroupOptions {
        abort: Some(Abort::after(Duration::from_millis(500))),
        ..GroupOptions::default()
    };
    let code = Run::new().nproc(2).options(options).start(|world, group| {
        let mut sum = [1 + world.rank() as i64];
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        println!("rank {} has the sum {}", world.rank(), sum[0]);
        match (part.as_str(), world.rank()) {
            ("fails", 1) => return Err("no such luck".into()),
            ("panics", 1) => panic!("out of ideas"),
            ("fails" | "panics", _) => group.barrier()?,
            ("computes", rank) => println!(
                "rank {rank} is thread {:?} of {}",
                rayon::current_thread_index(),
                rayon::current_num_threads()
            ),
            ("leaves", 0) => {
                std::thread::sleep(Duration::from_secs(2));
                println!("rank 0 has finished");
            }
            _ => {}
        }
        done.store(true, Ordering::Relaxed);
        Ok(())
    });
    // `ExitCode` cannot be read: the test harness must not print its own result.
    let failed = code != ExitCode::SUCCESS;
    exit(match (failed, part.as_str()) {
        (false, _) => 0,
        (true, "panics") if !done.load(Ordering::Relaxed) => 101,
        (true, _) => 1,
    });
}

/// Whether threads outside of that pool compute afterwards.
fn run_in_another_pool() -> bool {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build();
    let code = pool.unwrap().install(|| {
        Run::new().nproc(1).start(|_, _| {
            println!("a rank of thread {:?}", rayon::current_thread_index());
            Ok(())
        })
    });
    let outside = std::thread::spawn(|| rayon::join(|| 1, || 2)).join();
    code == ExitCode::SUCCESS && outside.is_ok_and(|sums| sums == (1, 2))
}

/// Rank 1 gets a signal. Both ranks stop after the same step.
fn stop_by_a_signal() -> ExitCode {
    Run::new().nproc(2).start(|world, group| {
        let stop = StopSignal::listen()?;
        for step in 1..=1000 {
            if (step, world.rank()) == (3, 1) {
                signal_hook::low_level::raise(signal_hook::consts::SIGUSR1)?;
            }
            if stop.on_any_rank(group)? {
                println!("rank {} stops after step {step}", world.rank());
                return Ok(ExitCode::from(STOPPED_EARLY));
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn play_part(name: &'static str) -> (Option<i32>, String) {
    play_with(play(name))
}

fn play_with(command: Command) -> (Option<i32>, String) {
    limited(move || {
        let (status, output) = Process::start(command).end();
        (status.code(), output)
    })
}

#[test]
fn ranks_are_started_and_connected() {
    let (code, output) = play_part("succeeds");
    assert_eq!(code, Some(0), "{output}");
    for rank in 0..2 {
        assert!(
            output.contains(&format!("rank {rank} has the sum 3")),
            "{output}"
        );
    }
}

#[test]
fn a_rank_is_the_first_thread_of_its_pool() {
    let cpus = available_parallelism().map_or(1, usize::from);
    let cases = [
        ("1", 1, None),
        ("2", cpus.min(2), (cpus > 1).then_some(0)),
        ("8000", cpus, (cpus > 1).then_some(0)),
    ];
    for (given, threads, index) in cases {
        let mut command = play("computes");
        command.env("RAYON_NUM_THREADS", given);
        let (code, output) = play_with(command);
        assert_eq!(code, Some(0), "{output}");
        for rank in 0..2 {
            let told = format!("rank {rank} is thread {index:?} of {threads}");
            assert!(output.contains(&told), "{output}");
        }
        // One rank warns for the node.
        let warnings = usize::from(given == "8000");
        let warned = "warning: RAYON_NUM_THREADS=8000, but this process may use";
        assert_eq!(output.matches(warned).count(), warnings, "{output}");
    }
}

#[test]
fn a_rank_in_another_pool_stays_there() {
    let mut command = play("nested");
    command.env_remove("RAYON_NUM_THREADS");
    let (code, output) = play_with(command);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("a rank of thread Some("), "{output}");
}

#[test]
fn a_signal_to_one_rank_stops_all_after_the_same_step() {
    let (code, output) = play_part("stops");
    assert_eq!(code, Some(i32::from(STOPPED_EARLY)), "{output}");
    for rank in 0..2 {
        let stopped = format!("rank {rank} stops after step 3");
        assert!(output.contains(&stopped), "{output}");
    }
}

#[test]
fn a_rank_that_is_done_does_not_end_the_others() {
    let (code, output) = play_part("leaves");
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("rank 0 has finished"), "{output}");
    assert!(!output.contains("error"), "{output}");
}

#[test]
fn the_rank_that_fails_is_named_with_its_error() {
    let (code, output) = play_part("fails");
    assert_ne!(code, Some(0), "{output}");
    assert!(output.contains("error on rank 1: no such luck"), "{output}");
    // Once, by the rank that has it.
    assert_eq!(output.matches("no such luck").count(), 1, "{output}");
}

#[test]
fn a_panic_ends_all_ranks_and_names_its_own() {
    let (code, output) = play_part("panics");
    assert_ne!(code, Some(0), "{output}");
    assert!(output.contains("out of ideas"), "{output}");
    assert!(output.contains("error: rank 1"), "{output}");
    assert!(!output.contains("bug"), "{output}");
}

/// Runs `rank` on two ranks, which are threads.
fn on_two<T: Send>(rank: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    let options = GroupOptions {
        timeout: Duration::from_secs(20),
        ..GroupOptions::default()
    };
    let groups = ProcessGroup::in_process(2, &options).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| scope.spawn(|| rank(group)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn train(parallel: &mut Parallel<Linear>, steps: std::ops::RangeInclusive<u64>) {
    let device = Device::flex().autodiff();
    for step in steps {
        let batch = Tensor::<2>::ones([4, 3], &device) * (step as f32);
        let loss = parallel.model().forward(batch).square().mean();
        parallel.backward(loss).unwrap();
        parallel.step(0.01).unwrap();
    }
}

fn parallel(group: &ProcessGroup) -> Parallel<Linear> {
    let model = LinearConfig::new(3, 2).init(&Device::flex().autodiff());
    Parallel::new(model, AdamWConfig::new(), Strategy::Zero2, group).unwrap()
}

#[test]
fn a_loop_resumes_from_its_newest_good_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let whole = on_two(|group| {
        let mut parallel = parallel(&group);
        let mut checkpoints = Checkpoints::open(folder.path(), &group).unwrap().keep(2);
        assert_eq!(checkpoints.resume(&mut parallel).unwrap(), None);
        for step in 1..=6 {
            train(&mut parallel, step..=step);
            let meta = serde_json::json!({ "half": step / 2 });
            checkpoints.save(step, &parallel, meta).unwrap();
        }
        checkpoints.finish().unwrap();
        train(&mut parallel, 7..=8);
        parallel.checksum().unwrap()
    });
    let steps: Vec<u64> = list(folder.path())
        .unwrap()
        .iter()
        .map(|found| found.step)
        .collect();
    assert_eq!(steps, [5, 6]);
    // The newest is damaged, so the one before counts.
    let newest = folder.path().join("step-0000000006");
    let shard = std::fs::read_dir(&newest)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| {
            path.extension()
                .is_some_and(|ending| ending == "safetensors")
        })
        .unwrap();
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let resumed = on_two(|group| {
        let mut parallel = parallel(&group);
        let checkpoints = Checkpoints::open(folder.path(), &group).unwrap();
        let at = checkpoints.resume(&mut parallel).unwrap().unwrap();
        assert_eq!((at.step, at.meta["half"].as_u64()), (5, Some(2)));
        train(&mut parallel, 6..=8);
        parallel.checksum().unwrap()
    });
    assert_eq!(resumed, whole);
}
