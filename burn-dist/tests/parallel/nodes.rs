//! Ranks on several nodes compared with the same ranks on one.

use std::num::NonZeroUsize;

use burn_dist::group::Algorithm;
use burn_dist::parallel::{ShardWithin, Strategy};
use burn_dist::{Compression, GroupOptions, TransportKind};

use crate::models::{assert_close, on_ranks, on_ranks_with, patient, values};
use crate::zero::{Outcome, STAGES, adamw, train, with};

fn nodes_of(ranks: usize, algorithm: Algorithm) -> GroupOptions {
    GroupOptions {
        algorithm,
        ranks_per_node: NonZeroUsize::new(ranks),
        ..patient()
    }
}

fn strategies() -> impl Iterator<Item = Strategy> {
    [Strategy::Ddp].into_iter().chain(STAGES)
}

/// Trains `size` ranks on one node.
fn on_one_node(size: usize, strategy: Strategy) -> Vec<Outcome> {
    on_ranks(size, TransportKind::Shm, move |group| {
        train(&group, adamw(), with(strategy, |_| ()))
    })
}

#[test]
fn every_strategy_trains_alike_wherever_its_ranks_are() {
    for (size, each) in [(4, 2), (6, 3), (6, 2), (5, 2)] {
        for strategy in strategies() {
            let found = on_ranks_with(nodes_of(each, Algorithm::Auto), size, move |group| {
                assert_eq!(group.nodes(), size.div_ceil(each));
                train(&group, adamw(), with(strategy, |_| ()))
            });
            for (found, expected) in found.iter().zip(on_one_node(size, strategy)) {
                assert_eq!(found.losses, expected.losses, "{strategy}, {size}");
                assert_eq!(values(&found.model), values(&expected.model), "{strategy}");
            }
        }
    }
}

#[test]
fn nodes_that_add_up_their_own_first_train_alike_within_rounding() {
    for strategy in strategies() {
        let options = nodes_of(2, Algorithm::NodeFirst);
        let found = on_ranks_with(options, 4, move |group| {
            assert_eq!(group.transport(), "shm+tcp");
            train(&group, adamw(), with(strategy, |_| ()))
        });
        for (found, expected) in found.iter().zip(on_one_node(4, strategy)) {
            assert_close(&found.model, &expected.model, crate::rounding());
            for (loss, expected) in found.losses.iter().zip(&expected.losses) {
                let difference = (loss / expected - 1.0).abs();
                assert!(difference <= crate::rounding(), "{strategy}: {difference}");
            }
        }
    }
}

#[test]
fn nodes_hold_copies_of_each_other() {
    for strategy in STAGES {
        let options = nodes_of(2, Algorithm::Auto);
        let found = on_ranks_with(options, 4, move |group| {
            let change = |options: &mut burn_dist::parallel::ParallelOptions| {
                options.shard_within = ShardWithin::Node;
            };
            train(&group, adamw(), with(strategy, change))
        });
        for (found, expected) in found.iter().zip(on_one_node(4, strategy)) {
            assert_close(&found.model, &expected.model, crate::rounding());
        }
    }
}

/// Only data that leaves a node is rounded, and all ranks have the same result, which `train`
/// verifies.
#[test]
fn gradients_are_compressed_between_nodes() {
    for algorithm in [Algorithm::Auto, Algorithm::NodeFirst] {
        for strategy in strategies() {
            let found = on_ranks_with(nodes_of(2, algorithm), 4, move |group| {
                let change = |options: &mut burn_dist::parallel::ParallelOptions| {
                    options.compression = Compression::F16;
                };
                train(&group, adamw(), with(strategy, change))
            });
            for (found, exact) in found.iter().zip(on_one_node(4, strategy)) {
                assert_ne!(values(&found.model), values(&exact.model), "{strategy}");
                for (loss, exact) in found.losses.iter().zip(&exact.losses) {
                    assert!(
                        (loss / exact - 1.0).abs() <= 0.05,
                        "{strategy}: {loss} {exact}"
                    );
                }
            }
        }
    }
}
