//! Copies of the state in the memory of nodes, which ranks and nodes are lost from.

use burn::module::Param;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Tensor;
use burn_dist::checkpoint::{MemoryCopies, NodeMemory};
use burn_dist::parallel::{Checksum, Parallel, ParallelOptions, Strategy};
use burn_dist::{ProcessGroup, TransportKind};
use proptest::prelude::*;
use proptest::strategy::Strategy as _;
use serde_json::json;

use crate::models::{Net, batch, on_ranks};

const VIRTUAL_RANKS: usize = 6;

/// Ranks that train together until a node is lost.
#[derive(Clone, Debug)]
struct Generation {
    strategy: Strategy,
    steps: u64,
    /// Which node is lost at the end, if there are others. All ranks are.
    lost: usize,
    /// Ranks of a node that comes then, if any.
    new: usize,
}

/// Trains from the newest state on, and returns the step before, and the checksum after the last.
fn train(
    group: &ProcessGroup,
    memory: NodeMemory,
    strategy: Strategy,
    steps: u64,
) -> (u64, Checksum) {
    let (copies, newest) = MemoryCopies::open(Some(memory), group).unwrap();
    let mut copies = copies.unwrap();
    let options = ParallelOptions {
        strategy,
        virtual_ranks: Some(VIRTUAL_RANKS),
        ..ParallelOptions::default()
    };
    let model = Net::new(1 + u64::from(newest.is_some()));
    let mut parallel = Parallel::new(model, AdamWConfig::new(), options, group).unwrap();
    let mut done = 0;
    if let Some(source) = &newest {
        parallel.restore(source).unwrap();
        done = source.manifest().step;
        parallel.set_steps(done);
        assert_eq!(source.manifest().meta, json!({ "done": done }));
    }
    // A node that is new has a share at once.
    let state = parallel.state().unwrap();
    assert!(
        copies
            .keep(group, done, state, &json!({ "done": done }))
            .unwrap()
    );
    for step in done..done + steps {
        while let Some(share) = parallel.next_share() {
            let rows = 4 * share.virtual_rank..4 * share.virtual_rank + 3;
            let loss = parallel.model().loss(batch(step, rows));
            parallel.backward(loss).unwrap();
        }
        parallel.step(0.02).unwrap();
        let state = parallel.state().unwrap();
        let meta = json!({ "done": step + 1 });
        assert!(copies.keep(group, step + 1, state, &meta).unwrap());
    }
    (done, parallel.verify_replicas().unwrap())
}

/// Returns the checksum after the last step.
fn run(first: &[usize], generations: &[Generation]) -> Checksum {
    let node = |ranks: usize| (ranks, NodeMemory::new(ranks).unwrap());
    let mut nodes: Vec<(usize, NodeMemory)> = first.iter().copied().map(node).collect();
    let (mut done, mut last) = (0, None);
    for generation in generations {
        let memory_of = |(ranks, memory): &(usize, NodeMemory)| vec![memory.clone(); *ranks];
        let memories: Vec<NodeMemory> = nodes.iter().flat_map(memory_of).collect();
        let Generation {
            strategy, steps, ..
        } = *generation;
        let ranks = on_ranks(memories.len(), TransportKind::Auto, move |group| {
            let memory = memories[group.rank()].clone();
            train(&group, memory, strategy, steps)
        });
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{ranks:?}");
        assert_eq!(
            ranks[0].0, done,
            "a state is lost: {first:?} {generations:?}"
        );
        done += steps;
        last = Some(ranks[0].1);
        if nodes.len() > 1 {
            nodes.remove(generation.lost % nodes.len());
        }
        let ranks: usize = nodes.iter().map(|(ranks, _)| ranks).sum();
        if generation.new > 0 && ranks + generation.new <= VIRTUAL_RANKS {
            nodes.insert(generation.lost % (nodes.len() + 1), node(generation.new));
        }
    }
    last.unwrap()
}

fn generation() -> impl proptest::strategy::Strategy<Value = Generation> {
    let strategy = prop::sample::select(Strategy::ALL.to_vec());
    (strategy, 0u64..3, 0usize..6, 0usize..3).prop_map(|(strategy, steps, lost, new)| Generation {
        strategy,
        steps,
        lost,
        new,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// After any losses, one node at a time, the ranks end as one rank that loses nothing.
    #[test]
    fn nothing_is_lost_with_a_node(
        first in prop::sample::select(vec![vec![1, 1], vec![2, 2], vec![3, 1], vec![2, 1, 3]]),
        generations in prop::collection::vec(generation(), 1..5),
    ) {
        let alone = Generation {
            strategy: Strategy::Ddp,
            steps: generations.iter().map(|generation| generation.steps).sum(),
            lost: 0,
            new: 0,
        };
        prop_assert_eq!(run(&first, &generations), run(&[1], &[alone]));
    }
}

/// Also of ranks that did keep theirs.
#[test]
fn a_state_that_one_rank_cannot_keep_leaves_the_one_before() {
    let memory = NodeMemory::new(2).unwrap();
    let first = memory.clone();
    let kept = on_ranks(2, TransportKind::Auto, move |group| {
        let (copies, _) = MemoryCopies::open(Some(first.clone()), &group).unwrap();
        let mut copies = copies.unwrap();
        let state = |value: f32| {
            let mut net = Net::new(1);
            let weight = net.extra.weight.val().inner() * value;
            net.extra.weight = Param::from_tensor(Tensor::from_inner(weight));
            let parallel = Parallel::new(net, SgdConfig::new(), Strategy::Ddp, &group).unwrap();
            parallel.state().unwrap()
        };
        assert!(copies.keep(&group, 1, state(1.0), &json!(1)).unwrap());
        // Twice: the ranks that can must not overwrite the last whole state.
        [2, 3].map(
            |step| match copies.keep(&group, step, state(f32::NAN), &json!(step)) {
                Ok(kept) => {
                    assert!(!kept);
                    None
                }
                Err(error) => Some(error.to_string()),
            },
        )
    });
    let errors = kept.iter().flatten().flatten();
    let errors: Vec<_> = errors.collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].contains("extra.weight"), "{errors:?}");
    let found = on_ranks(1, TransportKind::Auto, move |group| {
        let (_, newest) = MemoryCopies::open(Some(memory.clone()), &group).unwrap();
        newest.unwrap().manifest().clone()
    });
    assert_eq!((found[0].step, &found[0].meta), (1, &json!(1)));
}

/// Without an agent, or if a node's agent keeps none.
#[test]
fn ranks_without_memory_keep_nothing() {
    let found = on_ranks(2, TransportKind::Auto, |group| {
        let memory = (group.rank() == 0).then(|| NodeMemory::new(1).unwrap());
        let (copies, newest) = MemoryCopies::open(memory, &group).unwrap();
        copies.is_none() && newest.is_none()
    });
    assert_eq!(found, [true, true]);
}
