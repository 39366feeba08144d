//! Means over images' pixels, all of them or the first rows and columns.

use burn::tensor::Tensor;
use kernels::gpu::mean_of_pixels;

use crate::check::{close, device, numbers};

#[test]
fn gpu_means_are_over_the_first_rows_and_columns() {
    let Some(device) = device("means on a GPU") else {
        return;
    };
    for (shape, part) in [
        ([3, 8, 5, 4], [5, 4]),
        ([2, 6, 8, 8], [7, 7]),
        ([2, 5, 3, 6], [1, 6]),
    ] {
        let [batch, channels, rows, columns] = shape;
        let mut random = fastrand::Rng::with_seed(4);
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| random.f32() - 0.5).collect();
        let share = 1.0 / (part[0] * part[1]) as f64;
        let mut expected = vec![0.0; batch * channels];
        let mut dx = vec![0.0; count];
        for (at, value) in values.iter().enumerate() {
            let (plane, row, column) = (at / columns / rows, at / columns % rows, at % columns);
            if row < part[0] && column < part[1] {
                expected[plane] += f64::from(*value) * share;
                dx[at] = (plane as f64 + 1.0) * share;
            }
        }
        let tracked = device.clone().autodiff();
        let x = Tensor::<1>::from_floats(values.as_slice(), &tracked).reshape(shape);
        let x = x.require_grad();
        let out = mean_of_pixels(x.clone(), part).unwrap();
        assert_eq!(out.dims(), [batch, channels]);
        let dy: Vec<f32> = (0..expected.len())
            .map(|plane| plane as f32 + 1.0)
            .collect();
        let dy = Tensor::<1>::from_floats(dy.as_slice(), &tracked).reshape(out.dims());
        let gradients = (out.clone() * dy).sum().backward();
        let what = format!("the mean over {part:?} of {shape:?}");
        close(&what, &expected, &numbers(out), 1e-6);
        close(&what, &dx, &numbers(x.grad(&gradients).unwrap()), 1e-6);
        for outside in [[rows + 1, 1], [1, columns + 1], [0, 1]] {
            assert!(mean_of_pixels(x.clone(), outside).is_none());
        }
    }
}
