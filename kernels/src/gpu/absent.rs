//! Stands in for the GPU kernels in a program without them: no device is a GPU.

use burn::tensor::{Device, Int, Tensor};

use super::{ConvOptions, ImageFacts, PoolOptions, Sample, ThenNorm};

/// Returns false: this program has no GPU kernels.
pub fn is_gpu(_: &Device) -> bool {
    false
}

/// No batch has moments.
#[derive(Debug)]
pub(crate) struct BatchMoments;

/// No reading is under way.
#[derive(Debug)]
pub struct Reading(());

/// No images are stored.
#[derive(Clone, Debug)]
pub struct StoredImages(());

/// Functions that nobody calls, because no device is a GPU.
macro_rules! absent {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident$(<$rank:ident>)?($($argument:ty),*) -> $result:ty;)*) => {$(
        $(#[$doc])*
        $vis fn $name$(<const $rank: usize>)?($(_: $argument),*) -> $result {
            unreachable!("no device is a GPU")
        }
    )*};
}

impl BatchMoments {
    absent! {
        pub(crate) fn mean(&Self) -> Tensor<1>;
        pub(crate) fn running(&Self, [Tensor<1>; 2], f64, f64) -> [Tensor<1>; 2];
        pub(crate) fn variance(&Self) -> Tensor<1>;
    }
}

absent! {
    pub(crate) fn add_relu<D>(Tensor<D>, Tensor<D>) -> Tensor<D>;
    pub(crate) fn attention(Tensor<3>, usize) -> Tensor<3>;
    pub(crate) fn batch_norm(Tensor<4>, [Tensor<1>; 2], [Tensor<1>; 2], f64, ThenNorm) -> Tensor<4>;
    pub(crate) fn batch_norm_train(Tensor<4>, [Tensor<1>; 2], f64, ThenNorm) -> (Tensor<4>, BatchMoments);
    pub(crate) fn conv2d(&Tensor<4>, &Tensor<4>, Option<&Tensor<1>>, Option<Tensor<4>>, ConvOptions) -> Option<Tensor<4>>;
    pub(crate) fn cross_entropy(Tensor<2>, Tensor<1, Int>, Option<(Tensor<1, Int>, Tensor<1>)>, f64) -> Tensor<1>;
    pub(crate) fn dropout<D>(Tensor<D>, f64) -> Tensor<D>;
    pub(crate) fn embed(Tensor<3>, Tensor<3>, Tensor<3>) -> Tensor<3>;
    pub(crate) fn gelu<D>(Tensor<D>) -> Tensor<D>;
    pub(crate) fn layer_norm<D>(Tensor<D>, [Tensor<1>; 2], f64) -> Tensor<D>;
    pub(crate) fn linear<D>(&Tensor<D>, &Tensor<2>, Option<&Tensor<1>>, Option<Tensor<D>>) -> Option<Tensor<D>>;
    pub(crate) fn max_pool2d(Tensor<4>, PoolOptions) -> Option<Tensor<4>>;
    pub(crate) fn mean_of_pixels(Tensor<4>, [usize; 2]) -> Option<Tensor<2>>;
    pub(crate) fn multiplies_on(&Device) -> bool;
    pub(crate) fn relu<D>(Tensor<D>) -> Tensor<D>;
    /// Requires a GPU, which does not exist here.
    pub fn start_reading(Vec<Tensor<1>>) -> Reading;
}

impl Reading {
    /// Reads from a device that is a GPU.
    ///
    /// # Errors
    /// None: there is nothing to wait for.
    pub fn wait(self) -> Result<Vec<f32>, String> {
        unreachable!("no device is a GPU")
    }
}

impl StoredImages {
    /// Makes a batch on a device that is a GPU.
    pub fn batch(&self, _: &[Sample]) -> (Tensor<4>, Tensor<1, Int>) {
        unreachable!("no device is a GPU")
    }

    absent! {
        /// Requires a GPU, which does not exist here.
        pub fn of_bytes(Tensor<3, Int>, ImageFacts<'_>) -> Self;
        /// Requires a GPU, which does not exist here.
        pub fn of_floats(Tensor<3>, ImageFacts<'_>) -> Self;
    }
}
