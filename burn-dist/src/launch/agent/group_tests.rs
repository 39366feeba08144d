use super::*;
use crate::launch::agent::message::{Exit, RankReport};
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn rules(min: usize, max: usize) -> Rules {
    Rules {
        min,
        max,
        join_wait: 10 * SECOND,
        join_after: 30 * SECOND,
        join_timeout: 600 * SECOND,
        max_restarts: 2,
        usable: Arc::new(|_, _| Ok(())),
    }
}

fn peer(agent: u64) -> Peer {
    Peer {
        agent,
        host: format!("n{agent}"),
        ranks: 2,
        address: None,
    }
}

fn group(rules: Rules, now: Instant) -> Group {
    let begin = (Counts::default(), Vec::new());
    Group::new(rules, peer(0), begin, "start".into(), now)
}

fn report(code: i32) -> Report {
    let rank = RankReport {
        exit: Exit::Code(code),
        hurried: false,
        last_words: Vec::new(),
    };
    Report {
        ranks: vec![rank.clone(), rank],
        leaves: false,
    }
}

/// Agents that the orders start.
fn started(orders: &[Order]) -> Option<Vec<u64>> {
    orders.iter().find_map(|order| match order {
        Order::Start { peers, .. } => Some(peers.iter().map(|peer| peer.agent).collect()),
        _ => None,
    })
}

fn ended(orders: &[Order]) -> Option<u8> {
    orders.iter().find_map(|order| match order {
        Order::End { code, .. } => Some(*code),
        _ => None,
    })
}

fn verdict(said: &str) -> Option<Verdict> {
    Some(Verdict {
        agent: None,
        words: "rank 1 exited with code 1".into(),
        code: 1,
        said: Some(said.into()),
    })
}

#[test]
fn a_full_group_starts_at_once_and_a_smaller_one_after_a_quiet_time() {
    let now = Instant::now();
    let mut group = group(rules(1, 3), now);
    assert_eq!(started(&group.tick(now)), None);
    assert!(group.join(peer(1), now + 9 * SECOND));
    assert_eq!(started(&group.tick(now + 18 * SECOND)), None);
    assert_eq!(started(&group.tick(now + 19 * SECOND)), Some(vec![0, 1]));

    let mut group = super::tests::group(rules(1, 2), now);
    group.join(peer(1), now);
    assert_eq!(started(&group.tick(now)), Some(vec![0, 1]));
}

#[test]
fn too_few_agents_are_an_error_after_a_time() {
    let now = Instant::now();
    let mut group = group(rules(2, 2), now);
    let words = format!("{:?}", group.tick(now));
    assert!(words.contains("waiting for nodes: 1 of 2"), "{words}");
    assert!(group.tick(now + 599 * SECOND).is_empty());
    let orders = group.tick(now + 600 * SECOND);
    assert_eq!(ended(&orders), Some(1));
    assert!(format!("{orders:?}").contains("only 1 of at least 2 nodes came within 600 s"));
}

#[test]
fn a_failure_restarts_until_the_limit_or_the_same_words() {
    let now = Instant::now();
    let mut group = group(rules(1, 1), now);
    for (said, code) in [("a", None), ("b", None), ("c", Some(1))] {
        assert!(started(&group.tick(now)).is_some());
        assert_eq!(
            group.fail(0, "failed".into(), now),
            [Order::Stop(How::Failure)]
        );
        group.report(0, report(1), now);
        assert!(group.has_stopped());
        assert_eq!(ended(&group.conclude(verdict(said), now)), code);
    }
    let mut group = super::tests::group(rules(1, 1), now);
    for code in [None, Some(1)] {
        assert!(started(&group.tick(now)).is_some());
        group.fail(0, "failed".into(), now);
        group.report(0, report(1), now);
        assert_eq!(ended(&group.conclude(verdict("same"), now)), code);
    }
}

#[test]
fn the_loss_of_an_agent_is_no_failure_of_a_rank() {
    let now = Instant::now();
    let mut group = group(rules(1, 2), now);
    group.join(peer(1), now);
    assert!(started(&group.tick(now)).is_some());
    // The ranks notice first.
    group.fail(0, "rank 0 exited".into(), now);
    let orders = group.lose(1, "it closed the connection", now);
    assert!(matches!(&*orders, [Order::Say(words)] if words.contains("n1 is gone")));
    group.report(0, report(1), now);
    assert!(group.has_stopped());
    assert_eq!(ended(&group.conclude(verdict("x"), now)), None);
    assert_eq!(started(&group.tick(now)), Some(vec![0]));
    assert_eq!((group.counts().generation, group.counts().restarts), (2, 0));
}

