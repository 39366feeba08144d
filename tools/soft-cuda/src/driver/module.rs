//! "Module Management".
#![allow(unsafe_code)] // Exports C functions.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use super::call::{Code, Out, call, put};
use super::context::current;
use super::handles::{Handle, Handles};
use super::table::{self, Owner};
use super::{Error, pending};
use crate::machine::Kernel;
use crate::ptx;
use crate::report::say;
use crate::settings::settings;

/// A kernel that can be launched.
pub(super) struct Function {
    pub kernel: Kernel,
    /// Addresses of the module's variables.
    pub globals: Arc<Globals>,
    /// Bytes of dynamic shared memory that it may have; 0 if not set.
    pub allowed_shared: AtomicI32,
}

/// The variables of a module, which are freed with it.
pub(super) struct Globals {
    pub addresses: Vec<u64>,
    sizes: Vec<usize>,
    names: Vec<String>,
}

struct Module {
    device: usize,
    functions: BTreeMap<String, Handle>,
    globals: Arc<Globals>,
}

static MODULES: Handles<Module> = Handles::new(0x4_0000_0000);
static FUNCTIONS: Handles<Function> = Handles::new(0x5_0000_0000);

/// Returns the kernel of a handle.
pub(super) fn function(handle: Handle) -> Result<Arc<Function>, Error> {
    FUNCTIONS.get(handle)
}

impl Drop for Globals {
    fn drop(&mut self) {
        let mut table = table::write();
        for &address in &self.addresses {
            // They exist, because only this frees them.
            let _ = table.remove(address, Owner::Module);
        }
    }
}

impl Globals {
    fn new(device: usize, variables: Vec<ptx::Variable>) -> Result<Self, Error> {
        let mut globals = Self {
            addresses: Vec::new(),
            sizes: variables.iter().map(|variable| variable.size).collect(),
            names: Vec::new(),
        };
        for variable in variables {
            if variable.size as u64 > settings().memory {
                return Err(Error::OutOfMemory);
            }
            let (content, bytes) = (variable.bytes(), variable.size.max(1));
            let address = table::write().add(device, Owner::Module, bytes, &content)?;
            globals.addresses.push(address);
            globals.names.push(variable.name);
        }
        Ok(globals)
    }
}

/// Formats of binaries, which are for hardware.
const BINARIES: [&[u8]; 2] = [b"\x7fELF", b"\x50\xed\x55\xba"];

fn load(image: &[u8]) -> Result<Handle, Error> {
    let device = current()?;
    if BINARIES.iter().any(|magic| image.starts_with(magic)) {
        say("a module is a binary, and not PTX");
        return Err(Error::NoBinaryForGpu);
    }
    let text = String::from_utf8_lossy(image);
    dump(&text);
    let invalid = |error| {
        say(error);
        Error::InvalidPtx
    };
    let module = ptx::Module::parse(&text).map_err(invalid)?;
    suits(&module.target)?;
    let kernels = module.functions.into_iter().map(Kernel::new);
    let kernels: Vec<Kernel> = kernels.collect::<Result<_, _>>().map_err(invalid)?;
    let globals = Arc::new(Globals::new(device, module.globals)?);
    let add = |kernel: Kernel| {
        let name = kernel.name.clone();
        let function = FUNCTIONS.add(Function {
            kernel,
            globals: globals.clone(),
            allowed_shared: AtomicI32::new(0),
        });
        (name, function)
    };
    Ok(MODULES.add(Module {
        device,
        functions: kernels.into_iter().map(add).collect(),
        globals: globals.clone(),
    }))
}

/// Refuses PTX for a newer architecture.
fn suits(target: &str) -> Result<(), Error> {
    let number = target.trim_start_matches(|c: char| !c.is_ascii_digit());
    let number = number.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    match number.parse::<u32>() {
        Ok(number) if number <= settings().arch => Ok(()),
        Ok(_) => {
            say(format_args!("a module is for {target}"));
            Err(Error::NoBinaryForGpu)
        }
        Err(_) => {
            say(format_args!("a module is for `{target}`, which is nothing"));
            Err(Error::InvalidPtx)
        }
    }
}

fn dump(text: &str) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let Some(folder) = &settings().dump else {
        return;
    };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("{}-{number}.ptx", std::process::id()));
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
    if let Err(error) = written {
        say(format_args!("{}: {error}", path.display()));
    }
}

/// # Safety
///
/// It is null or a C string.
unsafe fn text<'t>(pointer: *const c_char) -> Result<&'t CStr, Error> {
    if pointer.is_null() {
        return Err(Error::InvalidValue);
    }
    // SAFETY: it is not null.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// Loads the text of a module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(out: Out<Handle>, image: *const c_char) -> Code {
    call("cuModuleLoadData", || {
        // SAFETY: PTX is a C string; only the start of a binary is read, which has no zeros.
        put(out, load(unsafe { text(image) }?.to_bytes())?)
    })
}

/// Does the same as [`cuModuleLoadData`]; ignores the compiler's options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    out: Out<Handle>,
    image: *const c_char,
    _options: c_uint,
    _names: *const c_void,
    _values: *const c_void,
) -> Code {
    // SAFETY: guaranteed by the caller.
    unsafe { cuModuleLoadData(out, image) }
}

/// Loads a module from a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoad(out: Out<Handle>, path: *const c_char) -> Code {
    call("cuModuleLoad", || {
        // SAFETY: guaranteed by this function's caller.
        let path = unsafe { text(path) }?.to_str();
        let path = path.map_err(|_| Error::InvalidValue)?;
        let image = std::fs::read(path).map_err(|_| Error::FileNotFound)?;
        put(out, load(&image)?)
    })
}

/// Unloads a module and its kernels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: Handle) -> Code {
    call("cuModuleUnload", || {
        let module = MODULES.remove(module)?;
        // Its variables are freed with it.
        pending::wait_for_device(module.device);
        for &function in module.functions.values() {
            FUNCTIONS.remove(function)?;
        }
        Ok(())
    })
}

/// Returns a kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    out: Out<Handle>,
    module: Handle,
    name: *const c_char,
) -> Code {
    call("cuModuleGetFunction", || {
        let module = MODULES.get(module)?;
        // SAFETY: guaranteed by this function's caller.
        let name = unsafe { text(name) }?.to_string_lossy();
        let function = module.functions.get(name.as_ref());
        put(out, *function.ok_or(Error::NotFound)?)
    })
}

/// Returns the address and the size of a variable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetGlobal_v2(
    address: Out<u64>,
    bytes: Out<usize>,
    module: Handle,
    name: *const c_char,
) -> Code {
    call("cuModuleGetGlobal_v2", || {
        let module = MODULES.get(module)?;
        // SAFETY: guaranteed by this function's caller.
        let name = unsafe { text(name) }?.to_string_lossy();
        let globals = &module.globals;
        let found = globals.names.iter().position(|n| *n == name);
        let found = found.ok_or(Error::NotFound)?;
        // A caller that only needs one of them passes null for the other.
        address.map(|out| out.write(globals.addresses[found]));
        bytes.map(|out| out.write(globals.sizes[found]));
        Ok(())
    })
}
