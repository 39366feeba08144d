//! Ranks that meet at a store, and strangers that must stay out.

mod world_support;

use burn_dist::rendezvous::{MAX_PAYLOAD, MAX_TAG, RendezvousError, Store, StoreServer};
use burn_dist::wire::auth::{self, Keys, Purpose};
use burn_dist::wire::{Fault, Secret};
use burn_dist::world::World;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use world_support::*;

/// Runs `call` on all stores at once, each on its own thread.
fn together<T: Send>(stores: &[Store], call: impl Fn(&Store) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let call = &call;
        let threads: Vec<_> = stores
            .iter()
            .map(|store| scope.spawn(move || call(store)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Drops the stores; that of rank 0, which may host the store, last.
fn leave<const N: usize>(stores: [Store; N]) {
    stores.into_iter().rev().for_each(drop);
}

fn gather_rank(store: &Store) -> Result<Vec<Vec<u8>>, RendezvousError> {
    store.all_gather("ranks", &[store.rank() as u8])
}

fn fault(store: &Store) -> Fault {
    eventually(Duration::from_secs(1), "a fault", || store.faults().get())
}

#[test]
fn everybody_gets_everything_in_rank_order() {
    limited(|| {
        for size in 1..=5 {
            let (_server, stores) = ranks(size);
            for round in 0..3u8 {
                let results = together(&stores, |store| {
                    // Lengths differ, and some are 0.
                    let payload = vec![round; store.rank() * 1000];
                    store.all_gather("round", &payload).unwrap()
                });
                let expected: Vec<_> = (0..size).map(|rank| vec![round; rank * 1000]).collect();
                assert!(results.iter().all(|result| *result == expected));
            }
            assert!(stores.iter().all(|store| store.faults().get().is_none()));
        }
    });
}

#[test]
fn the_largest_payloads_pass_and_larger_ones_are_refused() {
    limited(|| {
        let (_server, stores) = ranks(3);
        let results = together(&stores, |store| {
            store
                .all_gather("large", &vec![store.rank() as u8; MAX_PAYLOAD])
                .unwrap()
        });
        assert!(
            results
                .iter()
                .all(|result| result[2] == vec![2; MAX_PAYLOAD])
        );
        let error = stores[0]
            .all_gather("large", &vec![0; MAX_PAYLOAD + 1])
            .unwrap_err();
        assert!(matches!(error, RendezvousError::PayloadTooLong { .. }));
        let error = stores[0]
            .all_gather(&"t".repeat(MAX_TAG + 1), &[])
            .unwrap_err();
        assert!(matches!(error, RendezvousError::TagTooLong { .. }));
        // Neither has disturbed anything.
        assert!(together(&stores, gather_rank).iter().all(Result::is_ok));
    });
}

#[test]
fn a_store_can_be_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Store>();
    is_shared::<StoreServer>();
    limited(|| {
        let (_server, stores) = ranks(2);
        assert_eq!(stores[1].local_ip().to_string(), "127.0.0.1");
        assert_eq!((stores[1].rank(), stores[1].size()), (1, 2));
    });
}

#[test]
fn wrong_secret_is_refused_without_harm() {
    limited(|| {
        let server = server(2);
        let zero = connect(0, 2, server.address()).unwrap();
        let other = Secret::from_text("the secret of other tests").unwrap();
        let stranger = World::local(1, 2, server.address(), other).unwrap();
        let start = Instant::now();
        let error = Store::connect(&stranger, Duration::from_secs(10)).unwrap_err();
        assert!(
            matches!(error, RendezvousError::WrongSecret { .. }),
            "{error}"
        );
        assert!(error.to_string().contains("BURN_DIST_SECRET"));
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "it should not be tried again"
        );
        let one = connect(1, 2, server.address()).unwrap();
        assert!(
            together(&[zero, one], gather_rank)
                .iter()
                .all(Result::is_ok)
        );
    });
}

#[test]
fn other_world_sizes_and_ranks_are_refused_without_harm() {
    limited(|| {
        let server = server(3);
        let mut stores: Vec<_> = [0, 1]
            .map(|rank| connect(rank, 3, server.address()).unwrap())
            .into();
        let error = connect(1, 4, server.address()).unwrap_err();
        assert!(
            matches!(
                error,
                RendezvousError::WorldSizeDiffers {
                    ours: 4,
                    theirs: 3,
                    ..
                }
            ),
            "{error}"
        );
        let error = connect(1, 3, server.address()).unwrap_err();
        assert!(
            matches!(error, RendezvousError::RankTaken { rank: 1, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("rank 1 is already connected"));
        stores.push(connect(2, 3, server.address()).unwrap());
        assert!(together(&stores, gather_rank).iter().all(Result::is_ok));
        assert!(stores.iter().all(|store| store.faults().get().is_none()));
    });
}

/// No other connection is expected then.
#[test]
fn the_store_does_not_listen_while_all_ranks_are_connected() {
    limited(|| {
        let server = server(2);
        let knock = || TcpStream::connect(server.address());
        let zero = connect(0, 2, server.address()).unwrap();
        knock().unwrap();
        let one = connect(1, 2, server.address()).unwrap();
        let refused = eventually(LIMIT, "connections are refused", || knock().err());
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        let stores = [zero, one];
        assert!(together(&stores, gather_rank).iter().all(Result::is_ok));
        assert!(knock().is_err());
        let [zero, one] = stores;
        drop(one);
        eventually(LIMIT, "it listens again", || knock().ok());
        drop(zero);
    });
}

#[test]
fn a_rank_that_was_there_is_not_taken_back() {
    limited(|| {
        let (server, mut stores) = ranks(2);
        drop(stores.pop());
        let again = world(1, 2, server.address());
        let error = Store::connect(&again, Duration::from_secs(1)).unwrap_err();
        assert!(
            matches!(error, RendezvousError::RankGone { rank: 1, .. }),
            "{error}"
        );
    });
}

#[test]
fn ranks_of_one_launch_meet_again_when_all_have_left() {
    limited(|| {
        let server = server(3).for_runs_in_turn();
        for _ in 0..3 {
            // The ranks leave and come back one after the other.
            let runs = (0..3).map(|rank| {
                let world = world(rank, 3, server.address());
                thread::spawn(move || {
                    for run in 0..3 {
                        let store = Store::connect(&world, LIMIT).unwrap();
                        gather_rank(&store).unwrap();
                        thread::sleep(Duration::from_millis(20 * ((rank as u64 + run) % 3)));
                    }
                })
            });
            runs.collect::<Vec<_>>()
                .into_iter()
                .for_each(|run| run.join().unwrap());
        }
        assert!(server.first_fault().is_none());
        // A run with a failure is not followed by another.
        let stores: Vec<_> = (0..3)
            .map(|rank| connect(rank, 3, server.address()).unwrap())
            .collect();
        stores[1].abort("on purpose");
        drop(stores);
        let again = world(1, 3, server.address());
        let error = Store::connect(&again, Duration::from_millis(500)).unwrap_err();
        assert!(matches!(error, RendezvousError::RankGone { rank: 1, .. }));
    });
}

/// On other hosts than that of rank 0, the next run may begin while the previous run's store still
/// exists.
#[test]
fn the_next_run_at_an_address_waits_for_the_one_before_to_end() {
    limited(|| {
        for next in [2, 3] {
            let port = free_port();
            let enter = move |rank, size, seconds| {
                let world = torchrun(rank, size, "127.0.0.1", port);
                thread::spawn(move || Store::connect(&world, Duration::from_secs(seconds)))
            };
            let before = [0, 1].map(|rank| enter(rank, 2, 10));
            let [zero, one] = before.map(|rank| rank.join().unwrap().unwrap());
            drop(one);
            let others: Vec<_> = (1..next).map(|rank| enter(rank, next, 10)).collect();
            let error = enter(1, next, 1).join().unwrap().unwrap_err();
            match next {
                2 => assert!(matches!(error, RendezvousError::RankGone { rank: 1, .. })),
                _ => assert!(matches!(error, RendezvousError::Ending { .. })),
            }
            drop(zero);
            let first = enter(0, next, 10).join().unwrap().unwrap();
            let others = others.into_iter().map(|rank| rank.join().unwrap().unwrap());
            let stores: Vec<_> = std::iter::once(first).chain(others).collect();
            assert!(together(&stores, gather_rank).iter().all(Result::is_ok));
            // Rank 0 waits for the others to leave.
            stores.into_iter().rev().for_each(drop);
        }
    });
}

#[test]
fn missing_ranks_are_named() {
    limited(|| {
        let server = server(4);
        let stores = [0, 1].map(|rank| connect(rank, 4, server.address()).unwrap());
        let busy = connect(2, 4, server.address()).unwrap();
        let errors = together(&stores, |store| {
            store
                .all_gather_within("start", &[], Duration::from_millis(300))
                .unwrap_err()
        });
        for error in errors {
            assert_eq!(
                error.to_string(),
                format!(
                    "waited 0.3 s at {} for `start`: ranks 2, 3 have not arrived \
                     (rank 3 never connected)",
                    server.address()
                )
            );
        }
        // A rank that comes too late learns the same, at once.
        let late = busy.all_gather("start", &[]).unwrap_err();
        assert!(matches!(late, RendezvousError::Missing { .. }), "{late}");
        let later = connect(3, 4, server.address()).unwrap();
        let late = later.all_gather("start", &[]).unwrap_err();
        assert!(matches!(late, RendezvousError::Missing { .. }), "{late}");
    });
}

#[test]
fn different_tags_are_an_error_for_all() {
    limited(|| {
        let (_server, stores) = ranks(3);
        assert!(together(&stores, gather_rank).iter().all(Result::is_ok));
        let errors = together(&stores, |store| {
            let tag = ["buckets", "buckets", "hello"][store.rank()];
            store.all_gather(tag, &[]).unwrap_err()
        });
        for error in errors {
            let RendezvousError::TagsDiffer {
                sequence: 1,
                first,
                second,
            } = error
            else {
                panic!("{error}");
            };
            let mut tags = [first.1, second.1];
            tags.sort();
            assert_eq!(tags, ["buckets", "hello"]);
        }
    });
}

#[test]
fn nobody_waits_for_a_rank_that_left() {
    limited(|| {
        let (_server, mut stores) = ranks(3);
        drop(stores.pop());
        let start = Instant::now();
        for error in together(&stores, |store| gather_rank(store).unwrap_err()) {
            assert!(
                matches!(error, RendezvousError::Left { rank: 2, .. }),
                "{error}"
            );
        }
        assert!(start.elapsed() < Duration::from_secs(1));
        let board = stores[0].faults();
        eventually(Duration::from_secs(1), "rank 2 left", || {
            board.left(2).then_some(())
        });
        assert!(!board.left(1) && board.get().is_none());
    });
}

#[test]
fn the_reason_of_an_abort_reaches_all_others() {
    limited(|| {
        let (server, mut stores) = ranks(3);
        stores[1].abort("the loss is not finite at step 12");
        for store in [&stores[0], &stores[2]] {
            let fault = fault(store);
            assert_eq!(fault.rank, Some(1));
            assert_eq!(fault.reason, "the loss is not finite at step 12");
            let error = gather_rank(store).unwrap_err();
            assert!(
                error.to_string().contains("rank 1 failed: the loss"),
                "{error}"
            );
        }
        assert_eq!(server.first_fault().unwrap().rank, Some(1));
        assert_eq!(
            server.abort_reason(1).as_deref(),
            Some("the loss is not finite at step 12")
        );
        drop(stores.remove(1));
        assert!(!stores[0].faults().left(1), "it failed, it did not leave");
    });
}

#[test]
fn a_waiting_rank_is_woken_by_a_fault() {
    limited(|| {
        let (_server, stores) = ranks(3);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| gather_rank(&stores[0]).unwrap_err());
            thread::sleep(Duration::from_millis(50));
            stores[1].abort("no space left");
            let start = Instant::now();
            let error = waiting.join().unwrap();
            assert!(matches!(error, RendezvousError::Fault(_)), "{error}");
            assert!(start.elapsed() < Duration::from_secs(1));
        });
    });
}