#[test]
fn a_late_agent_is_taken_in_and_one_too_many_waits() {
    let now = Instant::now();
    let mut group = group(rules(1, 2), now);
    let begin = now + 10 * SECOND;
    assert_eq!(started(&group.tick(begin)), Some(vec![0]));
    assert!(group.join(peer(1), begin));
    assert!(group.tick(begin + 29 * SECOND).is_empty());
    let orders = group.tick(begin + 30 * SECOND);
    assert!(orders.contains(&Order::Stop(How::Grow)), "{orders:?}");
    group.report(0, report(75), begin);
    assert!(group.conclude(None, begin).is_empty());
    assert_eq!(started(&group.tick(begin)), Some(vec![0, 1]));
    assert!(group.join(peer(2), begin));
    assert!(group.tick(begin + 1000 * SECOND).is_empty());
    // The place of one that goes is taken at once.
    group.lose(1, "silent", begin);
    group.report(0, report(75), begin);
    group.conclude(None, begin);
    assert_eq!(started(&group.tick(begin)), Some(vec![0, 2]));
}

/// A group of agent 0, whose ranks have saved, and agent 1, whose ranks run for the first time.
fn grown(now: Instant) -> Group {
    let mut group = group(rules(1, 2), now);
    assert!(started(&group.tick(now + 10 * SECOND)).is_some());
    group.saved();
    group.join(peer(1), now);
    group.tick(now + 40 * SECOND);
    group.report(0, report(75), now);
    group.conclude(None, now);
    assert_eq!(started(&group.tick(now)), Some(vec![0, 1]));
    group
}

fn refused(orders: &[Order]) -> Option<Vec<u64>> {
    orders.iter().find_map(|order| match order {
        Order::Refuse { agents, .. } => Some(agents.clone()),
        _ => None,
    })
}

#[test]
fn a_new_agent_whose_ranks_fail_is_left_out() {
    let now = Instant::now();
    let fail = |group: &mut Group, agent: u64, code: u8, now: Instant| {
        group.fail(agent, "failed".into(), now);
        group.report(0, report(1), now);
        group.report(1, report(1), now);
        let agent = Some(agent);
        let failure = verdict("x").map(|verdict| Verdict {
            agent,
            code,
            ..verdict
        });
        group.conclude(failure, now)
    };
    // Whatever the exit code.
    for code in [1, USAGE] {
        let mut group = grown(now);
        assert_eq!(refused(&fail(&mut group, 1, code, now)), Some(vec![1]));
        assert_eq!(started(&group.tick(now)), Some(vec![0]));
        assert_eq!(group.counts().restarts, 0);
    }
    // One that has saved is restarted.
    let mut group = grown(now);
    group.saved();
    assert_eq!(refused(&fail(&mut group, 1, 1, now)), None);
    assert_eq!(started(&group.tick(now)), Some(vec![0, 1]));
    // So is one that was killed, or that has run for long.
    let mut group = grown(now);
    group.fail(1, "failed".into(), now);
    group.report(0, report(1), now);
    group.report(1, report(1), now);
    let killed = Verdict {
        agent: Some(1),
        said: None,
        ..verdict("x").unwrap()
    };
    assert_eq!(refused(&group.conclude(Some(killed), now)), None);
    let mut group = grown(now);
    assert_eq!(refused(&fail(&mut group, 1, 1, now + 2 * TRIAL)), None);
    // The older one fails because of the new one, again and again.
    let mut group = grown(now);
    assert_eq!(refused(&fail(&mut group, 0, 1, now)), None);
    assert_eq!(started(&group.tick(now)), Some(vec![0, 1]));
    assert_eq!(refused(&fail(&mut group, 0, 1, now)), Some(vec![1]));
    assert_eq!(started(&group.tick(now)), Some(vec![0]));
}

