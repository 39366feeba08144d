//! A causal transformer for language models: each token is predicted from those before it.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig, Initializer, Linear, LinearConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor, module};
use burn_dist::autograd::boundary;
use kernels::ops;

use crate::flops::Tracer;
use crate::layers::{dropout, drops, read};
use crate::path::{Path, Then, then_nothing, then_plus};
use crate::{LayerNorm, ModelError, check};

const NAME: &str = "transformer";
/// As in GPT-2.
const NORM_EPSILON: f64 = 1e-5;
const WEIGHT_STD: f64 = 0.02;
/// Width of the hidden layer of a block as a multiple of the model's.
const MLP_RATIO: usize = 4;

/// A model that maps tokens to logits of the tokens after them.
pub trait LanguageModel: Module {
    /// Computes logits `[batch, tokens, vocabulary]` in `dtype` of tokens `[batch, tokens]`.
    fn forward(&self, tokens: Tensor<2, Int>, dtype: FloatDType) -> Tensor<3>;

    /// Floating-point operations of the forward pass for a sequence of that many tokens, if known.
    fn flops(&self, _tokens: usize) -> Option<u64> {
        None
    }
}

/// Sizes and dropout rate of a [`Transformer`].
#[derive(Config, Debug)]
pub struct TransformerConfig {
    /// Number of input tokens.
    pub tokens: usize,
    /// Number of tokens that are predicted: the first of the input tokens.
    pub vocabulary: usize,
    /// Maximum tokens of a sequence.
    pub context: usize,
    /// Width of the tokens.
    #[config(default = 128)]
    pub width: usize,
    /// Number of blocks.
    #[config(default = 4)]
    pub layers: usize,
    /// Number of attention heads; it divides `width`.
    #[config(default = 4)]
    pub heads: usize,
    /// Dropout rate after the embedding and after each branch of a block.
    #[config(default = 0.0)]
    pub dropout: f64,
}

impl TransformerConfig {
    /// Builds the model on `device`, initialised as GPT-2: weights are normal with standard
    /// deviation 0.02, in the last layer of a branch divided by √(2 · layers), biases 0.
    ///
    /// # Errors
    /// Fails for a size of zero, more than 10,000 blocks, a `width` that the heads do not divide,
    /// or a rate outside `[0, 1)`.
    pub fn init(&self, device: &Device) -> Result<Transformer, ModelError> {
        self.check()?;
        let table = |rows: usize| -> Param<Tensor<2>> {
            let normal = Initializer::Normal {
                mean: 0.0,
                std: WEIGHT_STD,
            };
            normal.init([rows, self.width], device)
        };
        Ok(Transformer {
            embedding: table(self.tokens),
            positions: table(self.context),
            drop: DropoutConfig::new(self.dropout).init(),
            blocks: (0..self.layers).map(|_| Block::new(self, device)).collect(),
            norm: LayerNorm::new(self.width, NORM_EPSILON, device),
            head: linear(self.width, self.vocabulary, WEIGHT_STD, device),
        })
    }

    fn check(&self) -> Result<(), ModelError> {
        let sizes = [
            ("tokens", self.tokens),
            ("vocabulary", self.vocabulary),
            ("context", self.context),
            ("width", self.width),
            ("layers", self.layers),
            ("heads", self.heads),
        ];
        check::sizes(NAME, &sizes)?;
        check::rates(NAME, &[("dropout", self.dropout)])?;
        check::blocks(NAME, self.layers)?;
        if !self.width.is_multiple_of(self.heads) {
            return Err(ModelError::Heads {
                model: NAME,
                heads: self.heads,
                dim: self.width,
            });
        }
        for rows in [self.tokens, self.context, self.vocabulary] {
            check::weight(NAME, &[rows, self.width])?;
        }
        check::weight(NAME, &[self.width, self.width, MLP_RATIO])
    }
}

/// Tokens and positions are embedded, go through blocks of causal attention and MLP, and each
/// becomes logits of the next token.
///
/// Normalization comes first in each branch, as in GPT-2 (Xiong et al. 2020,
/// <https://arxiv.org/abs/2002.04745>).
#[derive(Module, Debug)]
pub struct Transformer {
    /// \[tokens, width\].
    embedding: Param<Tensor<2>>,
    /// \[context, width\].
    positions: Param<Tensor<2>>,
    drop: Dropout,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl LanguageModel for Transformer {
    /// Sequences have at most the configured context. Dropout is active only on an autodiff device.
    fn forward(&self, tokens: Tensor<2, Int>, dtype: FloatDType) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let x = module::embedding(read(&self.embedding), tokens);
        let positions = read(&self.positions).narrow(0, 0, length);
        let x = (x + positions.unsqueeze()).cast(dtype);
        let (path, x) = Path::enter_tokens(x);
        let mut x = dropout(&self.drop, x);
        for block in &self.blocks {
            x = block.forward(path, x);
        }
        let x = self.norm.forward(boundary(x));
        path.leave(path.linear(&self.head, x, then_nothing()))
    }

