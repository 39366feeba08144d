//! Batch normalisation of channels-last data, fused with ReLU, for training and evaluation.

use crate::cpu::elementwise::Rows;
use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::{Shared, each, piece, rows_per_piece};
use crate::cpu::vector::batch_norm::{Channels, Factors};
use crate::error::{KernelError, length};

const OP: &str = "batch norm";

/// A batch normalisation over \[rows, channels\], where the rows are all pixels of all images.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNorm {
    /// Rows and channels.
    pub shape: Rows,
    /// Added to the variance.
    pub epsilon: f32,
    /// Applies ReLU afterwards.
    pub relu: bool,
}

/// Mean and variance of every channel.
#[derive(Debug, Clone, Copy)]
pub struct Moments<'a> {
    /// Means.
    pub mean: &'a [f32],
    /// Variances, biased (divided by the number of rows).
    pub variance: &'a [f32],
    /// True for this batch's statistics, through which gradients flow; false for given ones.
    pub of_batch: bool,
}

/// The outputs for the gradients of a batch normalization.
#[derive(Debug)]
pub struct BatchNormGradients<'a> {
    /// Gradient of the input.
    pub input: &'a mut [f32],
    /// Added to that, if given: the gradient of a path around the layer.
    pub more: Option<&'a [f32]>,
    /// Gradient of the weight.
    pub weight: &'a mut [f32],
    /// Gradient of the bias.
    pub bias: &'a mut [f32],
}

impl BatchNorm {
    /// Checks the lengths and returns the factors `weight / √(variance + epsilon)`.
    fn scale(
        &self,
        [weight, bias]: [&[f32]; 2],
        moments: &Moments<'_>,
    ) -> Result<Vec<f32>, KernelError> {
        let channels = self.shape.columns;
        length(OP, "weight", weight.len(), channels)?;
        length(OP, "bias", bias.len(), channels)?;
        length(OP, "mean", moments.mean.len(), channels)?;
        length(OP, "variance", moments.variance.len(), channels)?;
        let pairs = weight.iter().zip(moments.variance);
        let scale = pairs.map(|(weight, variance)| weight / (variance + self.epsilon).sqrt());
        Ok(scale.collect())
    }

    /// Calls `run` with the first element and the number of rows of each piece, from last to first:
    /// the previous pass over all rows left the last ones in the cache.
    fn last_first(&self, run: impl Fn(usize, usize) + Sync + Send) {
        let size = rows_per_piece(self.shape.columns);
        let count = self.shape.rows.div_ceil(size);
        each(count, |index| {
            let range = piece(count - 1 - index, size, self.shape.rows);
            run(range.start * self.shape.columns, range.len());
        });
    }

    fn channels(&self, scale: &[f32], bias: &[f32], moments: &Moments<'_>) -> Channels {
        Channels {
            count: self.shape.columns,
            scale: scale.as_ptr(),
            bias: bias.as_ptr(),
            mean: moments.mean.as_ptr(),
            relu: self.relu,
        }
    }
}

