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
use crate::cpu::epilogue::{Beside, Epilogue};
use crate::cpu::kernels::Kernels;
use crate::cpu::linear::Input;
use crate::cpu::matmul::{self, Matmul};
use crate::cpu::parallel::Shared;
use crate::error::KernelError;

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
        let plain = Epilogue::default();
        self.linear_bf16(shape, Input::Plain(left), right, &plain, product)
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

    /// The product of rounded matrices; the lengths have been checked.
    ///
    /// # Errors
    ///
    /// Errors of the epilogue.
    pub(crate) fn rounded_product(
        &self,
        shape: &Matmul,
        left: &[f32],
        right: &[f32],
        out: &mut [f32],
        beside: Beside<'_>,
    ) -> Result<(), KernelError> {
        #[cfg(target_arch = "x86_64")]
        if let Some(multiply) = self.packed_product() {
            return multiply(self, shape, left, right, out, beside);
        }
        let mut rounded_left = self.workspace.take(left.len());
        let mut rounded_right = self.workspace.take(right.len());
        let Beside {
            epilogue,
            map,
            sums,
        } = beside;
        if let Some(sums) = sums {
            let (rows, columns) = (shape.depth, shape.columns);
            self.bias_gradient(Rows { rows, columns }, right, sums)?;
        }
        let factors = [
            (left, rounded_left.slice(), map),
            (right, rounded_right.slice(), None),
        ];
        for (from, to, map) in factors {
            let target = Shared::new(to);
            self.pieces(from.len(), |start, count| {
                let mut from = from[start..].as_ptr();
                // SAFETY: pieces do not overlap and lie within both slices.
                unsafe {
                    let to = target.at(start);
                    if let Some(map) = map {
                        map(count, from, to);
                        from = to;
                    }
                    (self.table.round)(count, from, to);
                }
            });
        }
        let beside = Beside {
            epilogue,
            ..Beside::default()
        };
        let (left, right) = (rounded_left.slice(), rounded_right.slice());
        matmul::product(self, shape, left, right, out, beside)
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
