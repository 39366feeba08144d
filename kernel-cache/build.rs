//! Makes the library that stands in for `libnvrtc.so`, all of whose functions jump to where a table
//! says. Rust makes no libraries within a crate; C does. Without a C compiler, or for systems whose
//! loader has other rules, there is none, and nothing is kept.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

include!("src/functions.rs");

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/functions.rs");
    println!("cargo::rustc-check-cfg=cfg(stand_in)");
    let of_target = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    // glibc takes a library that is loaded already for one that is asked for, if it calls itself
    // so.
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

/// Arguments are pointers and numbers, at most six, all of which 64-bit processors take in
/// registers: more than a function has are harmless, and its result is in the register of a longer
/// one.
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
