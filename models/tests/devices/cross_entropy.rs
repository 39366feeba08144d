//! Cross-entropy of classes, mixed and smoothed, compared with its definition.

use burn::tensor::{FloatDType, Int, Tensor};
use kernels::gpu::cross_entropy;

use crate::check::{close, device, numbers};

/// Returns the mean loss of rows of `logits`, and its gradient, in double precision.
fn expected_cross_entropy(
    logits: &[f64],
    classes: &[usize],
    other: Option<(&[usize], &[f32])>,
    smoothing: f64,
) -> (f64, Vec<f64>) {
    let rows = classes.len();
    let columns = logits.len() / rows;
    let (mut loss, mut gradient) = (0.0, Vec::new());
    for (row, logits) in logits.chunks(columns).enumerate() {
        let mut target = vec![smoothing / columns as f64; columns];
        let weight = other.map_or(1.0, |(_, weights)| f64::from(weights[row]));
        target[classes[row]] += (1.0 - smoothing) * weight;
        if let Some((others, _)) = other {
            target[others[row]] += (1.0 - smoothing) * (1.0 - weight);
        }
        let most = logits.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = logits.iter().map(|x| (x - most).exp()).sum();
        for (x, target) in logits.iter().zip(target) {
            let log_probability = x - most - sum.ln();
            loss -= target * log_probability / rows as f64;
            gradient.push((log_probability.exp() - target) / rows as f64);
        }
    }
    (loss, gradient)
}

#[test]
fn gpu_cross_entropy_is_that_of_the_definition() {
    let Some(device) = device("cross-entropy on a GPU") else {
        return;
    };
    let half = device.supports_dtype(FloatDType::F16);
    for (rows, columns) in [(1, 1), (3, 10), (257, 100), (5, 7), (2, 1003)] {
        for (dtype, mixed, smoothing) in [
            (FloatDType::F32, false, 0.0),
            (FloatDType::F32, true, 0.1),
            (FloatDType::F16, false, 0.1),
            (FloatDType::F16, true, 0.0),
        ] {
            if dtype == FloatDType::F16 && !half {
                eprintln!("SKIPPED: cross-entropy in f16: this device does not compute in it");
                continue;
            }
            let mut random = fastrand::Rng::with_seed(5);
            // Numbers that half precision can represent, some with exponentials beyond f32.
            let logits: Vec<f32> = (0..rows * columns)
                .map(|at| random.i32(-40..40) as f32 / 8.0 * if at % 50 == 0 { 25.0 } else { 1.0 })
                .collect();
            let mut draw = || (0..rows).map(|_| random.usize(0..columns)).collect();
            let (classes, others): (Vec<usize>, Vec<usize>) = (draw(), draw());
            let weights: Vec<f32> = (0..rows).map(|row| row as f32 / rows as f32).collect();
            let exact: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
            let other = mixed.then_some((others.as_slice(), weights.as_slice()));
            let (loss, gradient) = expected_cross_entropy(&exact, &classes, other, smoothing);

            let tracked = device.clone().autodiff();
            let there = |classes: &[usize]| {
                let classes: Vec<i32> = classes.iter().map(|class| *class as i32).collect();
                Tensor::<1, Int>::from_ints(classes.as_slice(), &tracked)
            };
            let x = Tensor::<1>::from_floats(logits.as_slice(), &tracked);
            let x = x.reshape([rows, columns]).require_grad();
            let other = mixed.then(|| {
                let weights = Tensor::<1>::from_floats(weights.as_slice(), &tracked);
                (there(&others), weights)
            });
            let found = cross_entropy(x.clone().cast(dtype), there(&classes), other, smoothing);
            assert_eq!(found.dims(), [1]);
            assert_eq!(FloatDType::from(found.dtype()), FloatDType::F32);
            // Like a scaled loss.
            let dx = x
                .grad_remove(&mut (found.clone() * 64.0).backward())
                .unwrap();
            let what = format!("cross-entropy of {rows} × {columns} in {dtype:?}, mixed: {mixed}");
            close(&what, &[loss], &numbers(found), 2e-6);
            let gradient: Vec<f64> = gradient.iter().map(|dx| dx * 64.0).collect();
            let tolerance = if dtype == FloatDType::F16 { 1e-3 } else { 2e-6 };
            close(
                &format!("gradient of {what}"),
                &gradient,
                &numbers(dx),
                tolerance,
            );
        }
    }
}

#[test]
fn gpu_cross_entropy_of_a_class_that_does_not_exist_reads_nothing_else() {
    let Some(device) = device("cross-entropy of impossible classes") else {
        return;
    };
    let tracked = device.autodiff();
    let x = Tensor::<2>::from_floats([[1.0, 3.0], [0.0, 0.0]], &tracked).require_grad();
    let classes = Tensor::<1, Int>::from_ints([-1, i32::MAX], &tracked);
    let loss = cross_entropy(x.clone(), classes, None, 0.0);
    let dx = numbers(x.grad_remove(&mut loss.backward()).unwrap());
    assert!(numbers(loss)[0].is_finite());
    assert!((dx.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{dx:?}");
}