#[test]
fn a_rank_that_panics_is_no_rank_that_left() {
    limited(|| {
        let (_server, mut stores) = ranks(2);
        let one = stores.pop().unwrap();
        let panicked = thread::spawn(move || {
            let _one = one;
            // Without the message of a panic, which would look like a failure of this test.
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.join().is_err());
        assert_eq!(fault(&stores[0]).rank, Some(1));
    });
}

#[test]
fn a_launcher_can_report_a_rank_that_never_came() {
    limited(|| {
        let server = server(3);
        let zero = connect(0, 3, server.address()).unwrap();
        server.report_failure(2, "it exited with code 101");
        assert_eq!(fault(&zero).rank, Some(2));
        // A rank that comes later learns of it too.
        let one = connect(1, 3, server.address()).unwrap();
        assert_eq!(fault(&one).reason, "it exited with code 101");
        server.report_absence(1, "not true: it is connected");
        assert_eq!(server.first_fault().unwrap().rank, Some(2));
    });
}

#[test]
fn the_end_of_the_store_is_a_fault_of_no_rank() {
    limited(|| {
        let (server, stores) = ranks(2);
        drop(server);
        for store in &stores {
            let fault = fault(store);
            assert_eq!(fault.rank, None);
            assert!(fault.reason.contains("the launcher is gone"), "{fault}");
            assert!(gather_rank(store).is_err());
            assert!(store.survey(Duration::from_millis(50)).is_err());
        }
    });
}

#[test]
fn a_survey_gives_everybodys_progress() {
    limited(|| {
        let (_server, stores) = ranks(3);
        for store in &stores {
            store
                .progress()
                .store(store.rank() as u64 + 10, Ordering::Release);
        }
        let progress = together(&stores, |store| store.survey(LIMIT).unwrap());
        assert!(
            progress
                .iter()
                .all(|p| *p == [Some(10), Some(11), Some(12)])
        );
    });
}

#[test]
fn a_single_rank_needs_no_store() {
    limited(|| {
        let store = Store::connect(&World::single(), Duration::ZERO).unwrap();
        assert_eq!(store.all_gather("alone", b"x").unwrap(), [b"x"]);
        store.progress().store(7, Ordering::Release);
        assert_eq!(store.survey(Duration::ZERO).unwrap(), [Some(7)]);
        store.abort("nobody hears this");
        assert_eq!(store.faults().get(), None);
    });
}

// ---- hosting, and peers that do not answer ----

#[test]
fn rank_0_hosts_the_store_for_torchrun() {
    limited(|| {
        for host in ["127.0.0.1", "localhost"] {
            let port = free_port();
            let others: Vec<_> = [1, 2]
                .map(|rank| {
                    let world = torchrun(rank, 3, host, port);
                    thread::spawn(move || {
                        let store = Store::connect(&world, LIMIT).unwrap();
                        let result = gather_rank(&store).unwrap();
                        // Rank 0 may have finished long before.
                        thread::sleep(Duration::from_millis(200));
                        assert_eq!(store.faults().get(), None);
                        result
                    })
                })
                .into();
            // The others start first and wait for it.
            thread::sleep(Duration::from_millis(100));
            let zero = Store::connect(&torchrun(0, 3, host, port), LIMIT).unwrap();
            let mut results = vec![gather_rank(&zero).unwrap()];
            drop(zero);
            results.extend(others.into_iter().map(|thread| thread.join().unwrap()));
            assert!(results.iter().all(|result| *result == [[0], [1], [2]]));
        }
    });
}

#[test]
fn a_port_in_use_is_named() {
    limited(|| {
        let other = TcpListener::bind(any_port()).unwrap();
        let port = other.local_addr().unwrap().port();
        let error = Store::connect(&torchrun(0, 2, "127.0.0.1", port), LIMIT).unwrap_err();
        assert!(
            matches!(error, RendezvousError::PortInUse { .. }),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .contains(&format!("port {port} is in use"))
        );
    });
}

#[test]
fn rank_0_must_run_where_master_addr_says() {
    limited(|| {
        // An address that is reserved for documentation.
        let world = torchrun(0, 2, "192.0.2.1", free_port());
        let error = Store::connect(&world, LIMIT).unwrap_err();
        assert!(matches!(error, RendezvousError::NotLocal { .. }), "{error}");
        assert!(error.to_string().contains("MASTER_ADDR"));
    });
}

/// Otherwise the others would wait for it in vain.
#[test]
fn the_ranks_beside_a_rank_0_that_can_not_host_are_told_at_once() {
    limited(|| {
        for (master, why) in [
            ("192.0.2.1", "192.0.2.1 is not an address of this machine"),
            ("no-such-host.invalid", "cannot resolve"),
        ] {
            let port = free_port();
            let start = Instant::now();
            let rank = |rank| {
                let world = torchrun(rank, 2, master, port);
                thread::spawn(move || gather_rank(&Store::connect(&world, LIMIT)?))
            };
            let errors = [rank(1), rank(0)].map(|rank| rank.join().unwrap().unwrap_err());
            for error in errors {
                assert!(error.to_string().contains(why), "{error}");
            }
            let took = start.elapsed();
            assert!(took < Duration::from_secs(10), "{took:?}");
        }
    });
}

/// They may reach rank 0 by another address, for example behind address translation.
#[test]
fn ranks_of_other_nodes_that_reach_a_rank_0_that_can_not_host_are_told_too() {
    limited(|| {
        let port = free_port();
        let start = Instant::now();
        let rank =
            |world: World| thread::spawn(move || gather_rank(&Store::connect(&world, LIMIT)?));
        // As if one were the other.
        let other = torchrun(1, 2, "127.0.0.2", port);
        let main = on_a_node_of_its_own(0, 2, "192.0.2.1", port);
        for rank in [rank(other), rank(main)] {
            let error = rank.join().unwrap().unwrap_err().to_string();
            assert!(error.contains("not an address of this machine"), "{error}");
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
    });
}

/// Returns the world of a rank that is alone on its node.
fn on_a_node_of_its_own(rank: usize, size: usize, master: &str, port: u16) -> World {
    let own = [
        ("LOCAL_RANK", "0".to_string()),
        ("LOCAL_WORLD_SIZE", "1".to_string()),
        ("GROUP_RANK", rank.to_string()),
    ];
    torchrun_with(rank, size, master, port, own)
}

#[test]
fn a_loopback_address_can_not_serve_two_nodes() {
    limited(|| {
        for master in ["127.0.0.1", "localhost", "[::1]"] {
            for rank in [0, 1] {
                let world = on_a_node_of_its_own(rank, 2, master, 29500);
                let error = Store::connect(&world, LIMIT).unwrap_err();
                assert!(matches!(error, RendezvousError::Loopback { .. }), "{error}");
            }
        }
    });
}

/// Debian's `/etc/hosts` maps the host name to 127.0.1.1, to which the resolver adds this name.
/// Other nodes know another address.
#[test]
fn a_host_that_calls_itself_127_0_1_1_is_reached_by_its_other_addresses() {
    limited(|| {
        let port = free_port();
        let enter = |rank, master| {
            let world = on_a_node_of_its_own(rank, 2, master, port);
            thread::spawn(move || Store::connect(&world, LIMIT).unwrap())
        };
        // 127.0.0.2 stands for a name that resolves differently on other hosts: "127.2" is not a
        // literal address to us.
        let ranks = [enter(0, "127.257"), enter(1, "127.2")];
        let stores = ranks.map(|rank| rank.join().unwrap());
        assert!(together(&stores, gather_rank).iter().all(Result::is_ok));
        leave(stores);
    });
}

#[test]
fn an_ipv6_address_may_stand_in_brackets() {
    limited(|| {
        if let Err(error) = TcpListener::bind("[::1]:0") {
            return println!("SKIPPED: this host has no ::1: {error}");
        }
        let port = free_port();
        let enter = |rank| {
            let world = torchrun(rank, 2, "[::1]", port);
            thread::spawn(move || Store::connect(&world, LIMIT).unwrap())
        };
        let stores = [enter(0), enter(1)].map(|rank| rank.join().unwrap());
        assert!(together(&stores, gather_rank).iter().all(Result::is_ok));
        leave(stores);
    });
}

#[test]
fn silence_is_told_from_strangers() {
    limited(|| {
        let wait = Duration::from_millis(300);
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let error = Store::connect(&world(1, 2, address), wait).unwrap_err();
        assert!(
            matches!(error, RendezvousError::NothingListens { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(&address.to_string()), "{error}");

        // A launcher listens before it starts ranks, so they do not wait for one that was killed.
        // No other test listens at this address.
        let orphaned = SocketAddr::from(([127, 0, 0, 77], free_port()));
        let error = Store::connect(&world(1, 2, orphaned), 2 * LIMIT).unwrap_err();
        assert!(
            matches!(error, RendezvousError::LauncherGone { .. }),
            "{error}"
        );

        let web = TcpListener::bind(any_port()).unwrap();
        let address = web.local_addr().unwrap();
        let answering = thread::spawn(move || {
            let (mut stream, _) = web.accept().unwrap();
            let _ = stream.read(&mut [0; 512]);
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap();
        });
        let error = Store::connect(&world(1, 2, address), LIMIT).unwrap_err();
        assert!(
            matches!(error, RendezvousError::NotAStore { .. }),
            "{error}"
        );
        answering.join().unwrap();

        let mute = TcpListener::bind(any_port()).unwrap();
        let address = mute.local_addr().unwrap();
        let error = Store::connect(&world(1, 2, address), wait).unwrap_err();
        assert!(
            matches!(error, RendezvousError::NotAStore { .. }),
            "{error}"
        );

        let world = torchrun(1, 2, "no-such-host.invalid", 29500);
        let error = Store::connect(&world, wait).unwrap_err();
        assert!(matches!(error, RendezvousError::Resolve { .. }), "{error}");
    });
}

#[test]
fn garbage_and_slow_connections_disturb_nobody() {
    limited(|| {
        let server = server(3);
        let address = server.address();
        // More of them than the store keeps, and before any rank connects.
        let silent: Vec<_> = (0..100)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let drip = thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            for byte in b"BURNDIS>" {
                let _ = stream.write_all(&[*byte]);
                thread::sleep(Duration::from_millis(20));
            }
        });
        for garbage in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0xff; 4096],
            b"BURNDIS>\x02\0\x01\0",
        ] {
            let mut stream = TcpStream::connect(address).unwrap();
            let _ = stream.write_all(garbage);
        }
        let start = Instant::now();
        let stores: Vec<_> = (0..3)
            .map(|rank| connect(rank, 3, address).unwrap())
            .collect();
        assert!(together(&stores, gather_rank).iter().all(Result::is_ok));
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{:?}",
            start.elapsed()
        );
        assert!(stores.iter().all(|store| store.faults().get().is_none()));
        drip.join().unwrap();
        drop(silent);
    });
}

