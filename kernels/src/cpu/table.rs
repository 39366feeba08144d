//! The table of vector functions of an instruction set. It is chosen once. Each entry is a wrapper
//! that enables the instruction set for the generic code inlined into it.

use crate::cpu::isa::Isa;
use crate::cpu::vector::batch_norm::{Channels, Factors};
use crate::cpu::vector::dropout::Mask;
use crate::cpu::vector::max_pool::Windows;
use crate::cpu::vector::softmax::Ahead;
use crate::cpu::vector::tile::Block;
use crate::cpu::vector::winograd::Strip;

/// Calls the macro `$callback` with all vector functions: module, name, arguments.
macro_rules! functions {
    ($callback:ident $($first:tt)*) => {
        $callback! { $($first)*
            tile::block(block: &Block);
            transpose::transpose(
                rows: usize, columns: usize, from: *const f32, from_step: usize, to: *mut f32,
                to_step: usize,
            );
            accumulate::accumulate(count: usize, from: *const f32, to: *mut f32);
            round::round(count: usize, from: *const f32, to: *mut f32);
            columns::add_bias(
                rows: usize, columns: usize, values: *mut f32, bias: *const f32,
                residual: *const f32, relu: bool,
            );
            columns::column_sums(
                rows: usize, columns: usize, values: *const f32, sums: *mut f32,
            );
            columns::relu_gradient(count: usize, y: *const f32, d: *mut f32);
            dropout::dropout(count: usize, mask: &Mask, x: *const f32, y: *mut f32);
            gelu::gelu(count: usize, x: *const f32, y: *mut f32);
            gelu::gelu_gradient(count: usize, x: *const f32, dy: *const f32, dx: *mut f32);
            softmax::softmax(
                shape: (usize, usize, usize), scale: f32, values: *mut f32, logs: *mut f32,
                ahead: &Ahead,
            );
            softmax::softmax_gradient(
                rows: usize, columns: usize, step: usize, scale: f32, p: *const f32, d: *mut f32,
            );
            layer_norm::layer_norm(
                rows: usize, columns: usize, epsilon: f32, x: *const f32, weight: *const f32,
                bias: *const f32, y: *mut f32,
            );
            layer_norm::layer_norm_gradient(
                rows: usize, columns: usize, epsilon: f32, weight: *const f32,
                inputs: [*const f32; 2], dx: *mut f32, sums: *mut f32,
            );
            batch_norm::batch_norm_sums(
                rows: usize, channels: usize, x: *const f32, pivot: *const f32, sums: *mut f32,
            );
            batch_norm::batch_norm_apply(
                rows: usize, channels: &Channels, x: *const f32, y: *mut f32,
            );
            batch_norm::batch_norm_gradient_sums(
                rows: usize, channels: &Channels, x: *const f32, dy: *const f32, sums: *mut f32,
            );
            batch_norm::batch_norm_gradient(
                rows: usize, channels: &Channels, factors: &Factors, x: *const f32,
                dy: *const f32, more: *const f32, dx: *mut f32,
            );
            max_pool::max_pool(windows: &Windows, x: *const f32, y: *mut f32);
            max_pool::max_pool_gradient(
                windows: &Windows, x: *const f32, y: *const f32, dy: *const f32, dx: *mut f32,
            );
            winograd::winograd_input(strip: &Strip, image: *const f32, planes: *mut f32);
            winograd::winograd_output(strip: &Strip, planes: *const f32, image: *mut f32);
            winograd::winograd_gradient(strip: &Strip, image: *const f32, planes: *mut f32);
            winograd::winograd_weight(
                taps: *const f32, step: usize, flip: bool, planes: *mut f32, plane: usize,
                panel: usize, panel_step: usize,
            );
            winograd::winograd_weight_gradient(
                planes: *const f32, plane: usize, lanes: usize, taps: *mut f32, step: usize,
            );
        }
    };
}

macro_rules! table {
    ($($module:ident::$name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// The vector functions of one instruction set. All of them need that set; the functions of
        /// the same names in [`crate::cpu::vector`] document their other conditions.
        pub(crate) struct Table {
            /// The instruction set.
            pub isa: Isa,
            /// Numbers per vector.
            pub lanes: usize,
            $(pub $name: unsafe fn($($type),*),)*
        }
    };
}

macro_rules! instances {
    (
        $instance:ident, $isa:ident, $vector:ty, #[$attribute:meta]
        $($module:ident::$name:ident($($argument:ident: $type:ty),* $(,)?);)*
    ) => {
        mod $instance {
            use super::*;

            pub(super) static TABLE: Table = Table {
                isa: Isa::$isa,
                lanes: <$vector as crate::cpu::simd::Simd>::LANES,
                $($name,)*
            };

            $(
                #[$attribute]
                unsafe fn $name($($argument: $type),*) {
                    // SAFETY: the caller guarantees the instruction set and the arguments.
                    unsafe { crate::cpu::vector::$module::$name::<$vector>($($argument),*) }
                }
            )*
        }
    };
}

functions!(table);

functions!(instances portable, Portable, crate::cpu::simd::portable::Portable, #[inline(never)]);

#[cfg(target_arch = "x86_64")]
functions!(instances avx2, Avx2, crate::cpu::simd::avx2::Avx2, #[target_feature(enable = "avx2,fma")]);

#[cfg(target_arch = "x86_64")]
functions!(
    instances avx512, Avx512, crate::cpu::simd::avx512::Avx512,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
);

#[cfg(target_arch = "aarch64")]
functions!(instances neon, Neon, crate::cpu::simd::neon::Neon, #[target_feature(enable = "neon")]);

/// The table of an instruction set that this CPU has.
pub(crate) fn table(isa: Isa) -> &'static Table {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::TABLE,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon::TABLE,
        _ => &portable::TABLE,
    }
}
