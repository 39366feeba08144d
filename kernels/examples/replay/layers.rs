//! Layers with their parameters, gradients and plain SGD.

use kernels::KernelError;
use kernels::cpu::{
    BatchNorm, BatchNormGradients, Conv2d, ConvMethod, Epilogue, Input, Kernels, Matmul, Moments,
    Rows,
};
use rayon::prelude::*;

const RATE: f32 = 0.02;

/// Returns uniform numbers in ±`bound`.
pub fn random(length: usize, bound: f32) -> Vec<f32> {
    let mut source = fastrand::Rng::with_seed(length as u64);
    (0..length)
        .map(|_| (source.f32() * 2.0 - 1.0) * bound)
        .collect()
}

/// A parameter and its gradient.
pub struct Parameter {
    pub value: Vec<f32>,
    pub gradient: Vec<f32>,
}

impl Parameter {
    pub fn new(value: Vec<f32>) -> Self {
        let gradient = vec![0.0; value.len()];
        Self { value, gradient }
    }

    pub fn uniform(length: usize, fan_in: usize) -> Self {
        Self::new(random(length, (1.0 / fan_in as f32).sqrt()))
    }

    pub fn step(&mut self) {
        let gradients = self.gradient.par_chunks(1 << 15);
        self.value
            .par_chunks_mut(1 << 15)
            .zip(gradients)
            .for_each(|(values, gradients)| {
                for (value, gradient) in values.iter_mut().zip(gradients) {
                    *value -= RATE * gradient;
                }
            });
    }
}

/// A convolution without bias.
pub struct Conv {
    pub shape: Conv2d,
    pub weight: Parameter,
}

impl Conv {
    pub fn new(
        size: usize,
        channels: [usize; 2],
        kernel: usize,
        stride: usize,
        padding: usize,
    ) -> Self {
        let [in_channels, out_channels] = channels;
        let fan_in = in_channels * kernel * kernel;
        Self {
            shape: Conv2d {
                batch: crate::BATCH,
                height: size,
                width: size,
                in_channels,
                out_channels,
                kernel: [kernel; 2],
                stride: [stride; 2],
                padding: [padding; 2],
            },
            weight: Parameter::uniform(out_channels * fan_in, fan_in),
        }
    }

    pub fn forward(&self, kernels: &Kernels, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        kernels.conv2d(&self.shape, ConvMethod::Auto, x, &self.weight.value, y)
    }

    /// Computes the gradient and updates the weight.
    pub fn backward(
        &mut self,
        kernels: &Kernels,
        x: &[f32],
        dy: &[f32],
        dx: Option<&mut [f32]>,
    ) -> Result<(), KernelError> {
        let (shape, auto) = (&self.shape, ConvMethod::Auto);
        kernels.conv2d_weight_gradient(shape, auto, x, dy, &mut self.weight.gradient)?;
        if let Some(dx) = dx {
            kernels.conv2d_input_gradient(shape, auto, dy, &self.weight.value, dx)?;
        }
        self.weight.step();
        Ok(())
    }
}

/// Batch normalisation with ReLU.
pub struct Norm {
    norm: BatchNorm,
    weight: Parameter,
    bias: Parameter,
    mean: Vec<f32>,
    variance: Vec<f32>,
}

impl Norm {
    pub fn new(size: usize, channels: usize) -> Self {
        Self {
            norm: BatchNorm {
                shape: Rows {
                    rows: crate::BATCH * size * size,
                    columns: channels,
                },
                epsilon: 1e-5,
                relu: true,
            },
            weight: Parameter::new(vec![1.0; channels]),
            bias: Parameter::new(vec![0.0; channels]),
            mean: vec![0.0; channels],
            variance: vec![0.0; channels],
        }
    }

    pub fn forward(
        &mut self,
        kernels: &Kernels,
        x: &[f32],
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        kernels.batch_norm_moments(self.norm.shape, x, &mut self.mean, &mut self.variance)?;
        let moments = Moments {
            mean: &self.mean,
            variance: &self.variance,
            of_batch: true,
        };
        kernels.batch_norm(
            &self.norm,
            x,
            [&self.weight.value, &self.bias.value],
            &moments,
            y,
        )
    }

