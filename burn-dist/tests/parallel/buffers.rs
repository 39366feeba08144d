//! Running statistics across ranks.

use burn::module::Module;
use burn::optim::SgdConfig;
use burn_dist::TransportKind;
use burn_dist::parallel::{Parallel, Strategy};

use crate::models::{Normed, Values, batch, on_ranks, value_at, values};

const MEAN: &str = "norm.running_mean";

/// Returns the values of every rank's model after three steps on its own data, with or without
/// buffers from rank 0 at the end, and after a fourth step on common data.
fn train(sync: bool) -> Vec<[Values; 2]> {
    on_ranks(3, TransportKind::Auto, move |group| {
        let rank = group.rank();
        let model = Normed::new(1 + rank as u64);
        let mut parallel = Parallel::new(model, SgdConfig::new(), Strategy::Ddp, &group).unwrap();
        let step = |parallel: &mut Parallel<Normed>, step, rows| {
            let loss = parallel.model().loss(batch(step, rows));
            parallel.backward(loss).unwrap();
            parallel.step(0.1).unwrap();
        };
        for index in 0..3 {
            step(&mut parallel, index, 8 * rank..8 * (rank + 1));
        }
        if sync {
            parallel.sync_buffers().unwrap();
        }
        let before = values(&parallel.valid().unwrap());
        step(&mut parallel, 9, 0..8);
        parallel.verify_replicas().unwrap();
        [before, values(&parallel.valid().unwrap())]
    })
}

fn mean(values: &[(String, Vec<f32>)]) -> &[f32] {
    let found = values.iter().find(|(path, _)| path == MEAN);
    found.map_or(&[], |(_, mean)| mean)
}

#[test]
fn running_statistics_follow_each_rank_until_they_are_synchronised() {
    let drifted = train(false);
    let synced = train(true);
    assert_ne!(mean(&drifted[0][0]), mean(&drifted[1][0]));
    assert_ne!(mean(&drifted[0][0]), mean(&drifted[2][0]));
    // All ranks have rank 0's buffers, and the next step does not restore an earlier update.
    for rank in &synced {
        assert_eq!(rank[0], drifted[0][0]);
        assert_eq!(rank[1], drifted[0][1]);
    }
}

#[test]
fn everything_starts_as_it_is_on_rank_0() {
    let ranks = on_ranks(2, TransportKind::Auto, |group| {
        let model = Normed::new(1 + group.rank() as u64);
        let parallel = Parallel::new(model, SgdConfig::new(), Strategy::Ddp, &group).unwrap();
        parallel.valid().unwrap()
    });
    let expected = values(&Normed::new(1).valid());
    assert!(!mean(&expected).is_empty());
    assert_ne!(value_at(&Normed::new(2).valid(), MEAN), mean(&expected));
    for rank in &ranks {
        assert_eq!(values(rank), expected);
    }
}
