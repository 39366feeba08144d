//! Conversion of images between channels first and channels last.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};

use super::operation::{Operation, Saved, To, apply, exactly};
use super::tensor::{dims, filled, numbers};
use crate::KernelError;
use crate::cpu::{Kernels, Rows};

/// Converts \[batch, channels, height, width\] to \[batch, height, width, channels\].
pub fn channels_last(x: Tensor<4>) -> Tensor<4> {
    let [batch, channels, height, width] = x.dims();
    let x = x.reshape([batch, channels, height * width]);
    let x: Tensor<3> = transposed(x);
    x.reshape([batch, height, width, channels])
}

/// Converts \[batch, height, width, channels\] to \[batch, channels, height, width\].
pub fn channels_first(x: Tensor<4>) -> Tensor<4> {
    let [batch, height, width, channels] = x.dims();
    let x = x.reshape([batch, height * width, channels]);
    let x: Tensor<3> = transposed(x);
    x.reshape([batch, channels, height, width])
}

fn transposed(x: Tensor<3>) -> Tensor<3> {
    let [batch, rows, columns] = x.dims();
    if rows == 1 || columns == 1 {
        return x.reshape([batch, columns, rows]);
    }
    apply(Transposition, x.into_dispatch(), vec![])
}

#[derive(Debug)]
struct Transposition;

/// Transposes \[batch, rows, columns\] to \[batch, columns, rows\].
fn turn(kernels: &Kernels, x: &FlexTensor) -> Result<FlexTensor, KernelError> {
    let &[batch, rows, columns] = dims(x) else {
        return Err(KernelError::Storage);
    };
    filled(Shape::new([batch, columns, rows]), |out| {
        kernels.transpose(batch, Rows { rows, columns }, numbers(x)?, out)
    })
}

impl Operation for Transposition {
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [x] = exactly(inputs)?;
        turn(kernels, x)
    }

    fn backward(&self, _: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let kernels = to.kernels;
        to.give(0, turn(kernels, &dy)?)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