#[test]
fn a_new_agent_that_the_others_need_is_not_left_out() {
    let now = Instant::now();
    let even = Rules {
        usable: Arc::new(|_, ranks| match ranks {
            4 => Ok(()),
            _ => Err(format!("{ranks} ranks are not 4")),
        }),
        ..rules(1, 2)
    };
    let mut group = group(even, now);
    group.join(peer(1), now);
    assert_eq!(started(&group.tick(now)), Some(vec![0, 1]));
    group.saved();
    group.lose(1, "silent", now);
    group.report(0, report(75), now);
    group.conclude(None, now);
    group.join(peer(2), now);
    assert_eq!(started(&group.tick(now)), Some(vec![0, 2]));
    group.fail(2, "failed".into(), now);
    group.report(0, report(1), now);
    group.report(2, report(1), now);
    let agent = Some(2);
    let failure = verdict("x").map(|verdict| Verdict { agent, ..verdict });
    assert_eq!(refused(&group.conclude(failure, now)), None);
    assert_eq!(started(&group.tick(now)), Some(vec![0, 2]));
}

#[test]
fn an_agent_without_ranks_is_told_why() {
    let now = Instant::now();
    let mut group = group(rules(1, 2), now);
    assert_eq!(group.outlook(), None);
    group.tick(now + 10 * SECOND);
    group.join(peer(1), now);
    assert!(group.outlook().unwrap().contains("after 30 s"));
    let mut group = grown(now);
    group.join(peer(2), now);
    assert!(group.outlook().unwrap().contains("--nnodes allows 2 nodes"));
    assert_eq!(group.waiting().collect::<Vec<_>>(), [2]);
    let words = format!("{:?}", group.lose(2, "it closed the connection", now));
    assert!(words.contains("node n2 is gone"), "{words}");
}

#[test]
fn ranks_that_end_by_themselves_end_the_run() {
    let now = Instant::now();
    for code in [0, 75] {
        let mut group = group(rules(1, 1), now);
        group.tick(now);
        group.report(0, report(code), now);
        assert_eq!(ended(&group.conclude(None, now)), Some(code as u8));
    }
}

#[test]
fn an_agent_that_is_told_to_stop_leaves_and_the_others_go_on() {
    let now = Instant::now();
    let mut group = group(rules(1, 2), now);
    group.join(peer(1), now);
    group.tick(now);
    let leaving = Report {
        leaves: true,
        ..report(75)
    };
    group.report(1, leaving, now);
    assert!(!group.has_stopped());
    assert!(group.lose(1, "it closed the connection", now).is_empty());
    group.report(0, report(75), now);
    assert!(group.has_stopped());
    assert!(group.conclude(None, now).is_empty());
    assert_eq!(started(&group.tick(now)), Some(vec![0]));
}

#[test]
fn only_as_many_agents_start_as_can_share_the_batch() {
    let now = Instant::now();
    let powers = Rules {
        usable: Arc::new(|_, ranks| match ranks.is_power_of_two() {
            true => Ok(()),
            false => Err(format!("{ranks} ranks are no power of two")),
        }),
        ..rules(1, 3)
    };
    let mut group = group(powers, now);
    group.join(peer(1), now);
    group.join(peer(2), now);
    let orders = group.tick(now);
    assert_eq!(started(&orders), Some(vec![0, 1]));
    assert!(format!("{orders:?}").contains("using 2 of 3 nodes: 6 ranks"));
    // The third does not help, so it does not stop the others again and again.
    assert!(group.tick(now + 100 * SECOND).is_empty());
}

#[test]
fn a_new_leader_waits_for_those_who_may_come() {
    let now = Instant::now();
    let counts = Counts {
        generation: 4,
        restarts: 1,
        first_ranks: 6,
    };
    let mut group = Group::new(rules(1, 3), peer(1), (counts, vec![2]), "gone".into(), now);
    assert_eq!(started(&group.tick(now)), None);
    assert!(group.join(peer(2), now));
    let orders = group.tick(now);
    assert!(
        matches!(&orders[..], [Order::Start { generation: 5, .. }]),
        "{orders:?}"
    );
    let mut group = Group::new(rules(1, 3), peer(1), (counts, vec![2]), "gone".into(), now);
    group.do_not_expect(2);
    assert_eq!(started(&group.tick(now)), Some(vec![1]));
}

