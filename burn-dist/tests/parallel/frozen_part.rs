//! A loss that passes through a frozen view of a part of the model, as a generator's does.

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn_dist::TransportKind;
use burn_dist::parallel::{Parallel, Strategy};

use crate::models::{Net, batch, on_ranks, values};

#[test]
fn a_frozen_view_of_a_part_passes_gradients_on_and_gets_none() {
    for strategy in [
        Strategy::Ddp,
        Strategy::Zero1,
        Strategy::Zero2,
        Strategy::Zero3,
    ] {
        let ranks = on_ranks(2, TransportKind::Auto, move |group| {
            let mut parallel =
                Parallel::new(Net::new(1), AdamWConfig::new(), strategy, &group).unwrap();
            let before = values(&parallel.valid().unwrap());
            for step in 0..2 {
                let start = 4 * group.rank();
                let (inputs, targets) = batch(step, start..start + 4);
                let model = parallel.model();
                let judge = model.out.clone().no_grad();
                let output = judge.forward(tanh(model.features(inputs)));
                parallel
                    .backward((output - targets).square().mean())
                    .unwrap();
                parallel.step(0.01).unwrap();
            }
            parallel.verify_replicas().unwrap();
            let after = values(&parallel.valid().unwrap());
            for ((path, before), (_, after)) in before.iter().zip(&after) {
                assert_eq!(
                    path.starts_with("blocks"),
                    before != after,
                    "{strategy} {path}"
                );
            }
            // The view did not freeze the model.
            let loss = parallel.model().loss(batch(9, 0..4));
            parallel.backward(loss).unwrap();
            parallel.step(0.01).unwrap();
            let trained = values(&parallel.valid().unwrap());
            assert!(
                after
                    .iter()
                    .zip(&trained)
                    .all(|(a, b)| a.0.starts_with("extra") || a != b)
            );
            trained
        });
        assert_eq!(ranks[0], ranks[1], "{strategy}");
    }
}