#[test]
fn another_version_is_named() {
    limited(|| {
        let other = TcpListener::bind(any_port()).unwrap();
        let address = other.local_addr().unwrap();
        let answering = thread::spawn(move || {
            let (mut stream, _) = other.accept().unwrap();
            let _ = stream.read(&mut [0; 512]);
            stream.write_all(b"BURNDIS<\x07\0\x01\0").unwrap();
        });
        let error = Store::connect(&world(1, 2, address), LIMIT).unwrap_err();
        assert!(
            matches!(error, RendezvousError::VersionDiffers { theirs: 7, .. }),
            "{error}"
        );
        answering.join().unwrap();
    });
}

/// Returns a connection that has proved knowledge of the secret and can now send anything.
fn authenticated(address: SocketAddr, context: &[u8]) -> (TcpStream, Keys) {
    let stream = TcpStream::connect(address).unwrap();
    let deadline = Instant::now() + LIMIT;
    let session =
        auth::connect_side(&stream, &secret(), Purpose::Store, context, deadline).unwrap();
    (stream, session)
}

/// Returns a message: its type, and numbers below 128.
fn message(kind: u8, numbers: &[u8]) -> Vec<u8> {
    let length = 1 + numbers.len() as u8;
    [&[kind, 0, 0, 0, length, 0, 0, 0, kind], numbers].concat()
}
const SURVEY: u8 = 2;
const WELCOME: u8 = 5;
const REFUSED: u8 = 6;
const PEER_LEFT: u8 = 10;

