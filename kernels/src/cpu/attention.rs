//! Attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>). It computes one head of one
//! batch element at a time, so that the scores stay in the L2 cache. The backward pass recomputes
//! the probabilities, which is faster than storing and loading them.

#[cfg(target_arch = "x86_64")]
use crate::cpu::bf16::source::Source;
use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::{Shared, each};
use crate::cpu::vector::softmax::Ahead;
use crate::cpu::vector::tile::Block;
use crate::error::{KernelError, length, volume};

const OP: &str = "attention";

/// Shape of a multi-head self-attention, and the precision of its products.
///
/// Query, key and value are one tensor \[batch, tokens, 3, heads, depth\]; the result is \[batch,
/// tokens, heads, depth\].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Number of sequences.
    pub batch: usize,
    /// Tokens per sequence.
    pub tokens: usize,
    /// Number of heads.
    pub heads: usize,
    /// Elements per head.
    pub depth: usize,
    /// Factor of the scores, usually `1 / √depth`.
    pub scale: f32,
    /// Rounds the factors of all products to bf16; sums and softmax stay in f32. Nothing is rounded
    /// on [`Bf16Path::F32`](crate::cpu::Bf16Path), because that would only cost time.
    pub bf16: bool,
}

/// A matrix whose rows are `step` apart.
#[derive(Clone, Copy)]
struct Matrix {
    start: *const f32,
    step: usize,
}

#[cfg(target_arch = "x86_64")]
impl Matrix {
    /// Returns the matrix as a factor whose rows are the steps of the depth, or else the lanes.
    fn packed_by(self, rows_are_steps: bool) -> Source {
        let (lane, step) = match rows_are_steps {
            true => (1, self.step),
            false => (self.step, 1),
        };
        Source {
            start: Shared::address(self.start),
            lane,
            step,
        }
    }
}

/// A matrix to write to.
#[derive(Clone, Copy)]
struct Target {
    start: *mut f32,
    step: usize,
}

impl Attention {
    /// Returns the number of elements of the result, a third of those of query, key and value.
    fn elements(&self) -> Result<usize, KernelError> {
        let (batch, heads) = (("batch", self.batch), ("heads", self.heads));
        let (tokens, depth) = (("tokens", self.tokens), ("depth", self.depth));
        volume(OP, &[tokens, tokens, batch])?;
        let elements = volume(OP, &[batch, tokens, heads, depth])?;
        volume(OP, &[("elements", elements), ("matrices", 3)])?;
        if self.scale > 0.0 && self.scale.is_finite() {
            return Ok(elements);
        }
        Err(KernelError::Range {
            op: OP,
            what: "scale",
            range: "positive and finite",
        })
    }

    /// Returns the number of elements per token of the result.
    fn width(&self) -> usize {
        self.heads * self.depth
    }

    /// The memory that the sequence and head after `index` will read.
    fn ahead(&self, index: usize, qkv: &[f32], gradient: Option<&[f32]>) -> Ahead {
        if index + 1 == self.batch * self.heads {
            return Ahead::default();
        }
        let (start, out) = self.starts(index + 1);
        let width = self.width();
        let part = |which: usize| Some((qkv[start + which * width..].as_ptr(), 3 * width));
        let gradient = gradient.map(|gradient| (gradient[out..].as_ptr(), width));
        Ahead {
            matrices: [part(0), part(1), part(2), gradient],
            columns: self.depth,
        }
    }

    /// The start of sequence and head `index`: in query, key and value, and in the result.
    fn starts(&self, index: usize) -> (usize, usize) {
        let (sequence, head) = (index / self.heads, index % self.heads);
        let width = self.width();
        let start = sequence * self.tokens * width;
        (3 * start + head * self.depth, start + head * self.depth)
    }
}

