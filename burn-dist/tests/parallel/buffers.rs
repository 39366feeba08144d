//! Running statistics across ranks.

use burn::module::Module;
use burn::optim::SgdConfig;
use burn_dist::TransportKind;
use burn_dist::parallel::{Parallel, Strategy};

use crate::models::{Normed, batch, on_ranks, value_at, values};

const MEAN: &str = "norm.running_mean";

#[test]
fn running_statistics_start_equal_drift_and_can_be_synchronised() {
    let ranks = on_ranks(3, TransportKind::Auto, |group| {
        let rank = group.rank();
        let model = Normed::new(1 + rank as u64);
        let mut parallel = Parallel::new(model, SgdConfig::new(), Strategy::Ddp, &group).unwrap();
        let start = values(&parallel.valid());
        for step in 0..3 {
            let loss = parallel.model().loss(batch(step, 8 * rank..8 * (rank + 1)));
            parallel.backward(loss).unwrap();
            parallel.step(0.1).unwrap();
        }
        let drifted = value_at(&parallel.valid(), MEAN);
        parallel.sync_buffers().unwrap();
        let synced = values(&parallel.valid());
        parallel.verify_replicas().unwrap();
        // Synchronised statistics are not overwritten by an update from before.
        let loss = parallel.model().loss(batch(9, 0..8));
        parallel.backward(loss).unwrap();
        parallel.step(0.1).unwrap();
        (start, drifted, synced, values(&parallel.valid()))
    });
    let (start, drifted, synced, after) = &ranks[0];
    assert_eq!(*start, values(&Normed::new(1).valid()));
    assert!(start.iter().any(|(path, _)| path == MEAN));
    for (other_start, other_drifted, other_synced, other_after) in &ranks[1..] {
        assert_eq!(other_start, start);
        assert_ne!(other_drifted, drifted);
        assert_eq!(other_synced, synced);
        assert_eq!(other_after, after);
    }
    let at = |values: &[(String, Vec<f32>)]| {
        let found = values.iter().find(|(path, _)| path == MEAN);
        found.map(|(_, mean)| mean.clone())
    };
    assert_eq!(at(synced).as_ref(), Some(drifted));
    assert_ne!(at(start).as_ref(), Some(drifted));
}
