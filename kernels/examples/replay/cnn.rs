//! The CNN of the MNIST tutorials: two convolutions, max-pooling, two linear layers.

use kernels::KernelError;
use kernels::cpu::{Epilogue, Kernels, MaxPool2d, Rows};

use crate::layers::{Conv, Linear, Parameter, loss, random};
use crate::{BATCH, Model};

const CLASSES: usize = 10;

pub struct Cnn {
    images: Vec<f32>,
    convs: [Conv; 2],
    biases: [Parameter; 2],
    pool: MaxPool2d,
    linears: [Linear; 2],
    /// Values after the convolutions, the pooling and the linear layers.
    kept: [Vec<f32>; 5],
    gradients: [Vec<f32>; 5],
}

impl Cnn {
    pub fn new() -> Self {
        let sizes = [26 * 26 * 32, 24 * 24 * 64, 12 * 12 * 64, 128, CLASSES];
        Self {
            images: random(BATCH * 28 * 28, 1.0),
            convs: [
                Conv::new(28, [1, 32], 3, 1, 0),
                Conv::new(26, [32, 64], 3, 1, 0),
            ],
            biases: [32, 64].map(|channels| Parameter::new(vec![0.0; channels])),
            pool: MaxPool2d {
                batch: BATCH,
                height: 24,
                width: 24,
                channels: 64,
                kernel: [2, 2],
                stride: [2, 2],
                padding: [0, 0],
            },
            linears: [
                Linear::new(BATCH, 9216, 128),
                Linear::new(BATCH, 128, CLASSES),
            ],
            kept: sizes.map(|size| vec![0.0; BATCH * size]),
            gradients: sizes.map(|size| vec![0.0; BATCH * size]),
        }
    }
}

impl Model for Cnn {
    fn step(&mut self, kernels: &Kernels) -> Result<f32, KernelError> {
        let [first, second, pooled, hidden, logits] = &mut self.kept;
        let rows = |values: &[f32], columns: usize| Rows {
            rows: values.len() / columns,
            columns,
        };
        self.convs[0].forward(kernels, &self.images, first)?;
        kernels.finish(
            rows(first, 32),
            first,
            &Epilogue {
                bias: Some(&self.biases[0].value),
                relu: true,
                ..Epilogue::default()
            },
        )?;
        self.convs[1].forward(kernels, first, second)?;
        kernels.finish(
            rows(second, 64),
            second,
            &Epilogue {
                bias: Some(&self.biases[1].value),
                relu: true,
                ..Epilogue::default()
            },
        )?;
        kernels.max_pool2d(&self.pool, second, pooled)?;
        self.linears[0].forward(kernels, pooled, None, true, hidden)?;
        self.linears[1].forward(kernels, hidden, None, false, logits)?;

        let [d_first, d_second, d_pooled, d_hidden, d_logits] = &mut self.gradients;
        let mean = loss(kernels, logits, CLASSES, d_logits)?;
        self.linears[1].backward(kernels, hidden, d_logits, Some(d_hidden))?;
        kernels.relu_gradient(hidden, d_hidden)?;
        self.linears[0].backward(kernels, pooled, d_hidden, Some(d_pooled))?;
        kernels.max_pool2d_gradient(&self.pool, second, pooled, d_pooled, d_second)?;
        kernels.relu_gradient(second, d_second)?;
        kernels.bias_gradient(rows(second, 64), d_second, &mut self.biases[1].gradient)?;
        self.convs[1].backward(kernels, first, d_second, Some(d_first))?;
        kernels.relu_gradient(first, d_first)?;
        kernels.bias_gradient(rows(first, 32), d_first, &mut self.biases[0].gradient)?;
        self.convs[0].backward(kernels, &self.images, d_first, None)?;
        self.biases.iter_mut().for_each(Parameter::step);
        Ok(mean)
    }
}