impl Kernels {
    /// `output = softmax(scale · q kᵀ) v` for every head.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape, a scale that is not positive.
    pub fn attention(
        &self,
        shape: &Attention,
        qkv: &[f32],
        output: &mut [f32],
    ) -> Result<(), KernelError> {
        let elements = shape.elements()?;
        length(OP, "qkv", qkv.len(), 3 * elements)?;
        length(OP, "output", output.len(), elements)?;
        let output = Shared::new(output);
        let width = shape.width();
        each(shape.batch * shape.heads, |index| {
            let (start, out) = shape.starts(index);
            // SAFETY: every index has a head of its own; all its rows lie within the slices.
            unsafe {
                let part = |which: usize| Matrix {
                    start: qkv.as_ptr().add(start + which * width),
                    step: 3 * width,
                };
                let target = Target {
                    start: output.at(out),
                    step: width,
                };
                let mut scratch = self.workspace.take(self.square(shape));
                let ahead = shape.ahead(index, qkv, None);
                let p = self.probabilities(shape, [part(0), part(1)], scratch.pointer(), &ahead);
                self.rows_by(shape, (p, false), part(2), target);
            }
        });
        Ok(())
    }

    /// Computes the gradient of [`Kernels::attention`] with respect to query, key and value.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Kernels::attention`].
    pub fn attention_gradient(
        &self,
        shape: &Attention,
        qkv: &[f32],
        gradient: &[f32],
        qkv_gradient: &mut [f32],
    ) -> Result<(), KernelError> {
        let elements = shape.elements()?;
        length(OP, "qkv", qkv.len(), 3 * elements)?;
        length(OP, "gradient", gradient.len(), elements)?;
        length(OP, "qkv_gradient", qkv_gradient.len(), 3 * elements)?;
        let target = Shared::new(qkv_gradient);
        let width = shape.width();
        let tokens = shape.tokens;
        each(shape.batch * shape.heads, |index| {
            let (start, out) = shape.starts(index);
            // SAFETY: every index has a head of its own; all its rows lie within the slices.
            unsafe {
                let part = |which: usize| Matrix {
                    start: qkv.as_ptr().add(start + which * width),
                    step: 3 * width,
                };
                let to = |which: usize| Target {
                    start: target.at(start + which * width),
                    step: 3 * width,
                };
                let dy = Matrix {
                    start: gradient.as_ptr().add(out),
                    step: width,
                };
                let mut scratch = self.workspace.take(self.square(shape));
                let mut more = self.workspace.take(self.square(shape));
                let ahead = shape.ahead(index, qkv, Some(gradient));
                let p = self.probabilities(shape, [part(0), part(1)], scratch.pointer(), &ahead);
                self.rows_by(shape, (p, true), dy, to(2));
                let d = more.pointer();
                let scores = Target {
                    start: d,
                    step: p.step,
                };
                self.by_transposed(shape, dy, part(2), scores);
                let table = self.table;
                (table.softmax_gradient)(tokens, tokens, p.step, shape.scale, p.start, d);
                let d = Matrix {
                    start: d,
                    step: p.step,
                };
                self.rows_by(shape, (d, false), part(1), to(0));
                self.rows_by(shape, (d, true), part(0), to(1));
            }
        });
        Ok(())
    }

    /// Returns the number of elements of a score matrix with its rows padded to whole panels.
    fn square(&self, shape: &Attention) -> usize {
        shape.tokens * shape.tokens.next_multiple_of(2 * self.table.lanes)
    }

    /// Writes `softmax(scale · q kᵀ)` to `scores`.
    unsafe fn probabilities(
        &self,
        shape: &Attention,
        [q, k]: [Matrix; 2],
        scores: *mut f32,
        ahead: &Ahead,
    ) -> Matrix {
        let step = shape.tokens.next_multiple_of(2 * self.table.lanes);
        // SAFETY: the caller guarantees the head's rows and for `square` elements.
        unsafe {
            self.by_transposed(
                shape,
                q,
                k,
                Target {
                    start: scores,
                    step,
                },
            );
            let (tokens, null) = (shape.tokens, std::ptr::null_mut());
            let size = (tokens, tokens, step);
            (self.table.softmax)(size, shape.scale, scores, null, ahead);
        }
        Matrix {
            start: scores,
            step,
        }
    }

