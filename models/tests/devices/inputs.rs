//! Inputs of the operations: random numbers around a mean, in a given precision.

use burn::tensor::{Device, FloatDType, Tensor};

use crate::check::numbers;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) shape: [usize; 4],
    /// With a deviation of about 1.
    pub(crate) mean: f64,
    pub(crate) relu: bool,
    pub(crate) dtype: FloatDType,
    /// The images are channels-last in memory, as after a convolution.
    pub(crate) channels_last: bool,
    /// Results are recomputed in backward.
    pub(crate) recompute: bool,
}

pub(crate) const CASE: Case = Case {
    shape: [3, 8, 5, 7],
    mean: 0.0,
    relu: true,
    dtype: FloatDType::F32,
    channels_last: true,
    recompute: false,
};

/// Inputs, \[batch, channels, height, width\], and \[channels\].
pub(crate) struct Inputs {
    pub(crate) x: Vec<f32>,
    pub(crate) dy: Vec<f32>,
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

impl Case {
    pub(crate) fn inputs(&self) -> Inputs {
        let mut random = fastrand::Rng::with_seed(7);
        let mut draw = |count: usize, mean: f64| -> Vec<f32> {
            let mut sum = || (0..12).map(|_| random.f64() - 0.5).sum::<f64>();
            (0..count).map(|_| (mean + sum()) as f32).collect()
        };
        let (count, channels) = (self.shape.iter().product(), self.shape[1]);
        let rounded = |values: Vec<f32>| -> Vec<f32> {
            let tensor = Tensor::<1>::from_floats(values.as_slice(), &Device::flex());
            numbers(tensor.cast(self.dtype))
                .iter()
                .map(|v| *v as f32)
                .collect()
        };
        Inputs {
            x: rounded(draw(count, self.mean)),
            dy: rounded(draw(count, 0.3)),
            weight: draw(channels, 1.0),
            bias: draw(channels, 0.5),
        }
    }
}
