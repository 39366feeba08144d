//! NVIDIA's library, which compiles.
#![allow(unsafe_code)] // Calls C functions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::null;

use libloading::Library;

use crate::Error;

/// The `nvrtcResult`.
pub(crate) type Code = c_int;

/// The `nvrtcProgram`, which only the library reads.
pub(crate) type Program = *mut c_void;

pub(crate) type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> Code;
pub(crate) type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code;
pub(crate) type Named = unsafe extern "C" fn(Program, *const c_char) -> Code;
pub(crate) type Destroy = unsafe extern "C" fn(*mut Program) -> Code;
/// Type of the functions that write a program's size or text.
pub(crate) type Get = unsafe extern "C" fn(Program, *mut c_void) -> Code;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code;

/// Names of the library, in cudarc's order, and then one that is newer than cudarc knows.
const NAMES: [&str; 4] = [
    "libnvrtc.so",
    "libnvrtc.so.12",
    "libnvrtc.so.11",
    "libnvrtc.so.13",
];

pub(crate) struct Nvrtc {
    library: &'static Library,
    pub create: Create,
    pub compile: Compile,
    pub name: Named,
    pub destroy: Destroy,
    pub ptx_size: Get,
    pub ptx: Get,
    pub log_size: Get,
    pub log: Get,
    /// Version of the compiler; several library files may have the same one.
    pub version: (c_int, c_int),
    pub digest: blake3::Hash,
}

/// Digest of a file's content.
pub(crate) fn digest(path: &Path) -> std::io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(std::fs::File::open(path)?)?;
    Ok(hasher.finalize())
}

pub(crate) fn checked(code: Code) -> Result<(), Code> {
    match code {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Path of the library. It is not loaded any more when this returns, unless it was before.
///
/// # Errors
/// Fails if the library is not found.
pub(crate) fn find() -> Result<PathBuf, Error> {
    // SAFETY: the library runs nothing with preconditions when it is loaded or unloaded.
    let open = |name: &&str| unsafe { Library::new(*name) }.ok();
    let library = NAMES.iter().find_map(open).ok_or(Error::NoCompiler)?;
    // SAFETY: takes a function's address and calls nothing.
    let function = unsafe { library.get::<Version>(b"nvrtcVersion") };
    let function = function.map_err(|error| of("libnvrtc.so", &error))?;
    // SAFETY: all its bytes may be zero.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `found` has room for the result.
    let known = unsafe { libc::dladdr((*function as Version as *const ()).cast(), &mut found) };
    if known == 0 || found.dli_fname.is_null() {
        return Err(of("libnvrtc.so", &"the system does not report its path"));
    }
    // SAFETY: a text that ends with a zero, and stays while the library is loaded.
    let path = unsafe { CStr::from_ptr(found.dli_fname) };
    let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
    // The libraries that it loads lie beside the file, not beside a link.
    path.canonicalize().map_err(|error| of(path, &error))
}

/// The error of a library.
pub(crate) fn of(what: &(impl AsRef<Path> + ?Sized), reason: &dyn std::fmt::Display) -> Error {
    Error::Library {
        what: what.as_ref().display().to_string(),
        reason: reason.to_string(),
    }
}

impl Nvrtc {
    /// Loads the library for the rest of the process.
    ///
    /// # Errors
    /// Fails if it cannot be loaded or lacks a function.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let digest = digest(path).map_err(|error| of(path, &error))?;
        // SAFETY: see `find`.
        let library = unsafe { Library::new(path) }.map_err(|error| of(path, &error))?;
        // Never unloaded: the process may be in one of its functions when it ends.
        let library: &'static Library = Box::leak(Box::new(library));
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the types are those of the functions with these names in nvrtc.h.
                *unsafe { library.get(concat!($name, "\0")) }
                    .map_err(|_| of(path, &concat!("it has no function ", $name)))?
            };
        }
        let version: Version = function!("nvrtcVersion");
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are pointers to an int.
        checked(unsafe { version(&mut major, &mut minor) })
            .map_err(|code| of(path, &format_args!("nvrtcVersion: {code}")))?;
        Ok(Self {
            library,
            create: function!("nvrtcCreateProgram"),
            compile: function!("nvrtcCompileProgram"),
            name: function!("nvrtcAddNameExpression"),
            destroy: function!("nvrtcDestroyProgram"),
            ptx_size: function!("nvrtcGetPTXSize"),
            ptx: function!("nvrtcGetPTX"),
            log_size: function!("nvrtcGetProgramLogSize"),
            log: function!("nvrtcGetProgramLog"),
            version: (major, minor),
            digest,
        })
    }

    /// Any function, if this version has it.
    pub fn function(&self, name: &str) -> Option<*const ()> {
        // SAFETY: takes its address and calls nothing.
        let function = unsafe { self.library.get::<unsafe extern "C" fn()>(name.as_bytes()) };
        function.ok().map(|function| *function as *const ())
    }

    /// Compiles one of the library's programs.
    pub fn compile(&self, program: Program, options: &[CString]) -> Result<(), Code> {
        let mut pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
        pointers.push(null());
        // SAFETY: there are `count` options, which outlive the call.
        checked(unsafe { (self.compile)(program, count, pointers.as_ptr()) })
    }

    /// The PTX of a program that the library has compiled, with the zero at its end.
    pub fn ptx(&self, program: Program) -> Result<Vec<u8>, Code> {
        let mut bytes = 0usize;
        // SAFETY: a pointer to a size.
        checked(unsafe { (self.ptx_size)(program, (&raw mut bytes).cast()) })?;
        let mut text = vec![0u8; bytes];
        // SAFETY: the buffer has the size that the library returned.
        checked(unsafe { (self.ptx)(program, text.as_mut_ptr().cast()) })?;
        Ok(text)
    }
}