impl Kernels {
    /// Mean and (biased) variance of every channel of `input`.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn batch_norm_moments(
        &self,
        shape: Rows,
        input: &[f32],
        mean: &mut [f32],
        variance: &mut [f32],
    ) -> Result<(), KernelError> {
        let channels = shape.columns;
        length(OP, "input", input.len(), shape.elements(OP)?)?;
        length(OP, "mean", mean.len(), channels)?;
        length(OP, "variance", variance.len(), channels)?;
        let pivot = &input[..channels];
        let mut both = self.workspace.take(2 * channels);
        self.sum_parts(shape.rows, both.slice(), |start, rows, sums| {
            // In pieces, so that later channels find their rows in the cache.
            let size = rows_per_piece(channels);
            for index in 0..rows.div_ceil(size) {
                let range = piece(index, size, rows);
                let x = input[(start + range.start) * channels..].as_ptr();
                // SAFETY: the rows lie within the input; `sums` belongs to this part alone.
                unsafe {
                    let pivot = pivot.as_ptr();
                    (self.table.batch_norm_sums)(range.len(), channels, x, pivot, sums);
                }
            }
        });
        let (sum, squares) = both.slice().split_at(channels);
        for channel in 0..channels {
            let offset = f64::from(sum[channel]) / shape.rows as f64;
            let square = f64::from(squares[channel]) / shape.rows as f64;
            mean[channel] = (f64::from(pivot[channel]) + offset) as f32;
            variance[channel] = (square - offset * offset).max(0.0) as f32;
        }
        Ok(())
    }

    /// Computes `(input − mean) / √(variance + epsilon) · weight + bias`, then ReLU if requested.
    ///
    /// In training the moments come from [`Kernels::batch_norm_moments`]; in evaluation they are
    /// the running ones.
    ///
    /// # Errors
    ///
    /// Fails if a size is zero or the length of a slice does not match the shape.
    pub fn batch_norm(
        &self,
        norm: &BatchNorm,
        input: &[f32],
        parameters: [&[f32]; 2],
        moments: &Moments<'_>,
        output: &mut [f32],
    ) -> Result<(), KernelError> {
        let elements = norm.shape.elements(OP)?;
        length(OP, "input", input.len(), elements)?;
        length(OP, "output", output.len(), elements)?;
        let scale = norm.scale(parameters, moments)?;
        let output = Shared::new(output);
        norm.last_first(|start, rows| {
            let channels = norm.channels(&scale, parameters[1], moments);
            // SAFETY: pieces are whole rows that do not overlap.
            unsafe {
                let x = input.as_ptr().add(start);
                (self.table.batch_norm_apply)(rows, &channels, x, output.at(start));
            }
        });
        Ok(())
    }

    /// The gradients of [`Kernels::batch_norm`] with respect to input, weight and bias.
    ///
    /// ReLU's cut is computed again from the input, so the output need not be kept.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn batch_norm_gradient(
        &self,
        norm: &BatchNorm,
        input: &[f32],
        parameters: [&[f32]; 2],
        moments: &Moments<'_>,
        gradient: &[f32],
        result: BatchNormGradients<'_>,
    ) -> Result<(), KernelError> {
        let (elements, count) = (norm.shape.elements(OP)?, norm.shape.columns);
        length(OP, "input", input.len(), elements)?;
        length(OP, "gradient", gradient.len(), elements)?;
        let more = result.more;
        length(OP, "more", more.map_or(elements, <[f32]>::len), elements)?;
        length(OP, "input gradient", result.input.len(), elements)?;
        length(OP, "weight gradient", result.weight.len(), count)?;
        length(OP, "bias gradient", result.bias.len(), count)?;
        let scale = norm.scale(parameters, moments)?;
        let mut both = self.workspace.take(2 * count);
        self.sum_parts(norm.shape.rows, both.slice(), |start, rows, sums| {
            let channels = norm.channels(&scale, parameters[1], moments);
            let size = rows_per_piece(count);
            for index in 0..rows.div_ceil(size) {
                let range = piece(index, size, rows);
                let first = (start + range.start) * count;
                // SAFETY: the rows lie within both slices; `sums` belongs to this part alone.
                unsafe {
                    let (x, dy) = (input.as_ptr().add(first), gradient.as_ptr().add(first));
                    (self.table.batch_norm_gradient_sums)(range.len(), &channels, x, dy, sums);
                }
            }
        });
        let (plain, along) = both.slice().split_at(count);
        let (mut centred, mut constant) = (vec![0.0; count], vec![0.0; count]);
        for channel in 0..count {
            let reciprocal = 1.0 / (moments.variance[channel] + norm.epsilon).sqrt();
            result.weight[channel] = along[channel] * reciprocal;
            result.bias[channel] = plain[channel];
            if moments.of_batch {
                let share = -scale[channel] / norm.shape.rows as f32;
                centred[channel] = share * along[channel] * reciprocal * reciprocal;
                constant[channel] = share * plain[channel];
            }
        }
        let target = Shared::new(result.input);
        norm.last_first(|start, rows| {
            let channels = norm.channels(&scale, parameters[1], moments);
            let factors = Factors {
                gradient: scale.as_ptr(),
                centred: centred.as_ptr(),
                constant: constant.as_ptr(),
            };
            let more = more.map_or(std::ptr::null(), |more| more[start..].as_ptr());
            // SAFETY: pieces are whole rows that do not overlap.
            unsafe {
                (self.table.batch_norm_gradient)(
                    rows,
                    &channels,
                    &factors,
                    input.as_ptr().add(start),
                    gradient.as_ptr().add(start),
                    more,
                    target.at(start),
                );
            }
        });
        Ok(())
    }
}