    fn flops(&self, tokens: usize) -> Option<u64> {
        let mut tracer = Tracer::new([1, 1, 1]);
        for block in &self.blocks {
            block.trace(tokens, &mut tracer);
        }
        tracer.linear_on(&self.head, tokens);
        Some(tracer.operations())
    }
}

/// `x + proj(attention(norm1(x)))`, then `x + fc2(gelu(fc1(norm2(x))))`.
#[derive(Module, Debug)]
struct Block {
    norm1: LayerNorm,
    /// Rows of query, key and value, in this order, each with the heads one after another.
    qkv: Linear,
    proj: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    drop: Dropout,
    heads: usize,
}

impl Block {
    fn new(config: &TransformerConfig, device: &Device) -> Self {
        let (width, hidden) = (config.width, MLP_RATIO * config.width);
        let last = WEIGHT_STD / (2.0 * config.layers as f64).sqrt();
        Self {
            norm1: LayerNorm::new(width, NORM_EPSILON, device),
            qkv: linear(width, 3 * width, WEIGHT_STD, device),
            proj: linear(width, width, last, device),
            norm2: LayerNorm::new(width, NORM_EPSILON, device),
            fc1: linear(width, hidden, WEIGHT_STD, device),
            fc2: linear(hidden, width, last, device),
            drop: DropoutConfig::new(config.dropout).init(),
            heads: config.heads,
        }
    }

    /// Maps \[batch, tokens, width\] to the same shape.
    fn forward(&self, path: Path, x: Tensor<3>) -> Tensor<3> {
        let x = boundary(x);
        let qkv = path.linear(&self.qkv, self.norm1.forward(x.clone()), then_nothing());
        let seen = ops::causal_attention(qkv, self.heads);
        let x = path.linear_dropout(&self.proj, &self.drop, seen, then_plus(x));
        let hidden = path.linear(&self.fc1, self.norm2.forward(x.clone()), then_nothing());
        self.last(path, hidden, then_plus(x))
    }

    /// GELU, the last layer and dropout.
    fn last(&self, path: Path, hidden: Tensor<3>, then: Then<3>) -> Tensor<3> {
        match drops(&self.drop, &hidden) {
            true => path.linear_dropout(&self.fc2, &self.drop, ops::gelu(hidden), then),
            false => path.gelu_linear(&self.fc2, hidden, then),
        }
    }

    /// Counts the operations for a sequence.
    fn trace(&self, tokens: usize, tracer: &mut Tracer) {
        let [_, width] = self.proj.weight.lazy_shape().dims::<2>();
        tracer.linear_on(&self.qkv, tokens);
        // Queries by keys, weights by values.
        tracer.product(tokens, width, tokens);
        tracer.product(tokens, tokens, width);
        for layer in [&self.proj, &self.fc1, &self.fc2] {
            tracer.linear_on(layer, tokens);
        }
    }
}

/// A linear layer with normal weights and a bias of 0.
fn linear(inputs: usize, outputs: usize, std: f64, device: &Device) -> Linear {
    let mut linear = LinearConfig::new(inputs, outputs)
        .with_initializer(Initializer::Normal { mean: 0.0, std })
        .init(device);
    linear.bias = Some(Initializer::Zeros.init([outputs], device));
    linear
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::trainable;

    fn small() -> TransformerConfig {
        TransformerConfig::new(11, 10, 6)
            .with_width(8)
            .with_layers(2)
            .with_heads(2)
    }

    #[test]
    fn a_token_does_not_depend_on_later_ones() {
        let device = Device::flex();
        let model = small().init(&device).unwrap();
        let forward = |last: i32| -> Vec<f32> {
            let tokens = Tensor::from_ints([[1, 5, 10, last]], &device);
            let logits = model.forward(tokens, FloatDType::F32);
            assert_eq!(logits.dims(), [1, 4, 10]);
            logits.into_data().try_to_vec().unwrap()
        };
        let (one, other) = (forward(3), forward(7));
        assert_eq!(one[..30], other[..30]);
        assert_ne!(one[30..], other[30..]);
    }

    #[test]
    fn sizes_are_as_counted_by_hand() {
        let model = small().init(&Device::flex().autodiff()).unwrap();
        let block = 2 * 16 + (8 * 24 + 24) + (64 + 8) + (8 * 32 + 32) + (32 * 8 + 8);
        assert_eq!(
            trainable(&model),
            11 * 8 + 6 * 8 + 2 * block + 16 + 8 * 10 + 10
        );
        let (tokens, width) = (5, 8);
        let block = tokens * 12 * width * width + 2 * tokens * tokens * width;
        let by_hand = 2 * (2 * block + tokens * width * 10);
        assert_eq!(model.flops(5), Some(by_hand));
    }

    #[test]
    fn impossible_configurations_are_named() {
        let message = |config: TransformerConfig| {
            let error = config.init(&Device::flex()).unwrap_err();
            error.to_string()
        };
        assert!(message(small().with_heads(3)).contains("`heads`"));
        assert!(message(small().with_layers(0)).contains("`layers`"));
        assert!(message(small().with_dropout(1.0)).contains("`dropout`"));
        assert!(message(small().with_width(usize::MAX / 2)).contains("`heads`"));
    }
}
