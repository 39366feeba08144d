//! Counts what a process compiles if it loads `libnvrtc.so` by its name, as cudarc does. The
//! compiler is one that counts; all CUDA tests in software do the same with NVIDIA's own. The
//! system reads library paths when a process begins, so each scenario is a process of this program.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(unsafe_code)] // Calls C functions.
#![allow(clippy::undocumented_unsafe_blocks)] // All are those of nvrtc.c, or of NVRTC, with arguments of their types.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null;

use kernel_cache::{Error, keep};
use libloading::Library;
use tempfile::TempDir;

const SCENARIO: &str = "KERNEL_CACHE_SCENARIO";

/// A folder with a compiler, and the file in which it counts.
struct Place(TempDir);

impl Place {
    fn new(defined: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"])
            .arg(folder.path().join("libnvrtc.so.13"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvrtc.c");
        let status = cc.args(defined).arg(source).status();
        assert!(status.expect("a C compiler, called cc").success());
        Self(folder)
    }

    fn kept(&self) -> PathBuf {
        self.0.path().join("a/kept")
    }

    /// Runs a scenario in a process, and returns what it compiled.
    fn run(&self, scenario: &str) -> Vec<String> {
        let file = self.0.path().join("compiled");
        let _ = std::fs::remove_file(&file);
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "scenario", "--nocapture"])
            .env("LD_LIBRARY_PATH", self.0.path())
            .env("COMPILED", &file)
            .env("BURN_DIST_KERNELS", self.kept())
            .env(SCENARIO, scenario)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{scenario}: {said}");
        let compiled = std::fs::read_to_string(&file).unwrap_or_default();
        compiled.lines().map(str::to_owned).collect()
    }
}

/// The library, as seen by code that knows nothing of this crate.
struct Nvrtc(Library);

type Program = *mut c_void;

impl Nvrtc {
    fn load() -> Self {
        let open = |name: &&str| unsafe { Library::new(*name) }.ok();
        Self(
            ["libnvrtc.so", "libnvrtc.so.13"]
                .iter()
                .find_map(open)
                .unwrap(),
        )
    }

    fn call<T: Copy>(&self, name: &str) -> T {
        *unsafe { self.0.get::<T>(name.as_bytes()) }.unwrap()
    }

    fn create(&self, text: &str) -> Program {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        let text = CString::new(text).unwrap();
        let mut program = std::ptr::null_mut();
        let create: Create = self.call("nvrtcCreateProgram");
        let code = unsafe { create(&mut program, text.as_ptr(), null(), 0, null(), null()) };
        assert_eq!(code, 0);
        program
    }

    fn compile(&self, program: Program, options: &[&str]) -> c_int {
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        let options: Vec<CString> = options.iter().map(|o| CString::new(*o).unwrap()).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let compile: Compile = self.call("nvrtcCompileProgram");
        unsafe { compile(program, pointers.len() as c_int, pointers.as_ptr()) }
    }

    /// A result of a program, such as `PTX`, or an error code.
    fn get(&self, what: &str, program: Program) -> Result<String, c_int> {
        type Get = unsafe extern "C" fn(Program, *mut c_void) -> c_int;
        let checked = |code| if code == 0 { Ok(()) } else { Err(code) };
        let [size, get]: [Get; 2] =
            ["Size", ""].map(|end| self.call(&format!("nvrtcGet{what}{end}")));
        let mut bytes = 0usize;
        checked(unsafe { size(program, (&raw mut bytes).cast()) })?;
        let mut text = vec![1u8; bytes];
        checked(unsafe { get(program, text.as_mut_ptr().cast()) })?;
        let text = CStr::from_bytes_with_nul(&text).unwrap();
        Ok(text.to_str().unwrap().to_owned())
    }

    fn destroy(&self, mut program: Program) {
        let destroy: unsafe extern "C" fn(*mut Program) -> c_int = self.call("nvrtcDestroyProgram");
        assert_eq!(unsafe { destroy(&mut program) }, 0);
        assert!(program.is_null());
    }

    /// Compiles to PTX, as cudarc does.
    fn ptx(&self, text: &str, options: &[&str]) -> String {
        let program = self.create(text);
        assert_eq!(self.compile(program, options), 0);
        let ptx = self.get("PTX", program).unwrap();
        self.destroy(program);
        ptx
    }
}

