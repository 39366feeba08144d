//! The program `trainer`. All code is in the library.

use std::process::ExitCode;

/// musl's allocator returns the memory of every tensor to the system and gets it back page by page.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    trainer::cli::main()
}