#[test]
fn nonsense_from_a_rank_fails_that_rank_alone() {
    limited(|| {
        let context = [[1, 0, 0, 0], [3, 0, 0, 0]].concat();
        let long = [&[SURVEY, 0, 0, 0], &u32::MAX.to_le_bytes()[..]].concat();
        // A gather whose tag would be as long as the address space.
        let deep = [&[0, 0, 0, 0, 13, 0, 0, 0, 0, 1, 1][..], &[0xff; 9], &[1]].concat();
        for nonsense in [&[0xff; 64][..], &long, &deep, &message(WELCOME, &[])] {
            let server = server(3);
            let zero = connect(0, 3, server.address()).unwrap();
            let (mut stream, mut session) = authenticated(server.address(), &context);
            stream.write_all(&session.seal(nonsense)).unwrap();
            let fault = fault(&zero);
            assert_eq!(fault.rank, Some(1));
            assert!(fault.reason.contains("it sent"), "{fault}");
        }
    });
}

#[test]
fn nonsense_about_oneself_is_refused_without_harm() {
    limited(|| {
        let server = server(3);
        let enter = |rank| connect(rank, 3, server.address()).unwrap();
        let (zero, one) = (enter(0), enter(1));
        let unknown_rank = [[9, 0, 0, 0], [3, 0, 0, 0]].concat();
        for context in [
            &[][..],
            &[1, 2, 3],
            &[0xff; auth::MAX_CONTEXT],
            &unknown_rank,
        ] {
            let (mut stream, _) = authenticated(server.address(), context);
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert_eq!(answer[0], REFUSED, "it is refused and the connection ends");
        }
        let stores = [zero, one, enter(2)];
        assert!(together(&stores, gather_rank).iter().all(Result::is_ok));
    });
}

