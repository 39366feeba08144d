//! NVRTC that remembers: each process of a test compiles the kernels that others have compiled before,
//! which takes it longer than to run them. The library of the driver, under the name `libnvrtc.so`, hands
//! programs to NVIDIA's (`compiler`) and keeps what it makes of them on disk (`kept`), for all machines with the
//! same compiler and headers (`headers`), wherever they lie. `interface` is what programs call. Nothing in it is
//! of the driver: on a machine with a GPU it does the same for programs that use that.

mod compiler;
mod headers;
mod interface;
mod kept;

pub use interface::*;
