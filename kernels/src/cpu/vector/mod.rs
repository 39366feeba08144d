//! The vector code, generic over [`crate::cpu::simd::Simd`]. It works on addresses that the safe
//! functions outside this module have checked, and is only called through [`crate::cpu::table`].

pub(crate) mod accumulate;
pub(crate) mod batch_norm;
pub(crate) mod columns;
mod curve;
pub(crate) mod dropout;
pub(crate) mod gelu;
pub(crate) mod layer_norm;
pub(crate) mod math;
pub(crate) mod max_pool;
pub(crate) mod round;
pub(crate) mod softmax;
pub(crate) mod tile;
pub(crate) mod transpose;
pub(crate) mod winograd;
