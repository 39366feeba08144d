//! Stands in for the kernels for GPUs in a program without them: no device is a GPU.

use burn::tensor::{Device, Int, Tensor};

use super::{ConvOptions, PoolOptions, ThenNorm};

/// There is no GPU.
pub(crate) fn is_gpu(_: &Device) -> bool {
    false
}

/// No batch has any.
#[derive(Debug)]
pub(crate) struct BatchMoments;

/// Functions that nobody calls where no device is a GPU.
macro_rules! absent {
    ($($name:ident$(<$rank:ident>)?($($argument:ty),*) -> $result:ty;)*) => {$(
        pub(crate) fn $name$(<const $rank: usize>)?($(_: $argument),*) -> $result {
            unreachable!("no device is a GPU")
        }
    )*};
}

impl BatchMoments {
    absent! {
        mean(&Self) -> Tensor<1>;
        running(&Self, [Tensor<1>; 2], f64, f64) -> [Tensor<1>; 2];
        variance(&Self) -> Tensor<1>;
    }
}

absent! {
    add_relu<D>(Tensor<D>, Tensor<D>) -> Tensor<D>;
    attention(Tensor<3>, usize) -> Tensor<3>;
    batch_norm(Tensor<4>, [Tensor<1>; 2], [Tensor<1>; 2], f64, ThenNorm) -> Tensor<4>;
    batch_norm_train(Tensor<4>, [Tensor<1>; 2], f64, ThenNorm) -> (Tensor<4>, BatchMoments);
    conv2d(&Tensor<4>, &Tensor<4>, Option<&Tensor<1>>, Option<Tensor<4>>, ConvOptions) -> Option<Tensor<4>>;
    cross_entropy(Tensor<2>, Tensor<1, Int>, Option<(Tensor<1, Int>, Tensor<1>)>, f64) -> Tensor<1>;
    dropout<D>(Tensor<D>, f64) -> Tensor<D>;
    embed(Tensor<3>, Tensor<3>, Tensor<3>) -> Tensor<3>;
    gelu<D>(Tensor<D>) -> Tensor<D>;
    layer_norm<D>(Tensor<D>, [Tensor<1>; 2], f64) -> Tensor<D>;
    linear<D>(&Tensor<D>, &Tensor<2>, Option<&Tensor<1>>, Option<Tensor<D>>) -> Option<Tensor<D>>;
    max_pool2d(Tensor<4>, PoolOptions) -> Option<Tensor<4>>;
    mean_of_pixels(Tensor<4>, [usize; 2]) -> Option<Tensor<2>>;
    multiplies_on(&Device) -> bool;
    relu<D>(Tensor<D>) -> Tensor<D>;
}