/// An attacker on the network can end a connection, and nothing else.
#[test]
fn frames_that_were_changed_on_the_way_fail_the_rank_that_sent_them() {
    limited(|| {
        let context = [[1, 0, 0, 0], [3, 0, 0, 0]].concat();
        let survey = |number: u8| message(SURVEY, &[number, 9]);
        type Edit = fn(&mut Vec<Vec<u8>>);
        let edits: [(&str, Edit); 4] = [
            ("changed", |frames| frames[0][9] ^= 1),
            ("dropped", |frames| drop(frames.remove(0))),
            ("repeated", |frames| frames.insert(1, frames[0].clone())),
            ("reordered", |frames| frames.swap(0, 1)),
        ];
        for (how, edit) in edits {
            let server = server(3);
            let zero = connect(0, 3, server.address()).unwrap();
            let (mut stream, mut session) = authenticated(server.address(), &context);
            let mut frames = [1, 2].map(|number| session.seal(&survey(number))).to_vec();
            edit(&mut frames);
            stream.write_all(&frames.concat()).unwrap();
            let fault = fault(&zero);
            assert_eq!(fault.rank, Some(1), "{how}");
            assert!(fault.reason.contains("authentication"), "{how}: {fault}");
        }
    });
}

#[test]
fn frames_of_the_store_that_were_changed_on_the_way_are_a_fault_of_no_rank() {
    limited(|| {
        let listener = TcpListener::bind(any_port()).unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let serving = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let deadline = Instant::now() + LIMIT;
            let accepted = auth::accept_side(&stream, &secret(), Purpose::Store, deadline);
            let mut session = accepted.unwrap().session;
            stream
                .write_all(&session.seal(&message(WELCOME, &[])))
                .unwrap();
            told.recv().unwrap();
            let mut sealed = session.seal(&message(PEER_LEFT, &[0]));
            sealed[9] ^= 2;
            stream.write_all(&sealed).unwrap();
            let _ = stream.read(&mut [0; 512]);
        });
        let store = connect(1, 3, address).unwrap();
        tell.send(()).unwrap();
        let fault = fault(&store);
        assert_eq!(fault.rank, None);
        assert!(fault.reason.contains("authentication"), "{fault}");
        assert!(!store.faults().left(2), "the frame had no effect");
        drop(store);
        serving.join().unwrap();
    });
}

