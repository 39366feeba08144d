//! The mean over all pixels of an image.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};
use rayon::prelude::*;

use super::operation::{Operation, Saved, To, apply, exactly};
use super::tensor::{dims, filled, numbers};
use crate::KernelError;
use crate::cpu::Kernels;

/// Averages \[batch, height, width, channels\] over the pixels to \[batch, channels\].
pub fn mean_of_pixels(x: Tensor<4>) -> Tensor<2> {
    let [_, height, width, _] = x.dims();
    apply(Mean { height, width }, x.into_dispatch(), vec![])
}

#[derive(Debug)]
struct Mean {
    height: usize,
    width: usize,
}

impl Mean {
    fn share(&self) -> f32 {
        (self.height as f32 * self.width as f32).recip()
    }
}

impl Operation for Mean {
    fn forward(&self, _: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [x] = exactly(inputs)?;
        let &[batch, height, width, channels] = dims(x) else {
            return Err(KernelError::Storage);
        };
        let (columns, image) = (channels.max(1), (height * width * channels).max(1));
        filled(Shape::new([batch, channels]), |out| {
            let images = numbers(x)?.par_chunks(image);
            out.par_chunks_mut(columns)
                .zip(images)
                .for_each(|(sums, image)| {
                    sums.fill(0.0);
                    for pixel in image.chunks(columns) {
                        sums.iter_mut()
                            .zip(pixel)
                            .for_each(|(sum, value)| *sum += value);
                    }
                    sums.iter_mut().for_each(|sum| *sum *= self.share());
                });
            Ok(())
        })
    }

    fn backward(&self, _: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let &[batch, channels] = dims(&dy) else {
            return Err(KernelError::Storage);
        };
        let (columns, pixels) = (channels.max(1), self.height * self.width);
        let shape = Shape::new([batch, self.height, self.width, channels]);
        to.fill(0, shape, |dx| {
            let rows = numbers(&dy)?.par_chunks(columns);
            dx.par_chunks_mut((pixels * columns).max(1))
                .zip(rows)
                .for_each(|(image, row)| {
                    for pixel in image.chunks_mut(columns) {
                        let pairs = pixel.iter_mut().zip(row);
                        pairs.for_each(|(to, value)| *to = value * self.share());
                    }
                });
            Ok(())
        })
    }
}
