//! The suite on the transports whose ranks can be threads of one process: shared memory and TCP.

#[macro_use]
mod suite;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use burn_dist::{Algorithm, GroupOptions, ProcessGroup, TransportKind};
use suite::{Cluster, Outcome, Ranks};

const LIMIT: Duration = Duration::from_secs(240);

/// Ranks that are threads of this process.
struct Threads(TransportKind);

impl Cluster for Threads {
    fn sizes(&self) -> Vec<usize> {
        (1..=5).collect()
    }

    fn connect(&self, size: usize, timeout: Duration) -> impl Ranks {
        let options = GroupOptions {
            transport: self.0,
            connect_timeout: Duration::from_secs(30),
            first_timeout: timeout,
            timeout,
            ..GroupOptions::default()
        };
        Groups(ProcessGroup::in_process(size, &options).unwrap())
    }
}

struct Groups(Vec<ProcessGroup>);

impl Ranks for Groups {
    fn on_all<R: Outcome>(&self, work: impl Fn(&ProcessGroup) -> R + Sync) -> Vec<R> {
        let work = &work;
        thread::scope(|scope| {
            let spawn = |group| scope.spawn(move || work(group));
            let threads: Vec<_> = self.0.iter().map(spawn).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }
}

/// Ends the whole test program when a case hangs: a hang is what these tests are there to find.
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
        assert!(error.contains("looking for MPI"), "{error}");
    }
}
