//! Runs the suite on the transports whose ranks can be threads of one process: shared memory and
//! TCP.

#[macro_use]
mod suite;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use burn_dist::{Algorithm, GroupOptions, ProcessGroup, TransportKind};
use suite::{Cluster, Order, Outcome, Ranks};

const LIMIT: Duration = Duration::from_secs(240);

/// Ranks that are threads of this process.
struct Threads(TransportKind);

/// Threads of which only this many consecutive ones share memory: several nodes, without the
/// network.
struct Nodes(usize, Algorithm);

/// Some of the ranks of a larger world, in reverse order.
struct Parts(TransportKind);

/// The same in a world of nodes with three ranks each, of which two per node take part.
struct PartsOfNodes(Algorithm);

/// Connects ranks over one transport.
fn connect(transport: TransportKind, size: usize, timeout: Duration) -> Groups {
    let options = GroupOptions {
        transport,
        ..GroupOptions::default()
    };
    connect_with(options, size, timeout)
}

/// Connects ranks of which only `of` consecutive ones share memory.
fn on_nodes(of: usize, algorithm: Algorithm, size: usize, timeout: Duration) -> Groups {
    let options = GroupOptions {
        algorithm,
        ranks_per_node: NonZeroUsize::new(of),
        ..GroupOptions::default()
    };
    connect_with(options, size, timeout)
}

fn connect_with(options: GroupOptions, size: usize, timeout: Duration) -> Groups {
    let options = GroupOptions {
        connect_timeout: Duration::from_secs(30),
        first_timeout: timeout,
        timeout,
        ..options
    };
    Groups(ProcessGroup::in_process(size, &options).unwrap())
}

impl Cluster for Threads {
    fn sizes(&self) -> Vec<usize> {
        (1..=6).collect()
    }

    fn connect(&self, size: usize, timeout: Duration) -> impl Ranks {
        connect(self.0, size, timeout)
    }
}

impl Cluster for Nodes {
    fn sizes(&self) -> Vec<usize> {
        (1..=6).collect()
    }

    fn several(&self) -> usize {
        6
    }

    fn order(&self) -> Option<Order> {
        Some(order(self.1, self.0))
    }

    fn connect(&self, size: usize, timeout: Duration) -> impl Ranks {
        let groups = on_nodes(self.0, self.1, size, timeout);
        let expected = match size {
            1 => "none",
            size if size <= self.0 => "shm",
            size if size % self.0 == 0 => "shm+tcp",
            _ => "tcp",
        };
        assert_eq!(groups.0[0].transport(), expected);
        groups
    }
}

impl Cluster for Parts {
    fn sizes(&self) -> Vec<usize> {
        (1..=5).collect()
    }

    fn connect(&self, size: usize, timeout: Duration) -> impl Ranks {
        part(&connect(self.0, size + size.div_ceil(2), timeout), size)
    }
}

impl Cluster for PartsOfNodes {
    fn sizes(&self) -> Vec<usize> {
        vec![4, 6]
    }

    fn several(&self) -> usize {
        6
    }

    fn order(&self) -> Option<Order> {
        Some(order(self.0, 2))
    }

    fn connect(&self, size: usize, timeout: Duration) -> impl Ranks {
        let whole = on_nodes(3, self.0, size + size.div_ceil(2), timeout);
        let part = part(&whole, size);
        assert_eq!(part.0[0].transport(), "shm+tcp");
        part
    }
}

fn order(algorithm: Algorithm, on_each_node: usize) -> Order {
    match algorithm {
        Algorithm::NodeFirst => Order {
            on_each_node,
            in_turns: false,
        },
        _ => Order::RING,
    }
}

/// Ranks that alternate between nodes of two ranks.
struct InTurns(Algorithm);

impl Cluster for InTurns {
    fn sizes(&self) -> Vec<usize> {
        vec![4, 6]
    }

    fn several(&self) -> usize {
        6
    }

    fn order(&self) -> Option<Order> {
        Some(Order {
            in_turns: true,
            ..order(self.0, 2)
        })
    }

    fn connect(&self, size: usize, timeout: Duration) -> impl Ranks {
        let whole = on_nodes(2, self.0, size, timeout);
        let mut parts = each(&whole.0, &|group: &ProcessGroup| {
            group.split(0, group.rank() as u64 % 2).unwrap()
        });
        parts.sort_by_key(ProcessGroup::rank);
        let expected = match self.0 {
            Algorithm::NodeFirst => "shm+tcp",
            // The ring would visit each node several times.
            _ => "tcp",
        };
        assert_eq!(parts[0].transport(), expected);
        Groups(parts)
    }
}

