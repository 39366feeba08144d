//! The functions of NVRTC that look up programs in the cache. NVIDIA's library has every program
//! too, so it can answer all other calls. It compiles a cached program only if something other than
//! its PTX is requested.
#![allow(unsafe_code)] // Are called from C, and call it.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::nvrtc::{Code, Compile, Create, Destroy, Get, Named, Nvrtc, Program, checked};
use crate::{headers, kept};

const INVALID_INPUT: Code = 3;
const NOT_THERE: Code = 11;

/// The compiler of this process, and the folder of its cache.
pub(crate) struct Cache {
    nvrtc: Nvrtc,
    folder: PathBuf,
    programs: Mutex<HashMap<usize, State>>,
}

/// A program that is not fully known to the library.
enum State {
    /// Not compiled yet, and cacheable.
    Written { text: CString, name: CString },
    /// Compiled before, by this or another process, with these options.
    Kept {
        options: Vec<CString>,
        ptx: Arc<[u8]>,
    },
}

static CACHE: OnceLock<Cache> = OnceLock::new();

impl Cache {
    /// The cache of this process, from the first call on.
    pub fn set(nvrtc: Nvrtc, folder: PathBuf) -> &'static Self {
        CACHE.get_or_init(|| Self {
            nvrtc,
            folder,
            programs: Mutex::default(),
        })
    }

    fn programs(&self) -> MutexGuard<'_, HashMap<usize, State>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The function for the table: one of those below, or NVIDIA's.
    pub fn function(&self, name: &str) -> *const () {
        match name {
            "nvrtcCreateProgram" => create as Create as *const (),
            "nvrtcCompileProgram" => compile as Compile as *const (),
            "nvrtcAddNameExpression" => add_name as Named as *const (),
            "nvrtcDestroyProgram" => destroy as Destroy as *const (),
            "nvrtcGetPTXSize" => ptx_size as Get as *const (),
            "nvrtcGetPTX" => ptx as Get as *const (),
            "nvrtcGetProgramLogSize" => log_size as Get as *const (),
            "nvrtcGetProgramLog" => log as Get as *const (),
            _ => match (self.nvrtc.function(name), of_compiled(name)) {
                (None, _) => not_there as extern "C" fn() -> Code as *const (),
                (Some(_), Some(ours)) => ours as *const (),
                (Some(theirs), None) => theirs,
            },
        }
    }

    /// The cached result of a program, if found.
    fn kept(&self, program: Program) -> Option<(Vec<CString>, Arc<[u8]>)> {
        match self.programs().get(&(program as usize)) {
            Some(State::Kept { options, ptx }) => Some((options.clone(), ptx.clone())),
            _ => None,
        }
    }

    fn ptx(&self, program: Program) -> Option<Arc<[u8]>> {
        self.kept(program).map(|(_, ptx)| ptx)
    }

    /// Makes the library compile a cached program, for other requests.
    fn compile_kept(&self, program: Program) -> Result<(), Code> {
        if let Some((options, _)) = self.kept(program) {
            self.nvrtc.compile(program, &options)?;
            self.programs().remove(&(program as usize));
        }
        Ok(())
    }

    /// A key that differs for every program, set of options, headers and compiler. `None` if the
    /// inputs of the program are unknown.
    fn key(&self, text: &CStr, name: &CStr, options: &[CString]) -> Option<blake3::Hash> {
        let (major, minor) = self.nvrtc.version;
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{major}.{minor}\0").as_bytes());
        hasher.update(self.nvrtc.digest.as_bytes());
        hasher.update(name.to_bytes_with_nul());
        hasher.update(&(options.len() as u64).to_le_bytes());
        for option in options {
            if !headers::hash(option, &mut hasher) {
                return None;
            }
        }
        hasher.update(text.to_bytes_with_nul());
        Some(hasher.finalize())
    }
}

