//! NVIDIA's compiler of kernels, loaded when something is compiled.
#![allow(unsafe_code)] // Calls C functions.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr::null;
use std::sync::OnceLock;

use libloading::Library;

use crate::settings::settings;

/// `nvrtcResult`
pub(super) type Code = c_int;

/// What only NVRTC looks into.
type Program = *mut std::ffi::c_void;

type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> Code;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code;
type Size = unsafe extern "C" fn(Program, *mut usize) -> Code;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> Code;
type Destroy = unsafe extern "C" fn(*mut Program) -> Code;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code;
type ErrorString = unsafe extern "C" fn(Code) -> *const c_char;

/// The functions of the library that `SOFT_CUDA_NVRTC` names.
pub(super) struct Compiler {
    create: Create,
    compile: Compile,
    log_size: Size,
    log: Text,
    ptx_size: Size,
    ptx: Text,
    destroy: Destroy,
    version: Version,
    error_string: ErrorString,
    /// Of the library's file: that it is no other of the same version.
    digest: blake3::Hash,
}

/// What came of a program that was not compiled.
pub(super) struct Failure {
    pub code: Code,
    /// What the compiler says of it.
    pub log: Vec<u8>,
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        let log = Vec::new();
        Self { code, log }
    }
}

fn checked(code: Code) -> Result<(), Code> {
    match code {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Of all that a file holds.
pub(super) fn digest(path: &Path) -> std::io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(std::fs::File::open(path)?)?;
    Ok(hasher.finalize())
}

impl Compiler {
    /// The compiler of this process.
    ///
    /// # Errors
    /// Why it could not be loaded.
    pub fn get() -> Result<&'static Self, &'static str> {
        static COMPILER: OnceLock<Result<Compiler, String>> = OnceLock::new();
        let compiler = COMPILER.get_or_init(|| {
            let path = settings().nvrtc.as_deref();
            Self::load(path.ok_or("SOFT_CUDA_NVRTC does not say where NVIDIA's library is")?)
        });
        compiler.as_ref().map_err(String::as_str)
    }

    fn load(path: &Path) -> Result<Self, String> {
        let of = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let digest = digest(path).map_err(|error| of(&error))?;
        // SAFETY: NVRTC's library runs nothing when it is loaded that has conditions.
        let library = unsafe { Library::new(path) }.map_err(|error| of(&error))?;
        // Never unloaded: the process may be in one of its functions when it ends.
        let library: &'static Library = Box::leak(Box::new(library));
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the types are those of the functions of these names in nvrtc.h.
                *unsafe { library.get($name) }.map_err(|error| of(&error))?
            };
        }
        Ok(Self {
            create: function!("nvrtcCreateProgram"),
            compile: function!("nvrtcCompileProgram"),
            log_size: function!("nvrtcGetProgramLogSize"),
            log: function!("nvrtcGetProgramLog"),
            ptx_size: function!("nvrtcGetPTXSize"),
            ptx: function!("nvrtcGetPTX"),
            destroy: function!("nvrtcDestroyProgram"),
            version: function!("nvrtcVersion"),
            error_string: function!("nvrtcGetErrorString"),
            digest,
        })
    }

    /// What no other compiler has, and the same one has in every folder.
    pub fn digest(&self) -> &blake3::Hash {
        &self.digest
    }

    pub fn version(&self) -> Result<(c_int, c_int), Code> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are places for an int.
        checked(unsafe { (self.version)(&mut major, &mut minor) })?;
        Ok((major, minor))
    }

    /// What a code means, as a text that stays.
    pub fn words(&self, code: Code) -> *const c_char {
        // SAFETY: it takes any number.
        unsafe { (self.error_string)(code) }
    }

    /// The PTX of a program, with the zero at its end.
    pub fn compile(
        &self,
        source: &CStr,
        name: Option<&CStr>,
        options: &[CString],
    ) -> Result<Vec<u8>, Failure> {
        let mut program: Program = std::ptr::null_mut();
        let name = name.map_or(null(), CStr::as_ptr);
        // SAFETY: the texts end with zeros and outlive the call; there are no headers.
        checked(unsafe { (self.create)(&mut program, source.as_ptr(), name, 0, null(), null()) })?;
        let outcome = self.compile_created(program, options);
        // SAFETY: the program was created above and is not used any more.
        unsafe { (self.destroy)(&mut program) };
        outcome
    }

    fn compile_created(&self, program: Program, options: &[CString]) -> Result<Vec<u8>, Failure> {
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(options.len()).unwrap_or(c_int::MAX);
        // SAFETY: the program exists, and there are as many options as said, which outlive the call.
        let code = unsafe { (self.compile)(program, count, options.as_ptr()) };
        if code != 0 {
            let log = Self::text(program, self.log_size, self.log).unwrap_or_default();
            return Err(Failure { code, log });
        }
        Ok(Self::text(program, self.ptx_size, self.ptx)?)
    }

    fn text(program: Program, size: Size, get: Text) -> Result<Vec<u8>, Code> {
        let mut bytes = 0;
        // SAFETY: the program exists, and it is a place for a size.
        checked(unsafe { size(program, &mut bytes) })?;
        let mut text = vec![0u8; bytes];
        // SAFETY: there are as many bytes as it said.
        checked(unsafe { get(program, text.as_mut_ptr().cast()) })?;
        Ok(text)
    }
}
