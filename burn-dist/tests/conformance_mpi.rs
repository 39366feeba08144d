//! Runs the suite on MPI: its transport and its own collectives, with ranks that are processes.
//!
//! By hand or under `cargo test`, this program starts itself under `mpirun` (or the launcher in
//! BURN_DIST_MPIRUN) with 2 to 6 ranks. As one of these ranks it runs the suite.

#[path = "conformance/suite.rs"]
#[macro_use]
mod suite;

use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use burn_dist::group::Algorithm;
use burn_dist::launch::abort_all;
use burn_dist::world::{Launch, World};
use burn_dist::{GroupOptions, ProcessGroup, TransportKind};
use rustix::process::{Pid, Signal, kill_process};
use suite::{Cluster, Order, Outcome, Ranks};

/// Rank 0's message when all ranks have passed everything.
const PASSED: &str = "  all passed";

/// Ranks in a world of two nodes where all are tested, and in one where two on each are.
const NODES: usize = 4;
const DIVIDED_NODES: usize = 6;

/// Tested ranks per node.
const ON_NODE: usize = 2;

/// Limit for all ranks of one size together.
const LIMIT: Duration = Duration::from_secs(240);

/// Limit for the launcher's end after that. Open MPI's, with PMIx 4.2, sometimes waits for one of
/// its own threads forever.
const FAREWELL: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let world = World::from_env().unwrap();
    match world.launch() {
        Launch::Mpi => be_a_rank(&world),
        _ => start_all(),
    }
}

/// Runs all sizes; prints in the format of a test harness.
fn start_all() -> ExitCode {
    let program = std::env::current_exe().unwrap();
    let mpirun = std::env::var("BURN_DIST_MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let mut failed = 0;
    let sizes = 2..=DIVIDED_NODES;
    let all = sizes.clone().count();
    for size in sizes {
        let start = Instant::now();
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", &LIMIT.as_secs().to_string(), &mpirun])
            .args(["-n", &size.to_string()])
            .arg(&program)
            .stdin(Stdio::null())
            // Open MPI refuses root, and more ranks than CPUs, unless told otherwise.
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
            .env("OMPI_MCA_mpi_yield_when_idle", "1");
        // Not by the exit status. The tests break groups on purpose; such a process does not wait
        // for the others in MPI's finalization, and launchers report that as a failure.
        let passed = run(&mut command);
        let verdict = if passed { "ok" } else { "FAILED" };
        failed += usize::from(!passed);
        println!(
            "test mpi_with_{size}_ranks ... {verdict} ({:.1?})",
            start.elapsed()
        );
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "test result: {verdict}. {} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out",
        all - failed
    );
    ExitCode::from(u8::from(failed > 0))
}

/// Runs the ranks, prints their output, and returns true if all of them passed everything.
fn run(command: &mut Command) -> bool {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut passed = false;
    for line in lines.by_ref().map_while(Result::ok) {
        println!("{line}");
        if line == PASSED {
            passed = true;
            break;
        }
    }
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if passed && start.elapsed() > FAREWELL {
            println!("  ended the launcher, which did not end");
            // The launcher forwards the signal.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            child.wait().unwrap();
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    passed
}

fn be_a_rank(world: &World) -> ExitCode {
    // A rank that panics must not leave the others waiting in MPI.
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        abort_all(101);
    }));
    let control = ProcessGroup::connect(world).unwrap();
    let clusters = [
        ("messages", Algorithm::Auto, false, false),
        ("collectives", Algorithm::Mpi, false, false),
        ("messages in a part", Algorithm::Auto, true, false),
        ("collectives in a part", Algorithm::Mpi, true, false),
        ("nodes", Algorithm::Auto, false, true),
        ("nodes first", Algorithm::NodeFirst, false, true),
        ("nodes in a part", Algorithm::Auto, true, true),
        ("nodes first in a part", Algorithm::NodeFirst, true, true),
    ];
    for (name, algorithm, divided, on_nodes) in clusters {
        let runs = match (divided, on_nodes) {
            (true, true) => world.size() == DIVIDED_NODES,
            (false, true) => world.size() == NODES,
            (true, false) => (3..DIVIDED_NODES).contains(&world.size()),
            (false, false) => world.size() < DIVIDED_NODES,
        };
        if !runs {
            continue;
        }
        let cluster = Mpi {
            world,
            control: &control,
            algorithm,
            divided,
            on_nodes,
        };
        macro_rules! run {
            ($($test:ident),* $(,)?) => {$(
                suite::$test(&cluster);
                control.barrier().unwrap();
                if world.is_main() {
                    println!("  {name}: {} with {} ranks", stringify!($test), world.size());
                }
            )*};
        }
        for_each_test!(run);
    }
    if world.is_main() {
        println!("{PASSED}");
    }
    // A launcher ends all ranks when the first leaves without MPI's finalization.
    control.barrier().unwrap();
    ExitCode::SUCCESS
}

