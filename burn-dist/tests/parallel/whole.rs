//! Sharded optimizers that need whole parameters: every such parameter has one owner.

use std::collections::BTreeMap;

use burn::optim::{AdafactorConfig, AdamWConfig, LambConfig, LionConfig, MuonConfig, SgdConfig};
use burn_dist::parallel::{
    EmaOptions, Parallel, ParallelError, ParallelOptions, ParameterGroup, ParameterOptimizer,
    ParameterSpec, StateValues, Strategy, path_matches,
};
use burn_dist::{ProcessGroup, TransportKind};

use crate::models::{Net, batch, on_ranks};
use crate::zero::{Follow, STAGES, assert_follows, with};

fn lamb() -> ParameterOptimizer {
    LambConfig::new().with_weight_decay(0.1).into()
}

fn adafactor() -> ParameterOptimizer {
    AdafactorConfig::new().into()
}

/// Matrices whole, all others split.
fn muon() -> ParameterOptimizer {
    let is_matrix = |spec: &ParameterSpec| spec.shape.len() == 2;
    let matrices = ParameterGroup::new("matrices", is_matrix, MuonConfig::new());
    ParameterOptimizer::from(AdamWConfig::new()).with_group(matrices)
}

/// Three optimizers, one of which takes parts.
fn mixed() -> ParameterOptimizer {
    let matches =
        |pattern: &'static str| move |spec: &ParameterSpec| path_matches(pattern, &spec.path);
    let first = ParameterGroup::new("first", matches("blocks.0.*"), LambConfig::new());
    let head = ParameterGroup::new("head", matches("out.*"), AdafactorConfig::new());
    ParameterOptimizer::from(SgdConfig::new())
        .with_group(first.with_lr_factor(0.5))
        .with_group(head)
}

/// An optimizer with unknown properties.
fn own() -> ParameterOptimizer {
    ParameterOptimizer::new(LionConfig::new().build())
}

const ALL: [fn() -> ParameterOptimizer; 5] = [lamb, adafactor, muon, mixed, own];

#[test]
fn up_to_two_ranks_follow_bit_for_bit() {
    for size in [1, 2] {
        for optimizer in ALL {
            assert_follows(size, optimizer, |_| (), Follow::BitForBit);
        }
    }
}

#[test]
fn more_ranks_follow_closely() {
    for size in [3, 4] {
        for optimizer in ALL {
            assert_follows(size, optimizer, |_| (), Follow::Closely);
        }
    }
}

#[test]
fn averages_follow_bit_for_bit() {
    let ema = |options: &mut ParallelOptions| {
        options.ema = Some(EmaOptions {
            decay: 0.8,
            warmup: true,
        });
        options.prefetch = 2;
    };
    for optimizer in [lamb, mixed] {
        assert_follows(2, optimizer, ema, Follow::BitForBit);
    }
}

#[test]
fn nothing_or_much_may_be_gathered_ahead() {
    assert_follows(2, muon, |options| options.prefetch = 0, Follow::BitForBit);
    assert_follows(2, mixed, |options| options.prefetch = 5, Follow::BitForBit);
}

#[test]
fn clipped_and_accumulated_steps_follow_closely() {
    let change = |options: &mut ParallelOptions| {
        options.accumulate = 2;
        options.clip_norm = Some(0.2);
    };
    for size in [2, 3] {
        for optimizer in [lamb, mixed] {
            assert_follows(size, optimizer, change, Follow::Closely);
        }
    }
}

/// Returns the state of each of `size` ranks after a step.
fn shares(
    size: usize,
    strategy: Strategy,
    optimizer: fn() -> ParameterOptimizer,
) -> Vec<StateValues> {
    on_ranks(size, TransportKind::Auto, move |group| {
        let options = with(strategy, |_| ());
        let mut parallel = Parallel::new(Net::new(1), optimizer(), options, &group).unwrap();
        // A loss to which all parameters contribute.
        let (inputs, targets) = batch(1, 0..4);
        let net = parallel.model();
        let features = net.features(inputs);
        let out = net.out.forward(features.clone()) + net.extra.forward(features);
        parallel.backward((out - targets).square().mean()).unwrap();
        parallel.step(0.01).unwrap();
        parallel.state().unwrap().read().unwrap()
    })
}

#[test]
fn every_parameter_has_one_owner_and_owners_have_about_as_much() {
    for strategy in STAGES {
        for (size, best) in [(2, 72), (3, 64)] {
            let shares = shares(size, strategy, lamb);
            let mut seen = BTreeMap::new();
            let mut loads = Vec::new();
            for share in &shares {
                assert!(share.parts.is_empty(), "{:?}", share.parts);
                let mut load = 0;
                for (name, data) in &share.tensors {
                    if name.starts_with("optimizer/") {
                        *seen.entry(name.clone()).or_insert(0) += 1;
                        load += data.num_elements();
                    }
                }
                loads.push(load);
            }
            // Two moments of each of eight parameters.
            assert_eq!(seen.len(), 16, "{seen:?}");
            assert!(seen.values().all(|count| *count == 1), "{seen:?}");
            // The optimum: 64 and 8 of the 138 elements on one of two ranks, 64 on one of three.
            assert_eq!(loads.iter().sum::<usize>(), 2 * 138);
            assert_eq!(loads.iter().max(), Some(&(2 * best)), "{loads:?}");
        }
    }
}

#[test]
fn other_parameters_of_the_same_model_are_cut() {
    for strategy in STAGES {
        let shares = shares(3, strategy, mixed);
        let of = |path: &str| {
            let prefix = format!("model/{path}");
            let parts = shares.iter().flat_map(|share| &share.parts);
            let cut = parts.filter(|part| part.name == prefix).count();
            let tensors = shares.iter().flat_map(|share| &share.tensors);
            (cut, tensors.filter(|(name, _)| *name == prefix).count())
        };
        if strategy == Strategy::Zero3 {
            assert_eq!(of("blocks.0.weight"), (0, 1));
            assert!(of("blocks.1.weight").0 > 1, "{:?}", of("blocks.1.weight"));
        }
        let names = shares.iter().flat_map(|share| &share.tensors);
        let factors = names.filter(|(name, _)| name.starts_with("optimizer/out.weight/"));
        let shapes: Vec<_> = factors.map(|(_, data)| data.shape().to_vec()).collect();
        // A weight of 8 x 1 has a factor for every row, and one for its column.
        assert_eq!(shapes.len(), 2, "{shapes:?}");
        assert!(
            shapes.contains(&vec![8, 1]) && shapes.contains(&vec![1, 1]),
            "{shapes:?}"
        );
    }
}

#[test]
fn an_optimizer_for_matrices_is_given_nothing_else() {
    for strategy in [Strategy::Ddp, Strategy::Zero3] {
        let group = ProcessGroup::single();
        let refused = Parallel::new(Net::new(1), MuonConfig::new(), strategy, &group);
        match refused.err() {
            Some(error @ ParallelError::NotAMatrix { .. }) => {
                let message = error.to_string();
                assert!(
                    message.contains("blocks.0.bias") && message.contains("[8]"),
                    "{message}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}
