//! Checks that the CNN on two ranks follows the CNN in one process.

use std::thread;

use burn::module::Module;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn_dist::parallel::{Parallel, Strategy};
use burn_dist::{GroupOptions, ProcessGroup};
use models::{Cnn, CnnConfig};

const GLOBAL_BATCH: usize = 8;
const PIXELS: usize = 12 * 12;

fn model() -> Cnn {
    CnnConfig::new()
        .with_height(12)
        .with_width(12)
        .with_filters([6, 8])
        .with_hidden(16)
        .with_dropout_conv(0.0)
        .with_dropout_hidden(0.0)
        .init(&Device::flex().autodiff())
        .unwrap()
}

/// Returns the loss of images `rows` of the global batch: the mean square of the logits around 1.
fn loss(model: &Cnn, rows: std::ops::Range<usize>) -> Tensor<1> {
    let pixel = |i: usize| ((i * 37 + i / PIXELS * 11) % 23) as f32 / 23.0 - 0.4;
    let images = (rows.start * PIXELS..rows.end * PIXELS)
        .map(pixel)
        .collect();
    let data = TensorData::new(images, [rows.len(), 1, 12, 12]);
    let logits = model.forward(Tensor::from_data(data, &Device::flex()));
    (logits - 1.0).square().mean()
}

fn train(start: Cnn, group: &ProcessGroup) -> Vec<f32> {
    let mut parallel = Parallel::new(start, SgdConfig::new(), Strategy::Ddp, group).unwrap();
    let share = GLOBAL_BATCH / group.size();
    let rows = group.rank() * share..(group.rank() + 1) * share;
    for _ in 0..5 {
        let loss = loss(parallel.model(), rows.clone());
        parallel.backward(loss).unwrap();
        parallel.step(0.1).unwrap();
    }
    parallel.verify_replicas().unwrap();
    let all = loss(&parallel.valid().unwrap(), 0..GLOBAL_BATCH);
    let logits = parallel
        .valid()
        .unwrap()
        .forward(Tensor::ones([1, 1, 12, 12], &Device::flex()));
    let mut values: Vec<f32> = logits.into_data().try_to_vec().unwrap();
    values.push(all.into_scalar());
    values
}

#[test]
fn two_ranks_follow_one() {
    let start = model();
    assert!(start.num_params() > 0);
    let before: f32 = loss(&start.valid(), 0..GLOBAL_BATCH).into_scalar();
    let expected = train(start.clone(), &ProcessGroup::single());
    let groups = ProcessGroup::in_process(2, &GroupOptions::default()).unwrap();
    let ranks: Vec<Vec<f32>> = thread::scope(|scope| {
        let start = &start;
        let spawn = |group| scope.spawn(move || train(start.clone(), &group));
        let threads: Vec<_> = groups.into_iter().map(spawn).collect();
        threads
            .into_iter()
            .map(|rank| rank.join().unwrap())
            .collect()
    });
    assert_eq!(ranks[0], ranks[1]);
    for (value, expected) in ranks[0].iter().zip(&expected) {
        assert!((value - expected).abs() <= 1e-5 * expected.abs().max(1.0));
    }
    let after = expected[expected.len() - 1];
    assert!(after < before, "{after} is not below {before}");
}
