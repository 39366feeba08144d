//! A CUDA driver in software, so that programs built with CUDA can be tested on machines without a
//! GPU: what llvmpipe is to Vulkan. Copied as `libcuda.so.1` to a folder on `LD_LIBRARY_PATH`, it
//! is what a program finds that loads the driver dynamically.
//!
//! The same library is an NCCL between processes of one host, [`nccl`], for who loads it as
//! `libnccl.so.2`.
//!
//! Device memory is host memory, and PTX is interpreted: [`ptx`] reads its text, [`machine`] runs
//! it, 32 lanes in lockstep, and [`driver`] is the C interface. Mistakes give the codes that a GPU
//! gives, with a line on stderr that starts with `soft-cuda: `.
//!
//! # What it is not
//! * It says nothing of time. What is enqueued in a stream is done later, as a GPU does, but the
//!   program waits for what is enqueued in a default stream.
//! * Warps do not run at once; the blocks of a grid do, on a thread per core. A lane that spins
//!   until another lane of its warp, or a block that does not run yet, does something spins for
//!   ever.
//! * Of PTX it knows what NVRTC and LLVM make of ordinary kernels. It has no function calls, no
//!   TMA, no clusters of more than one block, no textures, no double precision matrices; no graphs.
//!   What it does not know it refuses with `CUDA_ERROR_INVALID_PTX`, when the module is loaded.
//! * Approximations (`ex2.approx`, `div.full`) are as exact as the processor's, and `.ftz` keeps
//!   denormals: results are at least as accurate as a GPU's, not the same to the bit.
//! * `%clock` and its like stand still at 0.
//!
//! Device memory and shared memory start as 0xFF bytes, which are NaNs: what reads what it never
//! wrote shall not find zeros by luck.
//!
//! # Environment
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `SOFT_CUDA_MEMORY` | bytes of each device | 16 GiB |
//! | `SOFT_CUDA_DEVICES` | how many devices | 1 |
//! | `CUDA_VISIBLE_DEVICES` | which of them the process sees, by their numbers | all |
//! | `SOFT_CUDA_ARCH` | compute capability, as in 90 | 90 |
//! | `SOFT_CUDA_DRIVER` | version of the driver, as in 13000 | 13000 |
//! | `SOFT_CUDA_NAME` | name of the devices | `soft-cuda` |
//! | `SOFT_CUDA_LOG` | if set, counts of calls and seconds per kernel are printed at exit | |
//! | `SOFT_CUDA_IDLE` | if set, kernels are not run, and memory is zeros that take none of the processor's until they are written: what a program asks of a driver, and how long the processor takes for it, at sizes that take too long to interpret | |
//! | `SOFT_CUDA_COUNTS` | file to which is written what kernels ask of a GPU: as with `SOFT_CUDA_IDLE`, but for some blocks of each kernel and grid, whose instructions and accesses to memory are counted | |
//! | `SOFT_CUDA_RACES` | if set, a kernel fails whose threads race, within a block or between blocks; as with compute-sanitizer's `racecheck`, but for global memory too | |
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
