//! The program `trainer`; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    trainer::cli::main()
}