/// Returns the log of this process.
fn log() -> String {
    static LOG: OnceLock<Log> = OnceLock::new();
    let log = LOG.get_or_init(|| {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false);
        let writer = log.clone();
        subscriber.with_writer(move || writer.clone()).init();
        log
    });
    String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned()
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_flood_of_connections_is_a_few_lines_in_the_log() {
    limited(|| {
        log();
        let server = server(2);
        let zero = connect(0, 2, server.address()).unwrap();
        for _ in 0..300 {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
            // Until it is refused.
            let _ = stream.read(&mut [0; 64]);
        }
        let one = connect(1, 2, server.address()).unwrap();
        assert!(
            together(&[zero, one], gather_rank)
                .iter()
                .all(Result::is_ok)
        );
        drop(server);
        let log = eventually(LIMIT, "the rest is counted", || {
            let log = log();
            log.contains("refused 297 more connections").then_some(log)
        });
        // Other tests write to it, too.
        let refused = log
            .lines()
            .filter(|line| line.contains("refused a connection"));
        assert!(refused.count() < 30, "{log}");
    });
}

// ---- other processes ----

/// Not a test. The tests below start this executable to run it as a rank.
#[test]
fn parts() {
    let Some(part) = part() else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u16>().unwrap();
    let world = match part.as_str() {
        "local" => {
            let address = SocketAddr::from(([127, 0, 0, 1], number("STORE_PORT")));
            world(number("PLAY_RANK").into(), 3, address)
        }
        "host" => torchrun(0, 2, "127.0.0.1", number("STORE_PORT")),
        "quitter" => torchrun(0, 3, "127.0.0.1", number("STORE_PORT")),
        other => panic!("no part {other}"),
    };
    let store = Store::connect(&world, LIMIT).unwrap();
    if part == "quitter" {
        gather_rank(&store).unwrap();
        store.abort("stopped by a test");
        std::process::exit(1);
    }
    store.progress().store(5, Ordering::Release);
    println!("connected");
    thread::sleep(LIMIT);
}

fn start_rank(part: &str, rank: usize, port: u16) -> Process {
    let mut command = play(part);
    command
        .env("PLAY_RANK", rank.to_string())
        .env("STORE_PORT", port.to_string());
    let mut process = Process::start(command);
    process.line("connected");
    process
}

