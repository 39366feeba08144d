//! A CUDA driver in software, so that programs built with CUDA can be tested on machines without a
//! GPU, like llvmpipe for Vulkan. Copy it as `libcuda.so.1` to a folder on `LD_LIBRARY_PATH`:
//! programs that load the driver dynamically find it.
//!
//! The same library is an NCCL between processes of one host, [`nccl`], if it is loaded as
//! `libnccl.so.2`.
//!
//! Device memory is host memory, and PTX is interpreted: [`ptx`] reads its text, [`machine`] runs
//! it, 32 lanes in lockstep, and [`driver`] is the C interface. Mistakes give the codes of a GPU,
//! with a line on stderr that starts with `soft-cuda: `.
//!
//! # Limits
//! - Timings mean nothing. Work in a stream is done later, as on a GPU, but the program waits for
//!   work in a default stream.
//! - Warps do not run at once; the blocks of a grid do, on a thread per core. A lane spins for ever
//!   if it waits for another lane of its warp, or for a block that does not run yet.
//! - It knows the PTX that NVRTC and LLVM generate for ordinary kernels. It has no function calls,
//!   no TMA, no clusters of more than one block, no textures, no double precision matrices; no
//!   graphs. It refuses other PTX with `CUDA_ERROR_INVALID_PTX`, when the module is loaded.
//! - Approximations (`ex2.approx`, `div.full`) are as exact as the CPU's, and `.ftz` keeps
//!   denormals: results are at least as accurate as a GPU's, but not the same to the bit.
//! - `%clock` and similar registers stand still at 0.
//!
//! Device memory and shared memory start as 0xFF bytes, which are NaNs: code that reads unwritten
//! memory does not find zeros by luck.
//!
//! # Environment
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `SOFT_CUDA_MEMORY` | bytes of each device | 16 GiB |
//! | `SOFT_CUDA_DEVICES` | number of devices | 1 |
//! | `CUDA_VISIBLE_DEVICES` | numbers of the devices that the process sees | all |
//! | `SOFT_CUDA_ARCH` | compute capability, as in 90 | 90 |
//! | `SOFT_CUDA_DRIVER` | version of the driver, as in 13000 | 13000 |
//! | `SOFT_CUDA_NAME` | name of the devices | `soft-cuda` |
//! | `SOFT_CUDA_LOG` | if set, counts of calls and seconds per kernel are printed at exit | |
//! | `SOFT_CUDA_IDLE` | if set, kernels are not run, and device memory is zeros that take no host memory until written. Shows the calls of a program and their CPU time at sizes that take too long to interpret | |
//! | `SOFT_CUDA_COUNTS` | file for the work of kernels. As `SOFT_CUDA_IDLE`, but some blocks of each kernel and grid are run, and their instructions and memory accesses counted | |
//! | `SOFT_CUDA_RACES` | if set, a kernel fails if its threads race, within a block or between blocks; like compute-sanitizer's `racecheck`, and for global memory too | |
//! | `SOFT_CUDA_DUMP` | folder to which the text of each loaded module is written | |
//! | `SOFT_CUDA_NCCL_SECONDS` | how long NCCL waits for all ranks to come | 120 |

#![deny(unsafe_code)]

pub mod driver;
pub mod machine;
pub mod nccl;
pub mod ptx;
mod report;
mod settings;
mod tally;
