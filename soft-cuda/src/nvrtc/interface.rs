//! The C interface of NVRTC (<https://docs.nvidia.com/cuda/nvrtc/>), as much of it as programs need that
//! compile one text to PTX. As the driver's, its handles are numbers that are looked up.
#![allow(unsafe_code)] // Exports C functions.
#![allow(non_snake_case)] // The names are NVRTC's.
#![allow(clippy::missing_safety_doc)] // For each, pointers are null or what NVRTC's manual says.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Mutex;

use super::compiler::{Code, Compiler, Failure};
use super::{headers, kept};
use crate::driver::handles::Handles;
use crate::driver::{Handle, Out};
use crate::report::{contained, count, lock, say};
use crate::settings::settings;

const INVALID_INPUT: Code = 3;
const INVALID_PROGRAM: Code = 4;
const INTERNAL: Code = 11;

struct Program {
    source: CString,
    name: Option<CString>,
    outcome: Mutex<Outcome>,
}

/// What came of a program, with the zeros at their ends.
#[derive(Default)]
struct Outcome {
    ptx: Vec<u8>,
    log: Vec<u8>,
}

static PROGRAMS: Handles<Program> = Handles::new(0x7_0000_0000);

/// Does what a call is for. A panic stays within it.
fn call(name: &'static str, work: impl FnOnce() -> Result<(), Code>) -> Code {
    count(name);
    contained(name, INTERNAL, work).map_or_else(|code| code, |()| 0)
}

fn put<T>(out: Out<'_, T>, value: T) -> Result<(), Code> {
    out.ok_or(INVALID_INPUT)?.write(value);
    Ok(())
}

fn compiler() -> Result<&'static Compiler, Code> {
    Compiler::get().map_err(|reason| {
        say(format_args!("NVRTC: {reason}"));
        INTERNAL
    })
}

/// A copy of a caller's text.
///
/// # Safety
/// `text` is null or ends with a zero.
unsafe fn copied(text: *const c_char) -> Option<CString> {
    // SAFETY: as above.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned())
}

/// The compiler's version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: Out<c_int>, minor: Out<c_int>) -> Code {
    call("nvrtcVersion", || {
        let version = compiler()?.version()?;
        put(major, version.0)?;
        put(minor, version.1)
    })
}

/// What a code means.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetErrorString(code: Code) -> *const c_char {
    match Compiler::get() {
        Ok(compiler) => compiler.words(code),
        Err(_) => c"NVRTC could not be loaded".as_ptr(),
    }
}

/// Makes a program of a text. Headers that are given as texts are not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    out: Out<Handle>,
    source: *const c_char,
    name: *const c_char,
    headers: c_int,
    _texts: *const *const c_char,
    _names: *const *const c_char,
) -> Code {
    call("nvrtcCreateProgram", || {
        if headers != 0 {
            say("nvrtcCreateProgram: headers are found in folders only");
            return Err(INVALID_INPUT);
        }
        // SAFETY: the caller's texts are null or end with zeros.
        let (source, name) = unsafe { (copied(source), copied(name)) };
        let source = source.ok_or(INVALID_INPUT)?;
        let place = out.ok_or(INVALID_INPUT)?;
        place.write(PROGRAMS.add(Program {
            source,
            name,
            outcome: Mutex::default(),
        }));
        Ok(())
    })
}

/// Compiles a program, or finds what was made of it before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(
    program: Handle,
    count: c_int,
    options: *const *const c_char,
) -> Code {
    call("nvrtcCompileProgram", || {
        let program = PROGRAMS.get(program).map_err(|_| INVALID_PROGRAM)?;
        let count = usize::try_from(count).map_err(|_| INVALID_INPUT)?;
        if count > 0 && options.is_null() {
            return Err(INVALID_INPUT);
        }
        // SAFETY: there are `count` options, whose texts are null or end with zeros.
        let options = (0..count).map(|i| unsafe { copied(*options.add(i)) });
        let options: Option<Vec<CString>> = options.collect();
        let outcome = program.compile(&options.ok_or(INVALID_INPUT)?);
        let mut place = lock(&program.outcome);
        match outcome {
            Ok(ptx) => {
                let log = vec![0];
                *place = Outcome { ptx, log };
                Ok(())
            }
            Err(Failure { code, log }) => {
                let ptx = Vec::new();
                *place = Outcome { ptx, log };
                Err(code)
            }
        }
    })
}

impl Program {
    fn compile(&self, options: &[CString]) -> Result<Vec<u8>, Failure> {
        let compiler = compiler()?;
        let compile = || compiler.compile(&self.source, self.name.as_deref(), options);
        match &settings().ptx {
            Some(folder) => kept::or_compiled(folder, &self.key(compiler, options)?, compile),
            None => compile(),
        }
    }

    /// What no other program has, nor this one with other options, headers or another compiler.
    fn key(&self, compiler: &Compiler, options: &[CString]) -> Result<blake3::Hash, Code> {
        let (major, minor) = compiler.version()?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{major}.{minor}\0").as_bytes());
        hasher.update(compiler.digest().as_bytes());
        let name = self.name.as_deref().unwrap_or_default();
        hasher.update(name.to_bytes_with_nul());
        hasher.update(&(options.len() as u64).to_le_bytes());
        for option in options {
            headers::hash(option, &mut hasher);
        }
        hasher.update(self.source.as_bytes_with_nul());
        Ok(hasher.finalize())
    }
}

/// Ends a program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: Option<&mut Handle>) -> Code {
    call("nvrtcDestroyProgram", || {
        let place = program.ok_or(INVALID_PROGRAM)?;
        PROGRAMS.remove(*place).map_err(|_| INVALID_PROGRAM)?;
        *place = 0;
        Ok(())
    })
}

/// Writes a text's length, with its zero.
fn put_size(program: Handle, of: fn(&Outcome) -> &[u8], out: Out<usize>) -> Result<(), Code> {
    let program = PROGRAMS.get(program).map_err(|_| INVALID_PROGRAM)?;
    put(out, of(&lock(&program.outcome)).len())
}

/// Writes a text.
///
/// # Safety
/// `out` is null or has place for as many bytes as [`put_size`] says.
unsafe fn put_text(
    program: Handle,
    of: fn(&Outcome) -> &[u8],
    out: *mut c_char,
) -> Result<(), Code> {
    let program = PROGRAMS.get(program).map_err(|_| INVALID_PROGRAM)?;
    let outcome = lock(&program.outcome);
    let text = of(&outcome);
    if out.is_null() {
        return Err(INVALID_INPUT);
    }
    // SAFETY: as above.
    unsafe { out.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
    Ok(())
}

/// Bytes of the PTX, with the zero at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetPTXSize(program: Handle, out: Out<usize>) -> Code {
    call("nvrtcGetPTXSize", || put_size(program, |o| &o.ptx, out))
}

/// The PTX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetPTX(program: Handle, out: *mut c_char) -> Code {
    // SAFETY: the caller has asked how long it is.
    let put = || unsafe { put_text(program, |o| &o.ptx, out) };
    call("nvrtcGetPTX", put)
}

/// Bytes of what the compiler said, with the zero at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLogSize(program: Handle, out: Out<usize>) -> Code {
    call("nvrtcGetProgramLogSize", || {
        put_size(program, |o| &o.log, out)
    })
}

/// What the compiler said; nothing of a program that it could compile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLog(program: Handle, out: *mut c_char) -> Code {
    // SAFETY: the caller has asked how long it is.
    let put = || unsafe { put_text(program, |o| &o.log, out) };
    call("nvrtcGetProgramLog", put)
}
