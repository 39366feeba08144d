//! Linear layers, with frequent operations before and after them: GELU; bias, residual, ReLU.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};

use super::conv::pixels;
use super::epilogue::EpilogueInputs;
use super::operation::{Operation, Saved, To, apply};
use super::tensor::{dims, filled, numbers};
use crate::KernelError;
use crate::cpu::{Input, Kernels, Matmul, Rows};

/// Options of a linear layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearOptions {
    /// Applies GELU to the input, piece by piece in the cache. The result is not kept but
    /// recomputed in backward.
    pub gelu: bool,
    /// Applies ReLU afterwards.
    pub relu: bool,
    /// Rounds the factors of all products to bf16; sums stay in f32.
    pub bf16: bool,
}

/// Computes `x weight + bias + residual`, then ReLU if requested; with GELU, `gelu(x)` replaces
/// `x`.
///
/// `x` is \[…, in\], `weight` \[in, out\], `bias` \[out\], `residual` and the result \[…, out\].
///
/// # Panics
///
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<D>>,
    options: LinearOptions,
) -> Tensor<D> {
    let (epilogue, others) = EpilogueInputs::new(weight, bias, residual, options.relu);
    let operation = Layer { options, epilogue };
    apply(operation, x.into_dispatch(), others)
}

/// The operation. Its inputs are rows, weight, and the optional bias and residual.
#[derive(Debug)]
struct Layer {
    options: LinearOptions,
    epilogue: EpilogueInputs,
}

impl Layer {
    /// A product whose left factor is `input`, with its epilogue.
    fn multiply(
        &self,
        kernels: &Kernels,
        shape: &Matmul,
        (input, right): (Input<'_>, &[f32]),
        epilogue: &crate::cpu::Epilogue<'_>,
        product: &mut [f32],
    ) -> Result<(), KernelError> {
        match self.options.bf16 {
            true => kernels.linear_bf16(shape, input, right, epilogue, product),
            false => kernels.linear(shape, input, right, epilogue, product),
        }
    }

    fn input<'a>(&self, x: &'a FlexTensor) -> Result<Input<'a>, KernelError> {
        let x = numbers(x)?;
        Ok(match self.options.gelu {
            true => Input::Gelu(x),
            false => Input::Plain(x),
        })
    }
}

/// Returns the shape of the product of the rows of `x` and `weight`.
fn shape(x: &FlexTensor, weight: &FlexTensor) -> Result<Matmul, KernelError> {
    let &[depth, columns] = dims(weight) else {
        return Err(KernelError::Storage);
    };
    let Rows { rows, .. } = pixels(x);
    Ok(Matmul {
        rows,
        columns,
        depth,
        left_transposed: false,
        right_transposed: false,
    })
}

impl Operation for Layer {
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [x, weight, rest @ ..] = inputs else {
            return Err(KernelError::Storage);
        };
        let product = shape(x, weight)?;
        let mut out = dims(x).to_vec();
        if let Some(last) = out.last_mut() {
            *last = product.columns;
        }
        filled(Shape::from(out), |out| {
            let factors = (self.input(x)?, numbers(weight)?);
            self.multiply(kernels, &product, factors, &self.epilogue.of(rest)?, out)
        })
    }

    fn backward(&self, saved: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let kernels = to.kernels;
        let gradient = to.before_relu(self.options.relu, &saved, dy)?;
        let (x, weight) = (saved.input(0)?, saved.input(1)?);
        let Matmul {
            rows,
            columns,
            depth,
            ..
        } = shape(x, weight)?;
        let dy = numbers(&gradient)?;
        let plain = crate::cpu::Epilogue::default();
        // Both read the whole gradient.
        let together = self.epilogue.bias && to.wants(1) && to.wants(2);
        if together {
            let mut db = filled(Shape::new([columns]), |_| Ok(()))?;
            let dw = filled(weight.layout().shape().clone(), |dw| {
                let (size, db) = ([rows, depth, columns], db.storage_mut());
                match self.options.bf16 {
                    true => kernels.linear_gradients_bf16(size, self.input(x)?, dy, dw, db),
                    false => kernels.linear_gradients(size, self.input(x)?, dy, dw, db),
                }
            });
            to.give(1, dw?)?;
            to.give(2, db)?;
        }
        if self.epilogue.bias && !together {
            to.fill(2, Shape::new([columns]), |sums| {
                kernels.bias_gradient(Rows { rows, columns }, dy, sums)
            })?;
        }
        if !together {
            let product = Matmul {
                rows: depth,
                columns,
                depth: rows,
                left_transposed: true,
                right_transposed: false,
            };
            to.fill(1, weight.layout().shape().clone(), |dw| {
                self.multiply(kernels, &product, (self.input(x)?, dy), &plain, dw)
            })?;
        }
        let product = Matmul {
            rows,
            columns: depth,
            depth: columns,
            left_transposed: false,
            right_transposed: true,
        };
        to.fill(0, x.layout().shape().clone(), |dx| {
            let factors = (Input::Plain(dy), numbers(weight)?);
            let gelu_input = self.options.gelu.then(|| numbers(x)).transpose()?;
            let slope = crate::cpu::Epilogue {
                gelu_input,
                ..plain
            };
            self.multiply(kernels, &product, factors, &slope, dx)
        })?;
        if let Some(residual) = self.epilogue.residual() {
            to.give(residual, gradient)?;
        }
        Ok(())
    }

    fn reads(&self, index: usize) -> bool {
        index < 2
    }

    fn reads_output(&self) -> bool {
        self.options.relu
    }
}