/// This process's rank under MPI.
struct Mpi<'a> {
    world: &'a World,
    /// Still works after the group under test was broken on purpose.
    control: &'a ProcessGroup,
    algorithm: Algorithm,
    /// True if only some of the ranks are tested, in reverse order.
    divided: bool,
    /// True if the ranks count as two nodes.
    on_nodes: bool,
}

impl Mpi<'_> {
    /// Returns the tested ranks, in order.
    fn ranks(&self) -> Vec<usize> {
        let all = 0..self.world.size();
        match self.divided {
            true => all.rev().filter(|rank| suite::colour(*rank) == 0).collect(),
            false => all.collect(),
        }
    }
}

impl Cluster for Mpi<'_> {
    fn sizes(&self) -> Vec<usize> {
        vec![self.ranks().len()]
    }

    fn several(&self) -> usize {
        match self.on_nodes {
            true => 2 * ON_NODE,
            false => 3,
        }
    }

    fn order(&self) -> Option<Order> {
        let on_each_node = match self.algorithm {
            Algorithm::Auto => 1,
            Algorithm::NodeFirst => ON_NODE,
            Algorithm::Mpi => return None,
        };
        Some(Order {
            on_each_node,
            in_turns: false,
        })
    }

    fn connect(&self, _size: usize, timeout: Duration) -> impl Ranks {
        let (transport, name) = match self.on_nodes {
            true => (TransportKind::Auto, "shm+mpi"),
            false => (TransportKind::Mpi, "mpi"),
        };
        let options = GroupOptions {
            transport,
            ranks_per_node: NonZeroUsize::new(self.world.size() / 2).filter(|_| self.on_nodes),
            algorithm: self.algorithm,
            connect_timeout: Duration::from_secs(30),
            first_timeout: timeout,
            timeout,
            ..GroupOptions::default()
        };
        let mut group = ProcessGroup::connect_with(self.world, options).unwrap();
        assert_eq!(group.transport(), name);
        let ranks = self.ranks();
        if self.divided {
            let key = (group.size() - group.rank()) as u64;
            group = group.split(suite::colour(group.rank()), key).unwrap();
        }
        // A group that breaks also interrupts a rank that is still connecting.
        self.control.barrier().unwrap();
        let takes_part = ranks.contains(&self.world.rank());
        assert!(!takes_part || (group.transport(), group.world_ranks()) == (name, &ranks));
        Rank {
            group: takes_part.then_some(group),
            ranks,
            control: self.control,
        }
    }
}

struct Rank<'a> {
    /// `None` on a rank that is not tested.
    group: Option<ProcessGroup>,
    ranks: Vec<usize>,
    control: &'a ProcessGroup,
}

impl Ranks for Rank<'_> {
    fn on_all<R: Outcome>(&self, work: impl Fn(&ProcessGroup) -> R + Sync) -> Vec<R> {
        let mine = self.group.as_ref().map(work);
        let mine = mine.map_or(Vec::new(), |mine| mine.to_bytes());
        let all = self.control.gather_bytes(&mine).unwrap();
        let of = |rank: &usize| R::from_bytes(&all[*rank]);
        self.ranks.iter().map(of).collect()
    }

    fn in_world(&self, rank: usize) -> usize {
        self.ranks[rank]
    }
}
