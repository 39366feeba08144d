//! Matrix products of numbers rounded to bf16, summed in f32. They are twice as fast as f32 on a
//! CPU with dot products of bf16 pairs. Elsewhere the results are the same, up to the order of
//! sums.

#[cfg(target_arch = "x86_64")]
mod dot;
#[cfg(target_arch = "x86_64")]
pub(crate) mod small;
#[cfg(target_arch = "x86_64")]
pub(crate) mod source;
#[cfg(target_arch = "x86_64")]
mod vector;

use crate::cpu::elementwise::Rows;
use crate::cpu::epilogue::Epilogue;
use crate::cpu::kernels::Kernels;
use crate::cpu::matmul::{Matmul, product};
use crate::cpu::parallel::Shared;
use crate::error::{KernelError, length};

/// Input of a linear layer.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The values themselves.
    Plain(&'a [f32]),
    /// The GELU of these. It is computed on the way and not kept.
    Gelu(&'a [f32]),
}

impl<'a> Input<'a> {
    fn values(self) -> &'a [f32] {
        match self {
            Self::Plain(values) | Self::Gelu(values) => values,
        }
    }
}

/// Returns the nearest bf16 as f32, ties to even.
fn round(value: f32) -> f32 {
    if value.is_nan() {
        return value;
    }
    let bits = value.to_bits();
    let even = (bits >> 16) & 1;
    f32::from_bits(bits.wrapping_add(0x7fff + even) & 0xffff_0000)
}

impl Kernels {
    /// `product = left · right` with both rounded to bf16 and sums in f32.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn matmul_bf16(
        &self,
        shape: &Matmul,
        left: &[f32],
        right: &[f32],
        product: &mut [f32],
    ) -> Result<(), KernelError> {
        self.linear_bf16(
            shape,
            Input::Plain(left),
            right,
            &Epilogue::default(),
            product,
        )
    }

    /// [`Kernels::matmul_bf16`] with operations before and after it, while the data is in the
    /// cache.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn linear_bf16(
        &self,
        shape: &Matmul,
        left: Input<'_>,
        right: &[f32],
        epilogue: &Epilogue<'_>,
        product: &mut [f32],
    ) -> Result<(), KernelError> {
        shape.check(left.values(), right, product)?;
        let rows = Rows {
            rows: shape.rows,
            columns: shape.columns,
        };
        epilogue.check(rows)?;
        #[cfg(target_arch = "x86_64")]
        if self.has_bf16() {
            let beside = dot::Beside {
                epilogue: *epilogue,
                map: self.map(left),
                sums: None,
            };
            return dot::multiply(self, shape, left.values(), right, product, beside);
        }
        self.rounded(shape, left, right, product)?;
        self.finish(rows, product, epilogue)
    }

    /// The gradients of a linear layer's weight, as [`Kernels::matmul_bf16`] of its transposed
    /// input `x` \[rows, in\] and the gradient `dy` \[rows, out\] of its output, and of its bias,
    /// the sums of the columns of `dy`.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn linear_gradients_bf16(
        &self,
        [rows, inputs, outputs]: [usize; 3],
        x: Input<'_>,
        dy: &[f32],
        weight_gradient: &mut [f32],
        bias_gradient: &mut [f32],
    ) -> Result<(), KernelError> {
        let shape = Matmul {
            rows: inputs,
            columns: outputs,
            depth: rows,
            left_transposed: true,
            right_transposed: false,
        };
        shape.check(x.values(), dy, weight_gradient)?;
        length("linear", "bias_gradient", bias_gradient.len(), outputs)?;
        #[cfg(target_arch = "x86_64")]
        if self.has_bf16() {
            let beside = dot::Beside {
                map: self.map(x),
                sums: Some(bias_gradient),
                ..dot::Beside::default()
            };
            return dot::multiply(self, &shape, x.values(), dy, weight_gradient, beside);
        }
        self.rounded(&shape, x, dy, weight_gradient)?;
        let shape = Rows {
            rows,
            columns: outputs,
        };
        self.bias_gradient(shape, dy, bias_gradient)
    }

    /// Whether products of bf16 are faster than those of f32: the CPU has AVX-512 BF16 and no
    /// other instruction set was asked for.
    pub fn has_bf16(&self) -> bool {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return self.isa() == crate::cpu::isa::Isa::Avx512
            && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        false
    }

    #[cfg(target_arch = "x86_64")]
    fn map(&self, input: Input<'_>) -> Option<source::Map> {
        matches!(input, Input::Gelu(_)).then_some(self.table.gelu)
    }

    fn rounded(
        &self,
        shape: &Matmul,
        left: Input<'_>,
        right: &[f32],
        result: &mut [f32],
    ) -> Result<(), KernelError> {
        let mut activated;
        let left = match left {
            Input::Plain(left) => left,
            Input::Gelu(left) => {
                activated = self.workspace.take(left.len());
                self.gelu(left, activated.slice())?;
                activated.slice()
            }
        };
        let mut rounded_left = self.workspace.take(left.len());
        let mut rounded_right = self.workspace.take(right.len());
        for (from, to) in [(left, rounded_left.slice()), (right, rounded_right.slice())] {
            let target = Shared::new(to);
            self.pieces(from.len(), |start, count| {
                // SAFETY: pieces do not overlap and lie within both slices.
                let to = unsafe { target.slice(start..start + count) };
                for (to, &from) in to.iter_mut().zip(&from[start..start + count]) {
                    *to = round(from);
                }
            });
        }
        product(
            [shape.rows, shape.columns, shape.depth],
            (rounded_left.slice(), shape.left_transposed),
            (rounded_right.slice(), shape.right_transposed),
            result,
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::round;

    #[test]
    fn rounds_to_the_nearest_and_ties_to_even() {
        let ulp = 2f32.powi(-7);
        assert_eq!(round(1.0 + 0.49 * ulp), 1.0);
        assert_eq!(round(1.0 + 0.51 * ulp), 1.0 + ulp);
        assert_eq!(round(1.0 + 0.5 * ulp), 1.0);
        assert_eq!(round(1.0 + 1.5 * ulp), 1.0 + 2.0 * ulp);
        assert_eq!(round(-3.0), -3.0);
        assert_eq!(round(f32::INFINITY), f32::INFINITY);
        assert!(round(f32::NAN).is_nan());
    }
}