/// Returns the ranks of colour 0; their number is `size`.
fn part(all: &Groups, size: usize) -> Groups {
    let parts = each(&all.0, &|group: &ProcessGroup| {
        let key = (group.size() - group.rank()) as u64;
        group.split(suite::colour(group.rank()), key).unwrap()
    });
    let (mut chosen, others): (Vec<_>, Vec<_>) = parts
        .into_iter()
        .zip(&all.0)
        .partition(|(_, whole)| suite::colour(whole.rank()) == 0);
    assert_eq!((chosen.len(), others.len()), (size, size.div_ceil(2)));
    chosen.sort_by_key(|(part, _)| part.rank());
    // The world and the other part are dropped here; the remaining part is a group of its own.
    Groups(chosen.into_iter().map(|(part, _)| part).collect())
}

/// Runs `work` with every group at once.
fn each<R: Send>(groups: &[ProcessGroup], work: &(impl Fn(&ProcessGroup) -> R + Sync)) -> Vec<R> {
    thread::scope(|scope| {
        let spawn = |group| scope.spawn(move || work(group));
        let threads: Vec<_> = groups.iter().map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

struct Groups(Vec<ProcessGroup>);

impl Ranks for Groups {
    fn on_all<R: Outcome>(&self, work: impl Fn(&ProcessGroup) -> R + Sync) -> Vec<R> {
        each(&self.0, &work)
    }

    fn in_world(&self, rank: usize) -> usize {
        self.0[0].world_ranks()[rank]
    }
}

/// Ends the whole test program if a case hangs, because these tests exist to find hangs.
fn within_limit(test: impl FnOnce() + Send + 'static) {
    let (done, waiting) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if waiting.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
        eprintln!("a collective hung for {LIMIT:?}");
        std::process::abort();
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

macro_rules! conformance {
    ($($test:ident),* $(,)?) => {
        mod shm {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::Threads(super::TransportKind::Shm)));
            })*
        }
        mod tcp {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::Threads(super::TransportKind::Tcp)));
            })*
        }
        mod nodes_of_two {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::Nodes(2, super::Algorithm::Auto)));
            })*
        }
        mod nodes_of_three {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::Nodes(3, super::Algorithm::Auto)));
            })*
        }
        mod part_of_nodes {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::PartsOfNodes(super::Algorithm::Auto)));
            })*
        }
        mod node_first_of_two {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::Nodes(2, super::Algorithm::NodeFirst)));
            })*
        }
        mod node_first_of_three {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::Nodes(3, super::Algorithm::NodeFirst)));
            })*
        }
        mod node_first_part {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::PartsOfNodes(super::Algorithm::NodeFirst)));
            })*
        }
        mod nodes_in_turns {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::InTurns(super::Algorithm::Auto)));
            })*
        }
        mod node_first_in_turns {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::InTurns(super::Algorithm::NodeFirst)));
            })*
        }
        mod part_over_shm {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::Parts(super::TransportKind::Shm)));
            })*
        }
        mod part_over_tcp {
            $(#[test] fn $test() {
                super::within_limit(|| super::suite::$test(&super::Parts(super::TransportKind::Tcp)));
            })*
        }
    };
}
for_each_test!(conformance);

#[test]
fn mpi_is_refused_where_it_has_not_started_the_ranks() {
    let wanted = [
        (TransportKind::Mpi, Algorithm::Auto),
        (TransportKind::Auto, Algorithm::Mpi),
        (TransportKind::Tcp, Algorithm::Mpi),
    ];
    for (transport, algorithm) in wanted {
        let options = GroupOptions {
            transport,
            algorithm,
            ..GroupOptions::default()
        };
        let error = ProcessGroup::in_process(2, &options)
            .unwrap_err()
            .to_string();
        assert!(error.contains("looking up MPI"), "{error}");
    }
}

/// Models are created and dropped while their ranks stay connected.
#[test]
fn the_memory_of_a_bucket_goes_with_it() {
    // A length in pages that nothing else has.
    let pages = 7919;
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // Range, permissions, offset, device and inode, which is 0 without a file, as for the heap.
        // A line may appear twice if others map memory meanwhile.
        let mut ours = BTreeSet::new();
        for line in maps.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let ends = words[0].split_once('-').unwrap_or_default();
            let address = |digits: &str| usize::from_str_radix(digits, 16).unwrap_or_default();
            let bytes = address(ends.1).wrapping_sub(address(ends.0));
            if bytes == pages * 4096 && words[4] != "0" {
                ours.insert(words[0]);
            }
        }
        ours.len()
    };
    let groups = connect(TransportKind::Shm, 3, LIMIT);
    let buckets = each(&groups.0, &|group: &ProcessGroup| {
        group
            .bucket(burn_dist::DType::U8, pages * 4096 - 100)
            .unwrap()
    });
    assert_eq!(mapped(), 9);
    drop(buckets);
    assert_eq!(mapped(), 0);
    each(&groups.0, &|group: &ProcessGroup| group.barrier().unwrap());
}