    pub fn backward(
        &mut self,
        kernels: &Kernels,
        x: &[f32],
        dy: &[f32],
        more: Option<&[f32]>,
        dx: &mut [f32],
    ) -> Result<(), KernelError> {
        let moments = Moments {
            mean: &self.mean,
            variance: &self.variance,
            of_batch: true,
        };
        let result = BatchNormGradients {
            input: dx,
            more,
            weight: &mut self.weight.gradient,
            bias: &mut self.bias.gradient,
        };
        let parameters = [&self.weight.value[..], &self.bias.value[..]];
        kernels.batch_norm_gradient(&self.norm, x, parameters, &moments, dy, result)?;
        self.weight.step();
        self.bias.step();
        Ok(())
    }
}

/// A linear layer with bias, weight \[in, out\].
pub struct Linear {
    pub rows: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub bf16: bool,
    weight: Parameter,
    bias: Parameter,
}

impl Linear {
    pub fn new(rows: usize, inputs: usize, outputs: usize) -> Self {
        Self {
            rows,
            inputs,
            outputs,
            bf16: false,
            weight: Parameter::uniform(inputs * outputs, inputs),
            bias: Parameter::new(vec![0.0; outputs]),
        }
    }

    pub fn forward(
        &self,
        kernels: &Kernels,
        x: &[f32],
        residual: Option<&[f32]>,
        relu: bool,
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        let epilogue = Epilogue {
            bias: Some(&self.bias.value),
            residual,
            relu,
            ..Epilogue::default()
        };
        let shape = Matmul {
            rows: self.rows,
            columns: self.outputs,
            depth: self.inputs,
            left_transposed: false,
            right_transposed: false,
        };
        if self.bf16 {
            return kernels.linear_bf16(&shape, Input::Plain(x), &self.weight.value, &epilogue, y);
        }
        kernels.matmul(&shape, x, &self.weight.value, y)?;
        let shape = Rows {
            rows: self.rows,
            columns: self.outputs,
        };
        kernels.finish(shape, y, &epilogue)
    }

    /// Computes the gradient and updates the parameters.
    pub fn backward(
        &mut self,
        kernels: &Kernels,
        x: &[f32],
        dy: &[f32],
        dx: Option<&mut [f32]>,
    ) -> Result<(), KernelError> {
        if let Some(dx) = dx {
            let shape = Matmul {
                rows: self.rows,
                columns: self.inputs,
                depth: self.outputs,
                left_transposed: false,
                right_transposed: true,
            };
            let weight = &self.weight.value;
            if self.bf16 {
                kernels.matmul_bf16(&shape, dy, weight, dx)?;
            } else {
                kernels.matmul(&shape, dy, weight, dx)?;
            }
        }
        let (dw, db) = (&mut self.weight.gradient, &mut self.bias.gradient);
        let (rows, columns) = (self.rows, self.outputs);
        if self.bf16 {
            let x = Input::Plain(x);
            kernels.linear_gradients_bf16([rows, self.inputs, columns], x, dy, dw, db)?;
        } else {
            let shape = Matmul {
                rows: self.inputs,
                columns,
                depth: rows,
                left_transposed: true,
                right_transposed: false,
            };
            kernels.matmul(&shape, x, dy, dw)?;
            kernels.bias_gradient(Rows { rows, columns }, dy, db)?;
        }
        self.weight.step();
        self.bias.step();
        Ok(())
    }
}

/// Returns the mean cross-entropy against fixed classes, and writes its gradient.
pub fn loss(
    kernels: &Kernels,
    logits: &[f32],
    classes: usize,
    gradient: &mut [f32],
) -> Result<f32, KernelError> {
    let rows = logits.len() / classes;
    let targets: Vec<_> = (0..rows).map(|row| (row % classes) as u32).collect();
    let mut losses = vec![0.0; rows];
    let shape = Rows {
        rows,
        columns: classes,
    };
    kernels.cross_entropy(shape, 0.0, logits, &targets, &mut losses, gradient)?;
    gradient.iter_mut().for_each(|value| *value /= rows as f32);
    Ok(losses.iter().sum::<f32>() / rows as f32)
}