/// The cache is always set: setting it puts these functions into the table.
fn with(work: impl FnOnce(&'static Cache) -> Result<(), Code>) -> Code {
    let done = CACHE.get().ok_or(NOT_THERE).and_then(work);
    done.map_or_else(|code| code, |()| 0)
}

/// A copy of a caller's text.
///
/// # Safety
/// `text` is null or ends with a zero.
unsafe fn copied(text: *const c_char) -> Option<CString> {
    // SAFETY: as above.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned())
}

extern "C" fn not_there() -> Code {
    NOT_THERE
}

unsafe extern "C" fn create(
    out: *mut Program,
    text: *const c_char,
    name: *const c_char,
    headers: c_int,
    texts: *const *const c_char,
    names: *const *const c_char,
) -> Code {
    with(|cache| {
        // SAFETY: the arguments of this function.
        checked(unsafe { (cache.nvrtc.create)(out, text, name, headers, texts, names) })?;
        // SAFETY: the library has accepted the texts, and written a program.
        let (text, name, program) = unsafe { (copied(text), copied(name), *out) };
        if let (Some(text), 0) = (text, headers) {
            let name = name.unwrap_or_default();
            let written = State::Written { text, name };
            cache.programs().insert(program as usize, written);
        }
        Ok(())
    })
}

/// Names to look up later are only in the library.
unsafe extern "C" fn add_name(program: Program, name: *const c_char) -> Code {
    with(|cache| {
        cache.programs().remove(&(program as usize));
        // SAFETY: the arguments of this function.
        checked(unsafe { (cache.nvrtc.name)(program, name) })
    })
}

unsafe extern "C" fn compile(
    program: Program,
    count: c_int,
    options: *const *const c_char,
) -> Code {
    with(|cache| {
        // A program that the library knows is passed on to it.
        let state = cache.programs().remove(&(program as usize));
        let Some(State::Written { text, name }) = state else {
            // SAFETY: the arguments of this function.
            return checked(unsafe { (cache.nvrtc.compile)(program, count, options) });
        };
        let count = usize::try_from(count).map_err(|_| INVALID_INPUT)?;
        if count > 0 && options.is_null() {
            return Err(INVALID_INPUT);
        }
        // SAFETY: there are `count` options, whose texts are null or end with zeros.
        let options = (0..count).map(|i| unsafe { copied(*options.add(i)) });
        let options: Option<Vec<CString>> = options.collect();
        let options = options.ok_or(INVALID_INPUT)?;
        let Some(key) = cache.key(&text, &name, &options) else {
            return cache.nvrtc.compile(program, &options);
        };
        let is_compiled = Cell::new(false);
        let ptx = kept::or_compiled(&cache.folder, &key, || {
            is_compiled.set(true);
            cache.nvrtc.compile(program, &options)?;
            cache.nvrtc.ptx(program)
        })?;
        if !is_compiled.get() {
            let ptx = ptx.into();
            let kept = State::Kept { options, ptx };
            cache.programs().insert(program as usize, kept);
        }
        Ok(())
    })
}

unsafe extern "C" fn destroy(program: *mut Program) -> Code {
    with(|cache| {
        if !program.is_null() {
            // SAFETY: a pointer to a program.
            cache.programs().remove(&(unsafe { *program } as usize));
        }
        // SAFETY: the arguments of this function.
        checked(unsafe { (cache.nvrtc.destroy)(program) })
    })
}

/// Copies bytes to a caller's buffer. The caller has asked for the size before.
///
/// # Safety
/// `out` has room for `bytes`, or is null.
unsafe fn put(bytes: &[u8], out: *mut c_void) -> Result<(), Code> {
    if out.is_null() {
        return Err(INVALID_INPUT);
    }
    // SAFETY: as above; they do not overlap, because `bytes` is ours.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len()) };
    Ok(())
}

/// Writes the result of `of` for a program's cached PTX, or lets the library write its own.
///
/// # Safety
/// The program belongs to the library, and `out` has room for the result.
unsafe fn put_or(
    program: Program,
    out: *mut c_void,
    of: fn(&[u8]) -> Cow<'_, [u8]>,
    theirs: fn(&Nvrtc) -> Get,
) -> Code {
    with(|cache| match cache.ptx(program) {
        // SAFETY: as above.
        Some(ptx) => unsafe { put(&of(&ptx), out) },
        // SAFETY: as above.
        None => checked(unsafe { theirs(&cache.nvrtc)(program, out) }),
    })
}

macro_rules! of_kept {
    ($($function:ident: $of:expr,)*) => {
        $(unsafe extern "C" fn $function(program: Program, out: *mut c_void) -> Code {
            // SAFETY: the arguments of this function.
            unsafe { put_or(program, out, $of, |nvrtc| nvrtc.$function) }
        })*
    };
}

// A cached program has an empty log.
of_kept! {
    ptx_size: |ptx| ptx.len().to_ne_bytes().to_vec().into(),
    ptx: |ptx| ptx.into(),
    log_size: |_| 1usize.to_ne_bytes().to_vec().into(),
    log: |_| vec![0].into(),
}

macro_rules! of_compiled {
    ($($function:ident: $name:literal,)*) => {
        $(unsafe extern "C" fn $function(program: Program, out: *mut c_void) -> Code {
            with(|cache| {
                let function = cache.nvrtc.function($name).ok_or(NOT_THERE)?;
                cache.compile_kept(program)?;
                // SAFETY: the type is that of the function of this name in nvrtc.h.
                let function: Get = unsafe { std::mem::transmute(function) };
                // SAFETY: the arguments of this function.
                checked(unsafe { function(program, out) })
            })
        })*

        /// A function that needs something that is not cached.
        fn of_compiled(name: &str) -> Option<Get> {
            match name {
                $($name => Some($function),)*
                _ => None,
            }
        }
    };
}

of_compiled! {
    get_cubin: "nvrtcGetCUBIN",
    get_cubin_size: "nvrtcGetCUBINSize",
    get_ltoir: "nvrtcGetLTOIR",
    get_ltoir_size: "nvrtcGetLTOIRSize",
    get_nvvm: "nvrtcGetNVVM",
    get_nvvm_size: "nvrtcGetNVVMSize",
    get_optix_ir: "nvrtcGetOptiXIR",
    get_optix_ir_size: "nvrtcGetOptiXIRSize",
    get_tile_ir: "nvrtcGetTileIR",
    get_tile_ir_size: "nvrtcGetTileIRSize",
}
