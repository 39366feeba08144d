//! Losses that depend on a part of the model, on parameters that were read separately, or on
//! another model.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{FloatDType, Tensor};
use burn_dist::parallel::{Parallel, ParallelError, Strategy};
use burn_dist::{ProcessGroup, TransportKind};

use crate::models::{Net, Values, batch, on_ranks, values};

const ALL: [Strategy; 4] = [
    Strategy::Ddp,
    Strategy::Zero1,
    Strategy::Zero2,
    Strategy::Zero3,
];

fn parallel(strategy: Strategy, group: &ProcessGroup) -> Parallel<Net> {
    let decaying = AdamWConfig::new().with_weight_decay(0.5);
    Parallel::new(Net::new(1), decaying, strategy, group).unwrap()
}

/// Applies a head to the output of a trunk with boundaries, detached from it.
fn probe(net: &Net, step: u64, rank: usize) -> Tensor<1> {
    let (inputs, targets) = batch(step, rank * 3..rank * 3 + 3);
    let features = net.features(inputs).detach();
    (net.out.forward(features) - targets).square().mean()
}

#[test]
fn a_trunk_that_the_loss_is_cut_off_from_stays_as_it_is() {
    for strategy in ALL {
        let trained: Vec<Values> = on_ranks(2, TransportKind::Auto, move |group| {
            let mut parallel = parallel(strategy, &group);
            for step in 0..3 {
                let loss = probe(parallel.model(), step, group.rank());
                parallel.backward(loss).unwrap();
                parallel.step(0.1).unwrap();
            }
            values(&parallel.valid().unwrap())
        });
        let before = values(&Net::new(1));
        for ((path, trained), (_, before)) in trained[0].iter().zip(&before) {
            let changed = before != trained;
            assert_eq!(changed, path.starts_with("out."), "{strategy} {path}");
        }
        assert_eq!(trained[0], trained[1], "{strategy}");
    }
}

/// Sum of the squares of all parameters, found by a visitor.
struct Penalty(Option<Tensor<1>>);

impl ModuleVisitor for Penalty {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let squares = param.val().square().sum();
        self.0 = Some(match self.0.take() {
            Some(sum) => sum + squares,
            None => squares,
        });
    }
}

fn penalty(net: &Net) -> Tensor<1> {
    let mut penalty = Penalty(None);
    net.visit(&mut penalty);
    penalty.0.unwrap()
}

/// Returns the ranks' results for a loss with an additional term.
fn outcomes(strategy: Strategy, added: fn(&Net) -> Tensor<1>) -> Vec<Result<(), String>> {
    on_ranks(2, TransportKind::Auto, move |group| {
        let mut parallel = parallel(strategy, &group);
        let net = parallel.model();
        let loss = net.loss(batch(0, 0..3)) + added(net);
        parallel.backward(loss).map_err(|error| error.to_string())
    })
}

#[test]
fn parameters_that_are_read_without_their_hooks_are_an_error() {
    for strategy in ALL {
        for outcome in outcomes(strategy, |net| net.extra.weight.val().square().sum()) {
            outcome.unwrap();
        }
        for outcome in outcomes(strategy, penalty) {
            let error = outcome.unwrap_err();
            assert!(error.contains("`blocks.0.weight`"), "{strategy} {error}");
        }
        for outcome in outcomes(strategy, |net| (*net.extra.weight).clone().square().sum()) {
            let error = outcome.unwrap_err();
            assert!(error.contains("`extra.weight`"), "{strategy} {error}");
            assert!(error.contains("field.val()"), "{error}");
        }
    }
}

#[test]
fn the_loss_of_another_model_is_an_error() {
    for strategy in ALL {
        on_ranks(2, TransportKind::Auto, move |group| {
            let mut trained = parallel(strategy, &group);
            let other = Net::new(2);
            trained.backward(other.loss(batch(0, 0..3))).unwrap();
            let error = trained.step(0.1).unwrap_err();
            assert!(matches!(error, ParallelError::NoGradients), "{error}");
        });
    }
}

#[test]
fn no_state_is_saved_within_a_step() {
    on_ranks(2, TransportKind::Auto, |group| {
        let options = burn_dist::parallel::ParallelOptions {
            accumulate: 2,
            ..Default::default()
        };
        let mut parallel = Parallel::new(Net::new(1), AdamWConfig::new(), options, &group).unwrap();
        assert_eq!(parallel.compute_dtype(), FloatDType::F32);
        parallel.state().unwrap();
        for _ in 0..2 {
            let loss = parallel.model().loss(batch(0, 0..3));
            parallel.backward(loss).unwrap();
            let error = parallel.state().err().unwrap().to_string();
            assert!(
                error.contains("a state can be saved only between steps"),
                "{error}"
            );
        }
        parallel.step(0.1).unwrap();
        parallel.state().unwrap();
    });
}