#[test]
fn a_leader_that_was_started_again_continues_the_generations() {
    let now = Instant::now();
    let mut group = group(rules(1, 3), now);
    assert!(group.join(peer(1), now));
    group.adopt(Counts {
        generation: 4,
        restarts: 1,
        first_ranks: 6,
    });
    // Others of that generation may come.
    assert_eq!(started(&group.tick(now + 9 * SECOND)), None);
    let orders = group.tick(now + 10 * SECOND);
    assert!(
        matches!(&orders[..], [Order::Start { generation: 5, .. }]),
        "{orders:?}"
    );
    assert_eq!(
        (group.counts().restarts, group.counts().first_ranks),
        (1, 6)
    );
    group.adopt(Counts {
        generation: u32::MAX,
        ..Counts::default()
    });
    assert_eq!(group.counts().generation, 5);
}

#[derive(Clone, Debug)]
enum Input {
    Join(u64),
    Lose(u64),
    Fail(u64),
    Report(u64, i32, bool),
    Tick(u64),
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let agent = 0..5_u64;
    let input = prop_oneof![
        agent.clone().prop_map(Input::Join),
        (1..5_u64).prop_map(Input::Lose),
        agent.clone().prop_map(Input::Fail),
        (agent, prop::sample::select(vec![0, 1, 75]), any::<bool>())
            .prop_map(|(agent, code, leaves)| Input::Report(agent, code, leaves && agent > 0)),
        (0..100_u64).prop_map(Input::Tick),
    ];
    prop::collection::vec(input, 0..80)
}

proptest! {
    /// Whatever happens: generations have from `min` to `max` agents, the leader first and nobody
    /// twice; none starts while ranks of one before run; and the end is final.
    #[test]
    fn generations_never_overlap(inputs in inputs(), min in 1..3_usize, more in 0..3_usize) {
        let mut now = Instant::now();
        let (min, max) = (min, min + more);
        let mut group = group(rules(min, max), now);
        let mut running: Vec<u64> = Vec::new();
        let (mut generation, mut over) = (0, false);
        for input in inputs {
            let orders = match input {
                Input::Join(agent) => {
                    group.join(peer(agent), now);
                    Vec::new()
                }
                Input::Lose(agent) => {
                    // Its ranks are gone or end by themselves.
                    running.retain(|other| *other != agent);
                    group.lose(agent, "gone", now)
                }
                Input::Fail(agent) => group.fail(agent, "failed".into(), now),
                Input::Report(agent, code, leaves) => {
                    if running.contains(&agent) {
                        running.retain(|other| *other != agent);
                        group.report(agent, Report { leaves, ..report(code) }, now);
                    }
                    Vec::new()
                }
                Input::Tick(seconds) => {
                    now += Duration::from_secs(seconds);
                    let orders = group.tick(now);
                    running.retain(|agent| group.has(*agent));
                    orders
                }
            };
            let concluded = match group.has_stopped() {
                true => group.conclude(None, now),
                false => Vec::new(),
            };
            for order in orders.into_iter().chain(concluded) {
                prop_assert!(!over, "{order:?} after the end");
                match order {
                    Order::Start { generation: number, peers, .. } => {
                        prop_assert!(running.is_empty(), "{running:?} still run");
                        prop_assert!(number == generation + 1);
                        prop_assert!((min..=max).contains(&peers.len()));
                        prop_assert!(peers[0].agent == 0);
                        running = peers.iter().map(|peer| peer.agent).collect();
                        let mut distinct = running.clone();
                        distinct.sort_unstable();
                        distinct.dedup();
                        prop_assert!(distinct.len() == running.len());
                        generation = number;
                    }
                    Order::End { .. } | Order::Leave => over = true,
                    Order::Stop(_) | Order::Say(_) | Order::Refuse { .. } => {}
                }
            }
        }
    }
}

#[test]
fn a_late_agent_waits_for_a_checkpoint_or_its_time() {
    let now = Instant::now();
    let grows = |orders: &[Order]| orders.contains(&Order::Stop(How::Grow));
    for saves in [false, true] {
        let mut group = group(rules(1, 2), now);
        // One before the start, or of an earlier generation, is none of these ranks.
        group.saved();
        assert!(started(&group.tick(now + 10 * SECOND)).is_some());
        group.join(peer(1), now + 11 * SECOND);
        assert!(!grows(&group.tick(now + 12 * SECOND)));
        if saves {
            group.saved();
        }
        assert_eq!(grows(&group.tick(now + 13 * SECOND)), saves);
        if !saves {
            assert!(grows(&group.tick(now + 41 * SECOND)));
        }
    }
}
