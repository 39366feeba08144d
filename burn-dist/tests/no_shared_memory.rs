//! Ranks of which one cannot create shared memory, as in a container without it: none of them uses
//! it.

mod world_support;

use std::num::NonZeroUsize;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn_dist::launch::LocalLauncher;
use burn_dist::world::{Launch, World};
use burn_dist::{GroupOptions, ProcessGroup, ReduceOp, TransportKind};
use rustix::process::{Resource, Rlimit, setrlimit};
use world_support::*;

const RANKS: usize = 4;
const WITHOUT: usize = 3;

/// Not a test. The tests below start this executable to run it: first as the launcher, then as its
/// ranks.
#[test]
fn parts() {
    match (part(), World::from_env()) {
        (None, _) => {}
        (Some(part), Ok(world)) if world.launch() == Launch::Local => rank(&part, &world),
        (Some(_), _) => {
            let launcher = LocalLauncher::new(RANKS).args(PARTS);
            exit(launcher.run().unwrap().exit_code().into());
        }
    }
}

fn rank(part: &str, world: &World) {
    tracing_subscriber::fmt().without_time().init();
    if world.rank() == WITHOUT {
        refuse_files();
    }
    let options = GroupOptions {
        transport: match part {
            "shared memory alone" => TransportKind::Shm,
            _ => TransportKind::Auto,
        },
        ranks_per_node: NonZeroUsize::new(2).filter(|_| part == "two nodes"),
        connect_timeout: LIMIT,
        ..GroupOptions::default()
    };
    let group = match ProcessGroup::connect_with(world, options) {
        Ok(group) => group,
        Err(error) => {
            eprintln!("error: {error}");
            exit(1);
        }
    };
    println!("transport {}", group.transport());
    // Small and large messages take different paths.
    for len in [3, 50_000] {
        let mut data = vec![world.rank() as f32; len];
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, vec![6.0; len]);
    }
    group.barrier().unwrap();
}

/// Forbids contents in all files of this process from now on.
fn refuse_files() {
    let heard = Arc::new(AtomicBool::new(false));
    // Otherwise the signal would end the process.
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, heard).unwrap();
    let limit = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Fsize, limit).unwrap();
}

/// Returns the launcher's exit code, and the output of the launcher and the ranks.
fn run(part: &'static str) -> (i32, String) {
    limited(move || {
        let (status, words) = Process::start(play(part)).end();
        (status.code().unwrap(), words)
    })
}

#[test]
fn ranks_of_one_host_use_tcp_instead() {
    let (code, words) = run("one node");
    assert_eq!(code, 0, "{words}");
    assert_eq!(words.matches("transport tcp").count(), RANKS, "{words}");
    // Once, by rank 0, and with the rank that causes it.
    assert_eq!(words.matches("using TCP instead").count(), 1, "{words}");
    assert!(words.contains(&format!("rank {WITHOUT}")), "{words}");
}

#[test]
fn ranks_of_several_nodes_are_one_ring_instead() {
    let (code, words) = run("two nodes");
    assert_eq!(code, 0, "{words}");
    assert_eq!(words.matches("transport tcp").count(), RANKS, "{words}");
    let instead = "using one ring through all ranks instead";
    assert_eq!(words.matches(instead).count(), 1, "{words}");
    assert!(words.contains(&format!("rank {WITHOUT}")), "{words}");
}

#[test]
fn who_asks_for_shared_memory_gets_an_error() {
    let (code, words) = run("shared memory alone");
    assert_eq!(code, 1, "{words}");
    assert!(words.contains("creating shared memory"), "{words}");
    assert!(words.contains(&format!("rank {WITHOUT}")), "{words}");
}
