//! The vector code, generic over [`crate::simd::Simd`]. It works on addresses that the safe
//! functions outside of this module have checked, and is only called through [`crate::table`].

pub(crate) mod accumulate;
pub(crate) mod tile;
pub(crate) mod transpose;
pub(crate) mod winograd;
