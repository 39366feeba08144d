//! The program `trainer`; everything is in the library.

use std::process::ExitCode;

/// musl's own takes the memory of every tensor from the system anew, page by page.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    trainer::cli::main()
}