    /// Computes `scores = a bᵀ`, \[tokens, tokens\].
    unsafe fn by_transposed(&self, shape: &Attention, a: Matrix, b: Matrix, scores: Target) {
        #[cfg(target_arch = "x86_64")]
        if shape.bf16
            && let Some(multiply) = self.small_product()
        {
            let size = [shape.tokens, shape.tokens, shape.depth];
            let (a, b) = (a.packed_by(false), b.packed_by(false));
            let to = (scores.start, scores.step);
            // SAFETY: the caller guarantees both matrices and the scores.
            return unsafe { multiply(&self.workspace, size, &a, &b, to) };
        }
        let panel = 2 * self.table.lanes;
        // Rows beyond the last token are multiplied too, but never stored.
        let mut turned = self.workspace.take(shape.depth * scores.step);
        let turned = turned.pointer();
        // SAFETY: the caller guarantees both matrices and the scores; `turned` has a row of whole
        // panels for each element of the depth.
        unsafe {
            let (tokens, depth) = (shape.tokens, shape.depth);
            (self.table.transpose)(tokens, depth, b.start, b.step, turned, scores.step);
            for column in (0..shape.tokens).step_by(panel) {
                (self.table.block)(&Block {
                    rows: shape.tokens,
                    columns: panel.min(shape.tokens - column),
                    depth: shape.depth,
                    runs: 1,
                    a: a.start,
                    a_row: a.step,
                    a_step: 1,
                    a_run: 0,
                    b: turned.add(column),
                    b_step: scores.step,
                    b_run: 0,
                    c: scores.start.add(column),
                    c_row: scores.step,
                    add: false,
                });
            }
        }
    }

    /// Computes `target = s b`, or `sᵀ b`, for scores \[tokens, tokens\] and `b` \[tokens, depth\].
    unsafe fn rows_by(
        &self,
        shape: &Attention,
        (scores, transposed): (Matrix, bool),
        mut b: Matrix,
        target: Target,
    ) {
        #[cfg(target_arch = "x86_64")]
        if shape.bf16
            && let Some(multiply) = self.small_product()
        {
            let size = [shape.tokens, shape.depth, shape.tokens];
            let (scores, b) = (scores.packed_by(transposed), b.packed_by(true));
            let to = (target.start, target.step);
            // SAFETY: the caller guarantees all matrices.
            return unsafe { multiply(&self.workspace, size, &scores, &b, to) };
        }
        let lanes = self.table.lanes;
        let mut wide;
        // SAFETY: the caller guarantees all matrices.
        unsafe {
            if !shape.depth.is_multiple_of(lanes) {
                // Vectors are read whole, so rows are whole vectors wide.
                let step = shape.depth.next_multiple_of(lanes);
                wide = self.workspace.zeros(shape.tokens * step);
                for (row, to) in wide.slice().chunks_exact_mut(step).enumerate() {
                    let row = b.start.add(row * b.step);
                    to.as_mut_ptr().copy_from_nonoverlapping(row, shape.depth);
                }
                b = Matrix {
                    start: wide.pointer(),
                    step,
                };
            }
            for column in (0..shape.depth).step_by(2 * lanes) {
                (self.table.block)(&Block {
                    rows: shape.tokens,
                    columns: (2 * lanes).min(shape.depth - column),
                    depth: shape.tokens,
                    runs: 1,
                    a: scores.start,
                    a_row: if transposed { 1 } else { scores.step },
                    a_step: if transposed { scores.step } else { 1 },
                    a_run: 0,
                    b: b.start.add(column),
                    b_step: b.step,
                    b_run: 0,
                    c: target.start.add(column),
                    c_row: target.step,
                    add: false,
                });
            }
        }
    }
}