#[test]
fn a_killed_rank_is_named_within_a_second() {
    limited(|| {
        let server = server(3);
        let [zero, two] = [0, 2].map(|rank| connect(rank, 3, server.address()).unwrap());
        let one = start_rank("local", 1, server.address().port());
        one.signal(Signal::KILL);
        for store in [&zero, &two] {
            let fault = fault(store);
            assert_eq!(fault.rank, Some(1));
            assert!(fault.reason.contains("closed unexpectedly"), "{fault}");
        }
    });
}

#[test]
fn a_stopped_rank_shows_in_a_survey() {
    limited(|| {
        let server = server(3);
        let [zero, two] = [0, 2].map(|rank| connect(rank, 3, server.address()).unwrap());
        two.progress().store(6, Ordering::Release);
        let one = start_rank("local", 1, server.address().port());
        let second = Duration::from_secs(5);
        assert_eq!(zero.survey(second).unwrap(), [Some(0), Some(5), Some(6)]);
        one.stop();
        let start = Instant::now();
        let progress = zero.survey(Duration::from_millis(300)).unwrap();
        assert_eq!(progress, [Some(0), None, Some(6)]);
        assert!(start.elapsed() < Duration::from_secs(3));
        one.signal(Signal::CONT);
        assert_eq!(zero.survey(second).unwrap(), [Some(0), Some(5), Some(6)]);
        assert_eq!(zero.faults().get(), None);
    });
}

#[test]
fn the_death_of_a_hosting_rank_0_is_noticed() {
    limited(|| {
        let port = free_port();
        let zero = start_rank("host", 0, port);
        let one = Store::connect(&torchrun(1, 2, "127.0.0.1", port), LIMIT).unwrap();
        zero.signal(Signal::KILL);
        let fault = fault(&one);
        assert_eq!(fault.rank, None);
        assert!(fault.reason.contains("rank 0 is gone"), "{fault}");
    });
}

/// Its process takes the store with it.
#[test]
fn the_reason_of_a_hosting_rank_0_comes_before_its_end() {
    limited(|| {
        for _ in 0..8 {
            let port = free_port();
            let mut command = play("quitter");
            command.env("STORE_PORT", port.to_string());
            let _zero = Process::start(command);
            let others = [1, 2].map(|rank| {
                thread::spawn(move || {
                    let world = torchrun(rank, 3, "127.0.0.1", port);
                    let store = Store::connect(&world, LIMIT).unwrap();
                    gather_rank(&store).unwrap();
                    fault(&store)
                })
            });
            for other in others {
                let fault = other.join().unwrap();
                assert_eq!(fault.rank, Some(0), "{fault}");
                assert_eq!(fault.reason, "stopped by a test");
            }
        }
    });
}

/// torchrun itself listens at MASTER_PORT, with its own protocol.
#[test]
fn ranks_meet_beside_torchruns_own_store() {
    limited(|| {
        let agent = TcpListener::bind(any_port()).unwrap();
        let port = agent.local_addr().unwrap().port();
        let world = |rank: usize| {
            let own = [
                ("TORCHELASTIC_RUN_ID", "none".to_string()),
                // Each node has its own.
                ("TORCHELASTIC_RESTART_COUNT", rank.to_string()),
                ("TORCHELASTIC_USE_AGENT_STORE", "True".to_string()),
            ];
            torchrun_with(rank, 2, "127.0.0.1", port, own)
        };
        let stores = thread::scope(|scope| {
            let connect = |rank| scope.spawn(move || Store::connect(&world(rank), LIMIT).unwrap());
            [0, 1].map(connect).map(|rank| rank.join().unwrap())
        });
        assert!(together(&stores, gather_rank).iter().all(Result::is_ok));
        // Rank 0, which hosts the store, waits for the others.
        let [zero, one] = stores;
        drop(one);
        drop(zero);
        agent.set_nonblocking(true).unwrap();
        assert!(agent.accept().is_err(), "a rank has asked torchrun's store");
    });
}

