//! Class tokens and patches at their positions.

use burn::tensor::{FloatDType, Tensor};
use kernels::gpu::embed;

use crate::check::{close, device, numbers};

#[test]
fn gpu_tokens_are_at_their_positions_behind_the_class_token() {
    let Some(device) = device("tokens on a GPU") else {
        return;
    };
    for ([images, count, features], dtype, tolerance) in [
        ([3, 4, 8], FloatDType::F32, 1e-6),
        ([300, 5, 7], FloatDType::F32, 1e-5),
        ([2, 1, 1], FloatDType::F32, 1e-6),
        ([40, 9, 12], FloatDType::F16, 1e-3),
    ] {
        let tokens = count + 1;
        let mut random = fastrand::Rng::with_seed(5);
        let tracked = device.clone().autodiff();
        let mut leaf = |shape: [usize; 3], dtype| {
            let values: Vec<f32> = (0..shape.iter().product())
                .map(|_| random.f32() - 0.4)
                .collect();
            let tensor = Tensor::<1>::from_floats(values.as_slice(), &tracked);
            tensor.reshape(shape).cast(dtype).require_grad()
        };
        let patches = leaf([images, count, features], dtype);
        let token = leaf([1, 1, features], FloatDType::F32);
        let positions = leaf([1, tokens, features], FloatDType::F32);
        let dy = leaf([images, tokens, features], dtype);
        let out = embed(patches.clone(), token.clone(), positions.clone());
        assert_eq!((out.dims(), out.dtype()), (dy.dims(), patches.dtype()));

        let [given, class, places, slopes] =
            [&patches, &token, &positions, &dy].map(|tensor| numbers(tensor.clone()));
        let mut expected = vec![0.0; images * tokens * features];
        let mut d_patches = vec![0.0; given.len()];
        let mut d_positions = vec![0.0; places.len()];
        for (at, value) in expected.iter_mut().enumerate() {
            let (image, place) = (at / (tokens * features), at % (tokens * features));
            let patch = (image * count * features + place).checked_sub(features);
            *value = places[place];
            match patch.filter(|_| place >= features) {
                Some(patch) => {
                    *value += given[patch];
                    d_patches[patch] = slopes[at];
                }
                None => *value += class[place],
            }
            d_positions[place] += slopes[at];
        }
        let gradients = (out.clone() * dy).sum().backward();
        let what = format!("{images} images of {count} patches of {features} in {dtype:?}");
        let gradient = |tensor: &Tensor<3>| numbers(tensor.grad(&gradients).unwrap());
        close(&what, &expected, &numbers(out), tolerance);
        close(&what, &d_patches, &gradient(&patches), tolerance);
        close(&what, &d_positions, &gradient(&positions), tolerance);
        close(
            &what,
            &d_positions[..features],
            &gradient(&token),
            tolerance,
        );
    }
}
