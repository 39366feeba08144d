//! Matrix products of numbers rounded to bf16, summed in f32. CPUs differ in what is fastest, so
//! [`Bf16Path`] is measured. Results are the same on all paths, up to the order of sums.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod micro;
mod path;
#[cfg(target_arch = "x86_64")]
mod product;
#[cfg(target_arch = "x86_64")]
mod small;
#[cfg(target_arch = "x86_64")]
pub(crate) mod source;
#[cfg(target_arch = "x86_64")]
mod vector;

pub(crate) use path::Chosen;
pub use path::{BF16_VARIABLE, Bf16Path};

use crate::cpu::elementwise::Rows;
use crate::cpu::epilogue::Epilogue;
use crate::cpu::kernels::Kernels;
use crate::cpu::matmul::{Matmul, product as f32_product};
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
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        shape.check(left.values(), right, out)?;
        let rows = Rows {
            rows: shape.rows,
            columns: shape.columns,
        };
        epilogue.check(rows)?;
        #[cfg(target_arch = "x86_64")]
        if let Some(multiply) = self.packed_product() {
            let beside = product::Beside {
                epilogue: *epilogue,
                map: self.map(left),
                sums: None,
            };
            return multiply(self, shape, left.values(), right, out, beside);
        }
        self.rounded(shape, left, right, out)?;
        self.finish(rows, out, epilogue)
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
        if let Some(multiply) = self.packed_product() {
            let beside = product::Beside {
                map: self.map(x),
                sums: Some(bias_gradient),
                ..product::Beside::default()
            };
            return multiply(self, &shape, x.values(), dy, weight_gradient, beside);
        }
        self.rounded(&shape, x, dy, weight_gradient)?;
        let shape = Rows {
            rows,
            columns: outputs,
        };
        self.bias_gradient(shape, dy, bias_gradient)
    }

    /// The path of bf16 products. It is measured once, if nothing has set it.
    pub fn bf16_path(&self) -> Bf16Path {
        self.bf16.get().unwrap_or_else(|| {
            let path = Bf16Path::fastest(self.isa());
            self.bf16.set(path);
            path
        })
    }

    /// Sets the path of bf16 products from now on.
    ///
    /// # Errors
    ///
    /// This CPU lacks it.
    pub fn set_bf16_path(&self, path: Bf16Path) -> Result<(), KernelError> {
        self.bf16.set(path.checked(self.isa())?);
        Ok(())
    }

    /// The blocked product of the path, or `None` for products in f32.
    #[cfg(target_arch = "x86_64")]
    fn packed_product(&self) -> Option<product::Multiply> {
        match self.bf16_path() {
            Bf16Path::Amx => Some(product::multiply::<amx::Amx>),
            Bf16Path::AmxEmulated => Some(product::multiply::<amx::Emulated>),
            Bf16Path::Dot => Some(product::multiply::<vector::Dot>),
            Bf16Path::F32 => None,
        }
    }

    /// The product of small matrices of the path, or `None` for products in f32.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn small_product(&self) -> Option<small::Multiply> {
        small_product(self.bf16_path())
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
                // SAFETY: both are of the same length.
                unsafe { (self.table.round)(count, from[start..].as_ptr(), to.as_mut_ptr()) };
            });
        }
        f32_product(
            [shape.rows, shape.columns, shape.depth],
            (rounded_left.slice(), shape.left_transposed),
            (rounded_right.slice(), shape.right_transposed),
            result,
        );
        Ok(())
    }
}

/// The product of small matrices of a path, or `None` for products in f32.
#[cfg(target_arch = "x86_64")]
fn small_product(path: Bf16Path) -> Option<small::Multiply> {
    match path {
        Bf16Path::Amx => Some(small::multiply::<amx::Amx>),
        Bf16Path::AmxEmulated => Some(small::multiply::<amx::Emulated>),
        Bf16Path::Dot => Some(small::multiply::<vector::Dot>),
        Bf16Path::F32 => None,
    }
}