/// Connects two ranks of a run of this name. Rank 0 comes later, and a stranger at the first of the
/// possible ports sends `answer` to everybody.
fn meet_beside(run: &str, late: Duration, answer: &[u8]) {
    let world = |rank: usize| {
        let own = [
            ("TORCHELASTIC_RUN_ID", run.to_string()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".to_string()),
        ];
        torchrun_with(rank, 2, "127.0.0.1", 29500, own)
    };
    let first = world(1).master().unwrap().port;
    let other = TcpListener::bind(("127.0.0.1", first)).unwrap();
    other.set_nonblocking(true).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = Vec::new();
            while !done.load(Ordering::Acquire) {
                if let Ok((mut stream, _)) = other.accept() {
                    let _ = stream.write_all(answer);
                    open.push(stream);
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let connect = |rank, late| {
            let world = world(rank);
            scope.spawn(move || {
                thread::sleep(late);
                Store::connect(&world, Duration::from_secs(20))
            })
        };
        let ranks = [connect(0, late), connect(1, Duration::ZERO)];
        let [zero, one] = ranks.map(|rank| rank.join().unwrap());
        done.store(true, Ordering::Release);
        let [zero, one] = [zero, one].map(|store| store.unwrap_or_else(|error| panic!("{error}")));
        drop(one);
        drop(zero);
    });
}

/// Another user of rank 0's node has bound the first derived port and relays everything to the port
/// that rank 0 takes then, changed or not. The ranks find each other past it, and the error names
/// it.
#[test]
fn a_relay_at_the_first_port_is_named_and_passed_over() {
    limited(|| {
        log();
        for (run, flip) in [("relay", 0), ("relay that tampers", 1)] {
            let world = |rank: usize| {
                let own = [
                    ("TORCHELASTIC_RUN_ID", run.to_string()),
                    ("TORCHELASTIC_USE_AGENT_STORE", "True".to_string()),
                ];
                torchrun_with(rank, 2, "127.0.0.1", 29500, own)
            };
            let ports: Vec<u16> = world(1).master().unwrap().ports().collect();
            let relay = TcpListener::bind(("127.0.0.1", ports[0])).unwrap();
            relay.set_nonblocking(true).unwrap();
            let (done, passed) = (AtomicBool::new(false), AtomicUsize::new(0));
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        let Ok((caller, _)) = relay.accept() else {
                            thread::sleep(Duration::from_millis(2));
                            continue;
                        };
                        caller.set_nonblocking(false).unwrap();
                        let store = ("127.0.0.1", ports[1]);
                        let called = eventually(LIMIT, "rank 0 takes the next port", || {
                            TcpStream::connect(store).ok()
                        });
                        passed.fetch_add(1, Ordering::AcqRel);
                        let ends = [&caller, &called].map(|end| end.try_clone().unwrap());
                        scope.spawn(move || pass_on(caller, called, flip));
                        let [caller, called] = ends;
                        scope.spawn(move || pass_on(called, caller, 0));
                    }
                });
                let connect = |rank| scope.spawn(move || Store::connect(&world(rank), LIMIT));
                let [one, zero] = [connect(1), connect(0)].map(|rank| rank.join().unwrap());
                done.store(true, Ordering::Release);
                let stores =
                    [zero, one].map(|store| store.unwrap_or_else(|error| panic!("{error}")));
                let gathered = together(&stores, gather_rank);
                assert!(gathered.iter().all(Result::is_ok), "{gathered:?}");
                assert!(stores.iter().all(|store| store.faults().get().is_none()));
                leave(stores);
            });
            assert!(
                passed.load(Ordering::Acquire) > 0,
                "the relay was not tried"
            );
            let log = log();
            let squatted = format!("listens at 127.0.0.1:{}", ports[0]);
            assert!(log.contains(&squatted), "rank 0 names the port: {log}");
            let relayed = format!("the store at 127.0.0.1:{} goes through a relay", ports[0]);
            assert!(log.contains(&relayed), "rank 1 names the relay: {log}");
        }
    });
}

/// Relays data from `from`; `flip` changes the last byte of every message with a tag.
fn pass_on(mut from: TcpStream, mut to: TcpStream, flip: u8) {
    let mut bytes = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let part = &mut bytes[..count];
        if part.windows(5).any(|tag| tag == b"ranks") {
            part[count - 1] ^= flip;
        }
        if to.write_all(part).is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _ = end.shutdown(std::net::Shutdown::Both);
    }
}

/// With a fixed port, the ranks cannot avoid a stranger at it.
#[test]
fn a_relay_at_the_only_port_is_an_error_that_names_it() {
    limited(|| {
        let server = server(2);
        let (target, relay) = (server.address(), TcpListener::bind(any_port()).unwrap());
        let between = relay.local_addr().unwrap();
        let relaying = thread::spawn(move || {
            let caller = relay.accept().unwrap().0;
            let called = TcpStream::connect(target).unwrap();
            let ends = [&caller, &called].map(|end| end.try_clone().unwrap());
            let back = thread::spawn(move || pass_on(caller, called, 0));
            let [caller, called] = ends;
            pass_on(called, caller, 0);
            back.join().unwrap();
        });
        let start = Instant::now();
        let error = Store::connect(&world(1, 2, between), LIMIT).unwrap_err();
        assert!(matches!(error, RendezvousError::Relayed { .. }), "{error}");
        let text = error.to_string();
        // The error names both views.
        for end in [between, target] {
            assert!(text.contains(&format!("→ {end}")), "{text}");
        }
        assert!(start.elapsed() < Duration::from_secs(2));
        relaying.join().unwrap();
    });
}

/// A busy port must not end the wait for a late rank 0.
#[test]
fn a_stranger_at_one_of_the_ports_ends_no_patience() {
    limited(|| {
        let late = Duration::from_millis(5500);
        meet_beside("beside ssh", late, b"SSH-2.0-OpenSSH_9\r\n");
    });
}

/// A stranger that knows the protocol but not the secret, and never answers a rank's proof.
#[test]
fn who_never_answers_a_proof_is_passed_over() {
    limited(|| {
        let answer = [&b"BURNDIS<\x02\0\x01\0"[..], &[7; 32 + 36]].concat();
        meet_beside("beside a squatter", Duration::ZERO, &answer);
    });
}
