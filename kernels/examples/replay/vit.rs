//! ViT-Tiny: twelve blocks of attention and a perceptron, 192 wide, three heads, 65 tokens.

use kernels::KernelError;
use kernels::cpu::{Attention, Epilogue, Kernels, Rows};

use crate::layers::{Linear, Parameter, loss, random};
use crate::{BATCH, Model};

const TOKENS: usize = 65;
const WIDTH: usize = 192;
const HIDDEN: usize = 4 * WIDTH;
const CLASSES: usize = 100;
const ROWS: usize = BATCH * TOKENS;
const EPSILON: f32 = 1e-6;
const SHAPE: Rows = Rows {
    rows: ROWS,
    columns: WIDTH,
};
const ATTENTION: Attention = Attention {
    batch: BATCH,
    tokens: TOKENS,
    heads: 3,
    depth: 64,
    scale: 0.125,
    bf16: false,
};

struct Norm {
    weight: Parameter,
    bias: Parameter,
}

impl Norm {
    fn new() -> Self {
        Self {
            weight: Parameter::new(vec![1.0; WIDTH]),
            bias: Parameter::new(vec![0.0; WIDTH]),
        }
    }

    fn forward(&self, kernels: &Kernels, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        kernels.layer_norm(SHAPE, EPSILON, x, [&self.weight.value, &self.bias.value], y)
    }

    /// Adds the gradient of the input to `d`.
    fn backward(
        &mut self,
        kernels: &Kernels,
        x: &[f32],
        dy: &[f32],
        more: &mut [f32],
        d: &mut [f32],
    ) -> Result<(), KernelError> {
        let (dw, db) = (&mut self.weight.gradient, &mut self.bias.gradient);
        let result = [&mut *more, dw, db];
        kernels.layer_norm_gradient(SHAPE, EPSILON, x, &self.weight.value, dy, result)?;
        kernels.finish(
            SHAPE,
            d,
            &Epilogue {
                residual: Some(more),
                ..Epilogue::default()
            },
        )?;
        self.weight.step();
        self.bias.step();
        Ok(())
    }
}

struct Block {
    norms: [Norm; 2],
    qkv: Linear,
    projection: Linear,
    perceptron: [Linear; 2],
    /// Values after norm, qkv, attention, sum, norm, first linear layer, GELU, sum.
    kept: [Vec<f32>; 8],
}

impl Block {
    fn new() -> Self {
        let sizes = [WIDTH, 3 * WIDTH, WIDTH, WIDTH, WIDTH, HIDDEN, HIDDEN, WIDTH];
        Self {
            norms: [Norm::new(), Norm::new()],
            qkv: Linear::new(ROWS, WIDTH, 3 * WIDTH),
            projection: Linear::new(ROWS, WIDTH, WIDTH),
            perceptron: [
                Linear::new(ROWS, WIDTH, HIDDEN),
                Linear::new(ROWS, HIDDEN, WIDTH),
            ],
            kept: sizes.map(|size| vec![0.0; ROWS * size]),
        }
    }

    fn attention(bf16: bool) -> Attention {
        Attention { bf16, ..ATTENTION }
    }

    fn forward(&mut self, kernels: &Kernels, x: &[f32]) -> Result<(), KernelError> {
        let [first, qkv, mixed, middle, second, hidden, bent, sum] = &mut self.kept;
        self.norms[0].forward(kernels, x, first)?;
        self.qkv.forward(kernels, first, None, false, qkv)?;
        kernels.attention(&Self::attention(self.qkv.bf16), qkv, mixed)?;
        self.projection
            .forward(kernels, mixed, Some(x), false, middle)?;
        self.norms[1].forward(kernels, middle, second)?;
        self.perceptron[0].forward(kernels, second, None, false, hidden)?;
        kernels.gelu(hidden, bent)?;
        self.perceptron[1].forward(kernels, bent, Some(middle), false, sum)
    }

    /// Replaces the gradient in `d` by the input's gradient.
    fn backward(
        &mut self,
        kernels: &Kernels,
        x: &[f32],
        d: &mut [f32],
        [small, more, wide, other]: &mut [Vec<f32>; 4],
    ) -> Result<(), KernelError> {
        let [first, qkv, mixed, middle, second, hidden, bent, _] = &self.kept;
        self.perceptron[1].backward(kernels, bent, d, Some(wide))?;
        kernels.gelu_gradient(hidden, wide, other)?;
        self.perceptron[0].backward(kernels, second, other, Some(small))?;
        self.norms[1].backward(kernels, middle, small, more, d)?;
        self.projection.backward(kernels, mixed, d, Some(small))?;
        let wide = &mut wide[..qkv.len()];
        kernels.attention_gradient(&Self::attention(self.qkv.bf16), qkv, small, wide)?;
        self.qkv.backward(kernels, first, wide, Some(small))?;
        self.norms[0].backward(kernels, x, small, more, d)
    }
}

pub struct Vit {
    input: Vec<f32>,
    blocks: Vec<Block>,
    head: Linear,
    d: Vec<f32>,
    scratch: [Vec<f32>; 4],
}

impl Vit {
    pub fn new(bf16: bool) -> Self {
        let mut blocks: Vec<_> = (0..12).map(|_| Block::new()).collect();
        for block in &mut blocks {
            let [one, two] = &mut block.perceptron;
            for linear in [&mut block.qkv, &mut block.projection, one, two] {
                linear.bf16 = bf16;
            }
        }
        Self {
            input: random(ROWS * WIDTH, 1.0),
            blocks,
            head: Linear::new(BATCH, WIDTH, CLASSES),
            d: vec![0.0; ROWS * WIDTH],
            scratch: [WIDTH, WIDTH, HIDDEN, HIDDEN].map(|size| vec![0.0; ROWS * size]),
        }
    }
}

impl Model for Vit {
    fn step(&mut self, kernels: &Kernels) -> Result<f32, KernelError> {
        for index in 0..self.blocks.len() {
            let (before, rest) = self.blocks.split_at_mut(index);
            let x = before.last().map_or(&self.input, |block| &block.kept[7]);
            rest[0].forward(kernels, x)?;
        }
        let features = &self.blocks[11].kept[7];
        let tokens = features
            .chunks(TOKENS * WIDTH)
            .flat_map(|image| &image[..WIDTH]);
        let tokens: Vec<_> = tokens.copied().collect();
        let mut logits = vec![0.0; BATCH * CLASSES];
        let (mut gradient, mut spread) = (logits.clone(), tokens.clone());
        self.head
            .forward(kernels, &tokens, None, false, &mut logits)?;
        let mean = loss(kernels, &logits, CLASSES, &mut gradient)?;
        self.head
            .backward(kernels, &tokens, &gradient, Some(&mut spread))?;
        self.d.fill(0.0);
        for (image, spread) in self.d.chunks_mut(TOKENS * WIDTH).zip(spread.chunks(WIDTH)) {
            image[..WIDTH].copy_from_slice(spread);
        }
        for index in (0..self.blocks.len()).rev() {
            let (before, rest) = self.blocks.split_at_mut(index);
            let x = before.last().map_or(&self.input, |block| &block.kept[7]);
            rest[0].backward(kernels, x, &mut self.d, &mut self.scratch)?;
        }
        Ok(mean)
    }
}
