//! A CUDA driver in software, for tests of programs with CUDA on machines without a GPU, as llvmpipe
//! is for Vulkan. Copied as `libcuda.so.1` to a folder on `LD_LIBRARY_PATH`, it is found by programs
//! that load the driver dynamically.
//!
//! The same library is an NCCL between processes of one host, [`nccl`], for programs that load it
//! as `libnccl.so.2`.
//!
//! Device memory is host memory, and PTX is interpreted: [`ptx`] parses its text, [`machine`] runs
//! it, 32 lanes in lockstep, and [`driver`] is the C interface. Mistakes give the codes of a GPU,
//! with a line on stderr that starts with `soft-cuda: `.
//!
//! # Limits
//! * It says nothing about speed. Work in a stream is done later, as on a GPU, but the program
//!   waits for work in a default stream.
//! * Warps do not run in parallel; the blocks of a grid do, on a thread per core. A lane that spins
//!   for an action of another lane of its warp, or of a block that does not run yet, spins for
//!   ever.
//! * It knows the PTX that NVRTC and LLVM generate for ordinary kernels. It has no function calls,
//!   no TMA, no clusters of more than one block, no textures, no double precision matrices; no
//!   graphs. It refuses unknown instructions with `CUDA_ERROR_INVALID_PTX` when the module is
//!   loaded.
//! * Approximations (`ex2.approx`, `div.full`) are as exact as the CPU's, and `.ftz` keeps
//!   denormals: results are at least as accurate as a GPU's, but not bitwise equal.
//! * `%clock` and similar registers are always 0.
//!
//! Device memory and shared memory start as 0xFF bytes, which are NaNs, so that reads of unwritten
//! memory do not find zeros by luck.
//!
//! # Environment
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `SOFT_CUDA_MEMORY` | bytes of each device | 16 GiB |
//! | `SOFT_CUDA_DEVICES` | number of devices | 1 |
//! | `CUDA_VISIBLE_DEVICES` | devices that the process sees, by their numbers | all |
//! | `SOFT_CUDA_ARCH` | compute capability, as in 90 | 90 |
//! | `SOFT_CUDA_DRIVER` | version of the driver, as in 13000 | 13000 |
//! | `SOFT_CUDA_NAME` | name of the devices | `soft-cuda` |
//! | `SOFT_CUDA_LOG` | if set, counts of calls and seconds per kernel are printed at exit | |
//! | `SOFT_CUDA_IDLE` | if set, kernels are not run, and memory is zeros that take no host memory until they are written; shows a program's requests to the driver, and the host's time for them, at sizes that take too long to interpret | |
//! | `SOFT_CUDA_COUNTS` | output file for counts of kernels; like `SOFT_CUDA_IDLE`, but some blocks of each kernel and grid are run, and their instructions and memory accesses counted | |
//! | `SOFT_CUDA_RACES` | if set, a kernel fails if its threads race, within a block or between blocks; like compute-sanitizer's `racecheck`, but for global memory too | |
//! | `SOFT_CUDA_DUMP` | folder for the text of each loaded module | |
//! | `SOFT_CUDA_NCCL_SECONDS` | time that NCCL waits for all ranks, in seconds | 120 |

#![deny(unsafe_code)]

pub mod driver;
pub mod machine;
pub mod nccl;
pub mod ptx;
mod report;
mod settings;
mod tally;
