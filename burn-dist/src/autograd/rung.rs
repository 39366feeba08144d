//! Nodes of Burn's graph that give an operation a depth and nothing else.
//!
//! Backward visits the graph by depth: one more than that of the deepest input. An untracked input
//! counts for the depth and is not followed. Each thread builds a ladder of untracked nodes, one
//! for every depth, as far as it needs.

use std::cell::RefCell;
use std::fmt::{self, Write};

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, Backend, Flex};
use burn::tensor::{DType, Shape};

/// Largest depth; deeper nodes count as this deep.
const MOST: usize = 1 << 14;

thread_local! {
    static LADDER: RefCell<Vec<FloatTensor<Autodiff<Flex>>>> = const { RefCell::new(Vec::new()) };
}

/// A node of this depth. An operation with it as input lies one deeper.
pub(super) fn at(depth: usize) -> NodeGuard {
    let depth = depth.min(MOST);
    LADDER.with_borrow_mut(|ladder| {
        while ladder.len() <= depth {
            let next = match ladder.last() {
                Some(last) => above::<Autodiff<Flex>>(last.clone()),
                None => Autodiff::<Flex>::from_inner(number()),
            };
            ladder.push(next);
        }
        ladder[depth].node()
    })
}

fn number() -> FlexTensor {
    FlexTensor::zeros(Shape::new([1]), DType::F32)
}

/// Any operation will do.
fn above<B: Backend>(rung: FloatTensor<B>) -> FloatTensor<B> {
    B::float_neg(rung)
}

/// Depth of a node. Burn shows it only in the output of [`fmt::Debug`]; 0 if it is not found there.
pub(super) fn depth_of(node: &NodeGuard) -> usize {
    let mut reader = Reader::default();
    // `write!` fails once the depth is read, so that the rest is not written.
    let _ = write!(reader, "{node:?}");
    reader.depth
}

/// Reads the number after [`Reader::NAME`].
#[derive(Default)]
struct Reader {
    /// Length of the part of the name that the last bytes match.
    matched: usize,
    depth: usize,
}

impl Reader {
    const NAME: &[u8] = b" order: ";
}

impl Write for Reader {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.matched < Self::NAME.len() {
                self.matched = match byte == Self::NAME[self.matched] {
                    true => self.matched + 1,
                    false => usize::from(byte == Self::NAME[0]),
                };
            } else if byte.is_ascii_digit() {
                let digit = usize::from(byte - b'0');
                self.depth = self.depth.saturating_mul(10).saturating_add(digit);
            } else {
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::autodiff::checkpoint::base::Checkpointer;
    use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};

    use super::*;

    #[test]
    fn rungs_have_every_depth_and_are_not_tracked() {
        for depth in [0, 1, 5, 2, 37, 1, 1000] {
            assert_eq!(depth_of(&at(depth)), depth);
        }
        assert_eq!(depth_of(&at(usize::MAX)), MOST);
        let tracked = LADDER.with_borrow(|ladder| ladder.iter().any(|rung| rung.is_tracked()));
        assert!(!tracked);
        assert_eq!(at(7).id(), at(7).id());
    }

    #[test]
    fn an_operation_on_a_rung_lies_above_it() {
        let leaf = Autodiff::<Flex>::from_inner(number());
        let prepared = Backward::<Flex, 2>::prepare::<NoCheckpointing>(Both, [leaf.node(), at(9)]);
        let OpsKind::UnTracked(prepared) = prepared.compute_bound().stateful() else {
            panic!("nothing is tracked");
        };
        assert_eq!(depth_of(&prepared.finish(number()).node()), 10);
    }

    #[derive(Debug)]
    struct Both;

    impl Backward<Flex, 2> for Both {
        type State = ();

        fn backward(self, _: Ops<(), 2>, _: &mut Gradients, _: &mut Checkpointer) {}
    }
}
