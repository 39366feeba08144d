//! WRN-16-4: six blocks of two convolutions, each after a normalization.

use kernels::KernelError;
use kernels::cpu::{Epilogue, Kernels, Rows};

use crate::layers::{Conv, Linear, Norm, loss, random};
use crate::{BATCH, Model};

const CLASSES: usize = 100;

struct Block {
    norms: [Norm; 2],
    convs: [Conv; 2],
    shortcut: Option<Conv>,
    /// Values after the first norm, the first convolution, the second norm, and the sum.
    kept: [Vec<f32>; 4],
}

impl Block {
    fn new(size: usize, channels: usize, out: usize, stride: usize) -> Self {
        let small = size / stride;
        let [large, elements] =
            [size * size * channels, small * small * out].map(|size| size * BATCH);
        let shortcut = channels != out;
        Self {
            norms: [Norm::new(size, channels), Norm::new(small, out)],
            convs: [
                Conv::new(size, [channels, out], 3, stride, 1),
                Conv::new(small, [out, out], 3, 1, 1),
            ],
            shortcut: shortcut.then(|| Conv::new(size, [channels, out], 1, stride, 0)),
            kept: [large, elements, elements, elements].map(|size| vec![0.0; size]),
        }
    }

    fn forward(
        &mut self,
        kernels: &Kernels,
        x: &[f32],
        more: &mut [f32],
    ) -> Result<(), KernelError> {
        let [first, middle, second, sum] = &mut self.kept;
        self.norms[0].forward(kernels, x, first)?;
        self.convs[0].forward(kernels, first, middle)?;
        self.norms[1].forward(kernels, middle, second)?;
        self.convs[1].forward(kernels, second, sum)?;
        let columns = self.convs[1].shape.out_channels;
        let shape = Rows {
            rows: sum.len() / columns,
            columns,
        };
        let around: &[f32] = match &self.shortcut {
            Some(conv) => {
                let more = &mut more[..sum.len()];
                conv.forward(kernels, first, more)?;
                more
            }
            None => x,
        };
        kernels.finish(
            shape,
            sum,
            &Epilogue {
                residual: Some(around),
                ..Epilogue::default()
            },
        )
    }

    /// Replaces the gradient in `d` by the input's gradient.
    fn backward(
        &mut self,
        kernels: &Kernels,
        x: &[f32],
        d: &mut [f32],
        [a, b]: &mut [Vec<f32>; 2],
    ) -> Result<(), KernelError> {
        let [first, middle, second, sum] = &self.kept;
        let (a, b) = (&mut a[..], &mut b[..]);
        let out = sum.len();
        self.convs[1].backward(kernels, second, &d[..out], Some(&mut a[..out]))?;
        self.norms[1].backward(kernels, middle, &a[..out], None, &mut b[..out])?;
        let a = &mut a[..first.len()];
        self.convs[0].backward(kernels, first, &b[..out], Some(a))?;
        if let Some(shortcut) = &mut self.shortcut {
            let b = &mut b[..first.len()];
            shortcut.backward(kernels, first, &d[..out], Some(b))?;
            let columns = shortcut.shape.in_channels;
            let shape = Rows {
                rows: a.len() / columns,
                columns,
            };
            kernels.finish(
                shape,
                a,
                &Epilogue {
                    residual: Some(b),
                    ..Epilogue::default()
                },
            )?;
            return self.norms[0].backward(kernels, x, a, None, &mut d[..x.len()]);
        }
        let b = &mut b[..x.len()];
        self.norms[0].backward(kernels, x, a, Some(&d[..x.len()]), b)?;
        d[..x.len()].copy_from_slice(b);
        Ok(())
    }
}

pub struct Wrn {
    images: Vec<f32>,
    stem: Conv,
    stem_out: Vec<f32>,
    blocks: Vec<Block>,
    norm: Norm,
    last: Vec<f32>,
    linear: Linear,
    scratch: [Vec<f32>; 3],
}

impl Wrn {
    pub fn new() -> Self {
        let blocks = [
            (32, 16, 64, 1),
            (32, 64, 64, 1),
            (32, 64, 128, 2),
            (16, 128, 128, 1),
            (16, 128, 256, 2),
            (8, 256, 256, 1),
        ];
        Self {
            images: random(BATCH * 32 * 32 * 3, 1.0),
            stem: Conv::new(32, [3, 16], 3, 1, 1),
            stem_out: vec![0.0; BATCH * 32 * 32 * 16],
            blocks: blocks
                .map(|(size, from, to, stride)| Block::new(size, from, to, stride))
                .into(),
            norm: Norm::new(8, 256),
            last: vec![0.0; BATCH * 64 * 256],
            linear: Linear::new(BATCH, 256, CLASSES),
            scratch: [(); 3].map(|()| vec![0.0; BATCH * 32 * 32 * 64]),
        }
    }
}

impl Model for Wrn {
    fn step(&mut self, kernels: &Kernels) -> Result<f32, KernelError> {
        let [d, scratch @ ..] = &mut self.scratch;
        self.stem
            .forward(kernels, &self.images, &mut self.stem_out)?;
        for index in 0..self.blocks.len() {
            let (before, rest) = self.blocks.split_at_mut(index);
            let x = before.last().map_or(&self.stem_out, |block| &block.kept[3]);
            rest[0].forward(kernels, x, &mut scratch[0])?;
        }
        let features = &self.blocks[5].kept[3];
        self.norm.forward(kernels, features, &mut self.last)?;
        let mut pooled = vec![0.0; BATCH * 256];
        for (pooled, image) in pooled.chunks_mut(256).zip(self.last.chunks(64 * 256)) {
            for pixel in image.chunks(256) {
                pooled
                    .iter_mut()
                    .zip(pixel)
                    .for_each(|(sum, value)| *sum += value / 64.0);
            }
        }
        let mut logits = vec![0.0; BATCH * CLASSES];
        let mut gradient = logits.clone();
        self.linear
            .forward(kernels, &pooled, None, false, &mut logits)?;
        let mean = loss(kernels, &logits, CLASSES, &mut gradient)?;

        let mut spread = pooled.clone();
        self.linear
            .backward(kernels, &pooled, &gradient, Some(&mut spread))?;
        for (image, spread) in self.last.chunks_mut(64 * 256).zip(spread.chunks(256)) {
            for pixel in image.chunks_mut(256) {
                pixel
                    .iter_mut()
                    .zip(spread)
                    .for_each(|(to, value)| *to = value / 64.0);
            }
        }
        let size = features.len();
        self.norm
            .backward(kernels, features, &self.last, None, &mut d[..size])?;
        for index in (0..self.blocks.len()).rev() {
            let (before, rest) = self.blocks.split_at_mut(index);
            let x = before.last().map_or(&self.stem_out, |block| &block.kept[3]);
            rest[0].backward(kernels, x, d, scratch)?;
        }
        self.stem
            .backward(kernels, &self.images, &d[..self.stem_out.len()], None)?;
        Ok(mean)
    }
}