/// Runs a scenario in a process started for it; does nothing in others.
#[test]
fn scenario() {
    let Ok(scenario) = std::env::var(SCENARIO) else {
        return;
    };
    match scenario.as_str() {
        "compile" => {
            keep().unwrap();
            keep().unwrap();
            let nvrtc = Nvrtc::load();
            for _ in 0..2 {
                assert_eq!(nvrtc.ptx("a", &["-lineinfo"]), "PTX of a -lineinfo");
                assert_eq!(nvrtc.ptx("a", &[]), "PTX of a");
                assert_eq!(nvrtc.ptx("b", &[]), "PTX of b");
            }
        }
        "another file" => {
            keep().unwrap();
            let nvrtc = Nvrtc::load();
            let program = nvrtc.create("b");
            assert_eq!(nvrtc.compile(program, &[]), 0);
            assert_eq!(nvrtc.get("ProgramLog", program).unwrap(), "");
            assert_eq!(nvrtc.get("CUBIN", program).unwrap(), "cubin");
            assert_eq!(nvrtc.get("PTX", program).unwrap(), "PTX of b");
            assert_eq!(nvrtc.get("ProgramLog", program).unwrap(), "compiled is b");
        }
        "wrong" => {
            keep().unwrap();
            let nvrtc = Nvrtc::load();
            for _ in 0..2 {
                let program = nvrtc.create("wrong");
                assert_eq!(nvrtc.compile(program, &["-lineinfo"]), 6);
                assert_eq!(
                    nvrtc.get("ProgramLog", program).unwrap(),
                    "compiled is wrong"
                );
                assert_eq!(nvrtc.get("PTX", program), Err(4));
            }
        }
        "unknown" => {
            keep().unwrap();
            let nvrtc = Nvrtc::load();
            for _ in 0..2 {
                assert_eq!(nvrtc.ptx("headers", &["-I."]), "PTX of headers -I.");
                let program = nvrtc.create("names");
                let add: unsafe extern "C" fn(Program, *const c_char) -> c_int =
                    nvrtc.call("nvrtcAddNameExpression");
                assert_eq!(unsafe { add(program, c"name".as_ptr()) }, 0);
                assert_eq!(nvrtc.compile(program, &[]), 0);
                assert_eq!(nvrtc.get("PTX", program).unwrap(), "PTX of names");
            }
        }
        "all functions" => {
            keep().unwrap();
            let nvrtc = Nvrtc::load();
            let (mut major, mut minor) = (0, 0);
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
                nvrtc.call("nvrtcVersion");
            assert_eq!(unsafe { version(&mut major, &mut minor) }, 0);
            assert_eq!((major, minor), (98, 7));
            let words: unsafe extern "C" fn(c_int) -> *const c_char =
                nvrtc.call("nvrtcGetErrorString");
            assert_eq!(unsafe { CStr::from_ptr(words(1)) }, c"wrong");
            // From a newer version than this compiler.
            let heap: unsafe extern "C" fn(*mut usize) -> c_int = nvrtc.call("nvrtcGetPCHHeapSize");
            assert_ne!(unsafe { heap(&mut 0) }, 0);
        }
        "late" => {
            let before = Nvrtc::load();
            let late = keep();
            assert!(matches!(late, Err(Error::Late)), "{late:?}");
            for nvrtc in [before, Nvrtc::load()] {
                assert_eq!(nvrtc.ptx("a", &[]), "PTX of a");
            }
        }
        "incomplete" => {
            let refused = keep().unwrap_err().to_string();
            assert!(refused.contains("libnvrtc.so.13"), "{refused}");
            assert!(refused.contains("nvrtcAddNameExpression"), "{refused}");
            for _ in 0..2 {
                assert_eq!(Nvrtc::load().ptx("a", &[]), "PTX of a");
            }
        }
        "shared" => {
            let refused = keep();
            assert!(matches!(refused, Err(Error::Folder { .. })), "{refused:?}");
            let said = refused.unwrap_err().to_string();
            assert!(
                said.contains("others can write to it (mode 0777)"),
                "{said}"
            );
            assert_eq!(Nvrtc::load().ptx("a", &[]), "PTX of a");
        }
        "none" => {
            let none = keep();
            assert!(matches!(none, Err(Error::NoCompiler)), "{none:?}");
        }
        other => panic!("there is no scenario {other:?}"),
    }
}

#[test]
fn programs_are_compiled_once_for_all_processes() {
    let place = Place::new(&[]);
    assert_eq!(place.run("compile"), ["a", "a", "b"]);
    assert_eq!(place.run("compile"), [""; 0]);
    // Cached by another compiler.
    let other = Place::new(&["-DOTHER", "-g"]);
    std::fs::create_dir(other.0.path().join("a")).unwrap();
    std::fs::rename(place.kept(), other.kept()).unwrap();
    assert_eq!(other.run("compile"), ["a", "a", "b"]);
    std::fs::remove_dir_all(other.kept()).unwrap();
    assert_eq!(other.run("compile"), ["a", "a", "b"]);
}

#[test]
fn what_is_no_ptx_is_compiled() {
    let place = Place::new(&[]);
    place.run("compile");
    assert_eq!(place.run("another file"), ["b"]);
}

#[test]
fn what_failed_is_compiled_again_and_says_why() {
    assert_eq!(Place::new(&[]).run("wrong"), ["wrong", "wrong"]);
}

#[test]
fn what_nobody_knows_the_parts_of_is_not_kept() {
    let place = Place::new(&[]);
    assert_eq!(
        place.run("unknown"),
        ["headers", "names", "headers", "names"]
    );
    assert!(!place.kept().exists());
}

#[test]
fn everything_else_is_done_by_the_library_itself() {
    assert!(Place::new(&[]).run("all functions").is_empty());
}

#[test]
fn who_has_compiled_before_goes_on_as_it_was() {
    // Under the name that is tried first, by which the system would find it again.
    let place = Place::new(&[]);
    let library = place.0.path().join("libnvrtc.so");
    std::fs::rename(place.0.path().join("libnvrtc.so.13"), library).unwrap();
    assert_eq!(place.run("late"), ["a", "a"]);
}

#[test]
fn a_library_that_lacks_a_function_is_left_as_it_is() {
    assert_eq!(Place::new(&["-DINCOMPLETE"]).run("incomplete"), ["a", "a"]);
}

#[test]
fn a_folder_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new(&[]);
    place.run("compile");
    let shared = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(place.kept(), shared).unwrap();
    assert_eq!(place.run("shared"), ["a"]);
}

#[test]
fn without_a_compiler_there_is_nothing_to_keep() {
    let place = Place::new(&[]);
    std::fs::remove_file(place.0.path().join("libnvrtc.so.13")).unwrap();
    place.run("none");
}
