//! Running means and variances, updated by the moments of batches.

use burn::tensor::Tensor;
use kernels::gpu::{ThenNorm, batch_norm_train};

use crate::EPSILON;
use crate::check::{close, device, numbers};
use crate::inputs::{CASE, Case};

#[test]
fn gpu_running_statistics_are_blends() {
    let Some(device) = device("running statistics on a GPU") else {
        return;
    };
    // With and without whole vectors.
    for channels in [1, 8, 13, 300] {
        let case = Case {
            shape: [3, channels, 5, 7],
            ..CASE
        };
        let inputs = case.inputs();
        let expected = case.expected(&inputs);
        let x = case.tensor(&inputs.x, &device);
        let parameter = || Tensor::<1>::ones([channels], &device);
        let (_, moments) =
            batch_norm_train(x, [parameter(), parameter()], EPSILON, ThenNorm::default());
        let old = |from: f32| -> Vec<f32> { (0..channels).map(|i| from + i as f32).collect() };
        let (mean, variance) = (old(-2.0), old(3.0));
        let there = |values: &[f32]| Tensor::<1>::from_floats(values, &device);
        let before = [there(&mean), there(&variance)];
        let [new_mean, new_variance] = moments.running(before.clone(), 0.1, 1.25);
        let blend = |old: &[f32], seen: &[f64], weight: f64| -> Vec<f64> {
            let pairs = old.iter().zip(seen);
            pairs
                .map(|(old, seen)| f64::from(*old) * 0.9 + seen * weight)
                .collect()
        };
        let what = format!("{channels} channels");
        close(
            &what,
            &blend(&mean, &expected.mean, 0.1),
            &numbers(new_mean),
            1e-6,
        );
        let expected = blend(&variance, &expected.variance, 0.125);
        close(&what, &expected, &numbers(new_variance), 1e-6);
        let [held, _] = before;
        assert_eq!(held.into_data().try_to_vec::<f32>().unwrap(), mean);
    }
}
