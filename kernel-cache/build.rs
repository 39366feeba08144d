//! Builds the library that stands in for `libnvrtc.so`; each of its functions jumps to an address
//! in a table. A Rust crate cannot contain a library, but C can be compiled to one. Without a C
//! compiler, or for systems with other loader rules, there is none, and nothing is cached.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

include!("src/functions.rs");

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/functions.rs");
    println!("cargo::rustc-check-cfg=cfg(stand_in)");
    let of_target = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    // glibc takes a loaded library for a requested one if its soname matches.
    let known = of_target("OS") == "linux"
        && of_target("ENV") == "gnu"
        && !of_target("FEATURE").contains("crt-static")
        && of_target("POINTER_WIDTH") == "64";
    if !known {
        return;
    }
    let folder = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    match make(&folder) {
        Ok(()) => println!("cargo::rustc-cfg=stand_in"),
        Err(reason) => println!("cargo::warning=compiled kernels will not be kept: {reason}"),
    }
}

fn make(folder: &Path) -> Result<(), String> {
    let source = folder.join("stand_in.c");
    fs::write(&source, text()).map_err(|error| format!("{}: {error}", source.display()))?;
    let compiler = cc::Build::new()
        .opt_level(2)
        .debug(false)
        .cargo_metadata(false)
        .try_get_compiler()
        .map_err(|error| error.to_string())?;
    let mut command = compiler.to_command();
    command
        .args([
            "-shared",
            "-fPIC",
            "-nostdlib",
            "-s",
            "-Wl,-soname,libnvrtc.so",
        ])
        .arg(&source)
        .arg("-o")
        .arg(folder.join("libnvrtc.so"));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Arguments are pointers and numbers, at most six, which 64-bit CPUs pass in registers. Extra
/// arguments are harmless, and the result is in the register of a longer one.
fn text() -> String {
    let mut text = format!(
        "typedef long word;\n\
         word (*kernel_cache_functions[{}])(word, word, word, word, word, word);\n",
        FUNCTIONS.len()
    );
    for (index, name) in FUNCTIONS.iter().enumerate() {
        let _ = writeln!(
            text,
            "word {name}(word a, word b, word c, word d, word e, word f) \
             {{ return kernel_cache_functions[{index}](a, b, c, d, e, f); }}"
        );
    }
    text
}
