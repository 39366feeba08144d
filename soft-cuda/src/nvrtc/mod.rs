//! NVRTC that remembers: each process of a test compiles the kernels that others have compiled before,
//! which takes it longer than to run them. The library of the driver, under the name `libnvrtc.so`, hands
//! programs to NVIDIA's (`compiler`) and keeps what it makes of them on disk (`kept`). `interface` is what
//! programs call.

mod compiler;
mod interface;
mod kept;

pub use interface::*;
