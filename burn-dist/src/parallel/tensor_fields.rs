//! Plain `Tensor` fields of a model, which Burn shows to no visitor.
//!
//! Only `Debug`, which every module has, tells that they are there.

use std::fmt::{self, Write};

use burn::module::Module;

/// Types of Burn whose tensors follow from their configuration, or reach visitors as a `Param`.
const KNOWN: [&str; 3] = ["RotaryEncoding", "PositionalEncoding", "RunningState"];
/// Largest description of a model that is read, in bytes. A longer one prints data of its own.
const MOST: usize = 1 << 22;

/// Warns of plain tensor fields of `model`.
pub(super) fn warn_of<M: Module>(model: &M) {
    let paths = paths(model);
    if paths.is_empty() {
        return;
    }
    tracing::warn!(
        "plain tensors in the model: {}. They are not trained, compared between ranks, broadcast, \
         cast or saved, which is right only for constants. Make state a `Param`, and freeze it by \
         `set_require_grad(false)`",
        paths.join(", ")
    );
}

/// The paths of plain tensor fields.
fn paths(model: &impl fmt::Debug) -> Vec<String> {
    let mut reader = Reader::default();
    // It stops early at its limit.
    let _ = write!(reader, "{model:?}");
    reader.found
}

/// Reads what derived `Debug` implementations write, byte by byte.
#[derive(Default)]
struct Reader {
    read: usize,
    /// The last word, and whether the next letter begins another one.
    word: String,
    ended: bool,
    /// Within a string: the quote that ends it, and whether the next byte is escaped.
    quote: Option<char>,
    escaped: bool,
    open: Vec<Frame>,
    found: Vec<String>,
}

/// A struct, tuple or list that has begun.
struct Frame {
    of: String,
    /// Name of the current field; empty in a tuple.
    field: String,
    /// Number of the current element, in a list.
    element: Option<usize>,
}

impl Reader {
    fn letter(&mut self, letter: char) {
        if let Some(quote) = self.quote {
            if !self.escaped && letter == quote {
                self.quote = None;
            }
            self.escaped = !self.escaped && letter == '\\';
            return;
        }
        match letter {
            '"' => self.quote = Some('"'),
            '{' | '(' | '[' => self.begin(letter == '['),
            '}' | ')' | ']' => drop(self.open.pop()),
            ':' => {
                if let Some(frame) = self.open.last_mut() {
                    frame.field.clone_from(&self.word);
                }
            }
            ',' => {
                let element = self.open.last_mut().and_then(|top| top.element.as_mut());
                element.into_iter().for_each(|element| *element += 1);
            }
            _ if letter.is_alphanumeric() || letter == '_' => {
                if std::mem::take(&mut self.ended) {
                    self.word.clear();
                }
                self.word.push(letter);
                return;
            }
            _ => {}
        }
        self.ended = true;
    }

    fn begin(&mut self, list: bool) {
        let parent = self.open.last().map(|frame| frame.of.as_str());
        if self.word == "BridgeTensor" && parent == Some("Tensor") {
            let known = |frame: &Frame| KNOWN.contains(&frame.of.as_str());
            if !self.open.iter().any(known) {
                self.found.push(self.path());
            }
        }
        self.open.push(Frame {
            of: std::mem::take(&mut self.word),
            field: String::new(),
            element: list.then_some(0),
        });
    }

    /// Path of the tensor that is open.
    fn path(&self) -> String {
        let above = &self.open[..self.open.len() - 1];
        let names = above.iter().filter_map(|frame| match frame.element {
            Some(element) => Some(element.to_string()),
            None => (!frame.field.is_empty()).then(|| frame.field.clone()),
        });
        names.collect::<Vec<_>>().join(".")
    }
}

impl Write for Reader {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.read += text.len();
        if self.read > MOST {
            return Err(fmt::Error);
        }
        text.chars().for_each(|letter| self.letter(letter));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Param;
    use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
    use burn::nn::{PositionalEncoding, PositionalEncodingConfig};
    use burn::tensor::{Device, Tensor};

    use super::*;

    #[derive(Module, Debug)]
    struct Block {
        linear: Linear,
        cache: Option<Tensor<2>>,
    }

    #[derive(Module, Debug)]
    struct Net {
        norm: BatchNorm,
        positions: PositionalEncoding,
        blocks: Vec<Block>,
        mean: Tensor<1>,
        buffer: Param<Tensor<1>>,
        #[module(skip)]
        name: String,
        last: (Linear, Tensor<1>),
    }

    #[test]
    fn plain_tensors_are_named_and_nothing_else() {
        let device = Device::flex();
        let linear = || LinearConfig::new(2, 2).init(&device);
        let vector = || Tensor::<1>::ones([2], &device);
        let block = |cache: bool| Block {
            linear: linear(),
            cache: cache.then(|| Tensor::ones([2, 2], &device)),
        };
        let net = Net {
            norm: BatchNormConfig::new(2).init(&device),
            positions: PositionalEncodingConfig::new(2).init(&device),
            blocks: vec![block(false), block(true)],
            mean: vector(),
            buffer: Param::from_tensor(vector()).set_require_grad(false),
            name: "a \"Tensor { primitive: BridgeTensor { kind".into(),
            last: (linear(), vector()),
        };
        assert_eq!(paths(&net), ["blocks.1.cache", "mean", "last"]);
        assert!(paths(&linear()).is_empty());
    }

    #[test]
    fn a_model_that_prints_its_data_is_read_up_to_a_limit() {
        let endless = vec![1u32; MOST];
        let device = Device::flex();
        let model = (
            Tensor::<1>::ones([1], &device),
            endless,
            Tensor::<1>::ones([1], &device),
        );
        assert_eq!(paths(&model).len(), 1);
    }
}
