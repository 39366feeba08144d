//! Compressed gradients: replicas stay equal, all strategies agree, and the loss stays close.

use burn_dist::parallel::{ParallelOptions, ShardWithin, Strategy};
use burn_dist::{Compression, TransportKind};

use crate::models::{on_ranks, values};
use crate::zero::{STAGES, adamw, train, with};

/// Returns the losses and the parameters of rank 0.
fn trained(
    size: usize,
    transport: TransportKind,
    strategy: Strategy,
    change: impl Fn(&mut ParallelOptions) + Copy + Send + Sync + 'static,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let ranks = on_ranks(size, transport, move |group| {
        // Compares the parameters of all ranks.
        let outcome = train(&group, adamw(), with(strategy, change));
        let parameters = values(&outcome.model);
        (
            outcome.losses,
            parameters.into_iter().map(|(_, values)| values).collect(),
        )
    });
    ranks.into_iter().next().unwrap()
}

#[test]
fn all_strategies_agree_and_stay_near() {
    for compression in [Compression::Bf16, Compression::F16] {
        for size in [2, 3] {
            let change = move |options: &mut ParallelOptions| options.compression = compression;
            let exact = trained(size, TransportKind::Tcp, Strategy::Ddp, |_| ());
            let ddp = trained(size, TransportKind::Tcp, Strategy::Ddp, change);
            assert_ne!(ddp, exact, "nothing was compressed");
            for (loss, exact) in ddp.0.iter().zip(&exact.0) {
                assert!((loss / exact - 1.0).abs() < 0.02, "{loss} {exact}");
            }
            for strategy in STAGES {
                let found = trained(size, TransportKind::Tcp, strategy, change);
                assert_eq!(found, ddp, "{strategy}, {size} ranks, {compression}");
            }
        }
    }
}

#[test]
fn sets_of_shards_are_compressed_within_and_across() {
    let sets = |options: &mut ParallelOptions| {
        options.shard_within = ShardWithin::Ranks(2.try_into().unwrap());
    };
    let compressed = move |options: &mut ParallelOptions| {
        sets(options);
        options.compression = Compression::Bf16;
    };
    for strategy in STAGES {
        let exact = trained(4, TransportKind::Tcp, strategy, sets);
        let found = trained(4, TransportKind::Tcp, strategy, compressed);
        assert_ne!(found, exact);
        for (loss, exact) in found.0.iter().zip(&exact.0) {
            assert!((loss / exact - 1.0).abs() < 0.02, "{loss} {exact}");
        }
    }
}

#[test]
fn memory_that_ranks_share_is_left_as_it_is() {
    let change = |options: &mut ParallelOptions| options.compression = Compression::Bf16;
    for strategy in [Strategy::Ddp, Strategy::Zero2] {
        let exact = trained(2, TransportKind::Shm, strategy, |_| ());
        assert_eq!(trained(2, TransportKind::Shm, strategy, change), exact);
    }
}
