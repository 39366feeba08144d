//! The C functions, as a program calls them. Each test has a device of its own.
#![allow(unsafe_code)] // Calls C functions.

use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null;

use super::*;

const PTX: &str = r"
.version 8.0
.target sm_90
.address_size 64
.global .b32 scale[1] = {3};
.visible .entry triple(.param .u64 data, .param .u32 n)
{
    .reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %d<9>;
    ld.param.u64 %d1, [data]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra $END;
    mad.wide.u32 %d2, %r5, 4, %d1;
    ld.global.u32 %r6, [%d2]; ld.global.u32 %r7, [scale];
    mul.lo.u32 %r6, %r6, %r7; st.global.u32 [%d2], %r6;
$END:
    ret;
}";

/// What a call gives, or its code.
fn get<T>(call: impl FnOnce(Out<T>) -> Code) -> Result<T, Code> {
    let mut out = MaybeUninit::uninit();
    match call(Some(&mut out)) {
        // SAFETY: a call without an error has written its result.
        0 => Ok(unsafe { out.assume_init() }),
        code => Err(code),
    }
}

/// Makes this thread work with a device.
fn start(device: c_int) {
    // SAFETY: pointers are of this function.
    unsafe {
        assert_eq!(cuInit(0), 0);
        let context = get(|out| cuDevicePrimaryCtxRetain(out, device)).unwrap();
        assert_eq!(cuCtxSetCurrent(context), 0);
    }
}

fn allocate(bytes: usize) -> Result<u64, Code> {
    // SAFETY: the pointer is of this function.
    get(|out| unsafe { cuMemAlloc_v2(out, bytes) })
}

fn upload(to: u64, words: &[u32]) -> Code {
    // SAFETY: there are so many bytes.
    unsafe { cuMemcpyHtoD_v2(to, words.as_ptr().cast(), size_of_val(words)) }
}

fn download(from: u64, words: &mut [u32]) -> Code {
    // SAFETY: there is room for so many bytes.
    unsafe { cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), from, size_of_val(words)) }
}

fn load(text: &str) -> Result<Handle, Code> {
    let text = CString::new(text).unwrap();
    // SAFETY: it is a text of C.
    get(|out| unsafe { cuModuleLoadData(out, text.as_ptr()) })
}

fn function(module: Handle, name: &CStr) -> Result<Handle, Code> {
    // SAFETY: it is a text of C.
    get(|out| unsafe { cuModuleGetFunction(out, module, name.as_ptr()) })
}

fn triple(function: Handle, blocks: u32, threads: u32, data: u64, n: u32, stream: Handle) -> Code {
    let arguments = [(&raw const data).cast::<u8>(), (&raw const n).cast::<u8>()];
    let (f, list) = (function, arguments.as_ptr());
    // SAFETY: the arguments are those of the kernel.
    unsafe { cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, stream, list, null()) }
}

#[test]
fn a_program_from_start_to_end() {
    start(0);
    let module = load(PTX).unwrap();
    let kernel = function(module, c"triple").unwrap();
    let data = allocate(400).unwrap();
    assert_eq!(upload(data, &(0..100).collect::<Vec<_>>()), 0);
    // SAFETY: pointers are of this function.
    let stream = get(|out| unsafe { cuStreamCreate(out, 0) }).unwrap();
    assert_eq!(triple(kernel, 4, 32, data, 100, stream), 0);
    let mut out = [0; 100];
    assert_eq!(download(data, &mut out), 0);
    assert!(out.iter().enumerate().all(|(i, &n)| n == 3 * i as u32));
    // SAFETY: pointers are of this function, and addresses of the device.
    unsafe {
        let name = c"scale".as_ptr();
        let mut bytes = MaybeUninit::uninit();
        let scale = get(|out| cuModuleGetGlobal_v2(out, Some(&mut bytes), module, name)).unwrap();
        assert_eq!(bytes.assume_init(), 4);
        assert_eq!(cuMemFree_v2(scale), 1);
        assert_eq!(upload(scale, &[5]), 0);
        assert_eq!(triple(kernel, 1, 32, data, 2, 0), 0);
        assert_eq!(download(data, &mut out), 0);
        assert_eq!(out[1], 15);
        assert_eq!(function(module, c"other"), Err(500));
        assert_eq!(cuModuleUnload(module), 0);
        assert_eq!(triple(kernel, 1, 32, data, 2, stream), 400);
        assert_eq!(cuStreamDestroy_v2(stream), 0);
        assert_eq!(cuStreamSynchronize(stream), 400);
        assert_eq!(cuMemFree_v2(data), 0);
        assert_eq!(cuMemFree_v2(data), 1);
    }
}

#[test]
fn memory_has_an_end() {
    start(1);
    let half = 32 << 20;
    let first = allocate(half).unwrap();
    let second = allocate(half).unwrap();
    assert_eq!(allocate(1), Err(2));
    let mut free = MaybeUninit::new(1);
    // SAFETY: pointers are of this function.
    unsafe {
        let total = get(|out| cuMemGetInfo_v2(Some(&mut free), out)).unwrap();
        assert_eq!((free.assume_init(), total), (0, 2 * half));
        assert_eq!(cuMemFree_v2(first), 0);
        assert_eq!(cuMemFree_v2(second), 0);
    }
    assert_eq!(allocate(0), Err(1));
    let third = allocate(2 * half).unwrap();
    assert!(third.is_multiple_of(512));
    // SAFETY: it was allocated.
    assert_eq!(unsafe { cuMemFree_v2(third) }, 0);
}

#[test]
fn copies_stay_within_an_allocation() {
    start(2);
    let data = allocate(16).unwrap();
    let mut out = [0; 4];
    assert_eq!(download(data, &mut out), 0);
    assert_eq!(out, [u32::MAX; 4], "fresh memory is no zero");
    assert_eq!(upload(data + 4, &[1, 2, 3, 4]), 1);
    assert_eq!(download(data - 4, &mut out), 1);
    assert_eq!(upload(8, &[1]), 1);
    // SAFETY: the rows are there on both sides.
    unsafe {
        assert_eq!(cuMemsetD8_v2(data, 0, 17), 1);
        assert_eq!(cuMemsetD8_v2(data, 0, 16), 0);
        let from = [1u32, 2, 9, 3, 4, 9];
        let plane = |kind, host: usize, device, pitch| Plane {
            x: 0,
            y: 0,
            kind,
            host,
            device,
            array: 0,
            pitch,
        };
        let mut copied = Copy2D {
            from: plane(1, from.as_ptr().expose_provenance(), 0, 12),
            to: plane(2, 0, data, 8),
            width: 8,
            height: 2,
        };
        assert_eq!(cuMemcpy2DAsync_v2(Some(&copied), 0), 0);
        assert_eq!(download(data, &mut out), 0);
        assert_eq!(out, [1, 2, 3, 4]);
        copied.to.y = 1;
        assert_eq!(cuMemcpy2DAsync_v2(Some(&copied), 0), 1);
    }
}

#[test]
fn after_an_illegal_address_a_device_is_of_no_use() {
    start(3);
    let kernel = function(load(PTX).unwrap(), c"triple").unwrap();
    let data = allocate(64).unwrap();
    // SAFETY: pointers are of this function.
    let stream = get(|out| unsafe { cuStreamCreate(out, 0) }).unwrap();
    assert_eq!(triple(kernel, 1, 32, data, 17, stream), 700);
    assert_eq!(triple(kernel, 1, 32, data, 1, stream), 700);
    assert_eq!(upload(data, &[1]), 700);
    assert_eq!(allocate(4), Err(700));
    // SAFETY: there are no pointers.
    unsafe {
        assert_eq!(cuCtxSynchronize(), 700);
        assert_eq!(cuStreamSynchronize(stream), 700);
        assert_eq!(cuDevicePrimaryCtxReset_v2(3), 0);
        assert_eq!(cuCtxSynchronize(), 0);
    }
    start(4);
    assert_eq!(triple(kernel, 1, 32, data + 1, 1, 0), 716);
}

#[test]
fn launches_that_no_gpu_takes() {
    start(5);
    let kernel = function(load(PTX).unwrap(), c"triple").unwrap();
    let data = allocate(64).unwrap();
    for (blocks, threads) in [(0, 32), (1, 0), (1, 1025)] {
        assert_eq!(triple(kernel, blocks, threads, data, 1, 0), 1);
    }
    // SAFETY: pointers are null, which is refused.
    unsafe {
        let launch = |shared: u32, y: u32| {
            cuLaunchKernel(kernel, 1, y, 1, 1, 1, 1, shared, 0, null(), null())
        };
        assert_eq!(launch(0, 1), 1);
        assert_eq!(launch(0, 65_536), 1);
        assert_eq!(cuFuncSetAttribute(kernel, 8, 300 << 10), 1);
        assert_eq!(cuFuncSetAttribute(kernel, 8, 100 << 10), 0);
    }
    let arguments = [
        (&raw const data).cast::<u8>(),
        (&raw const data).cast::<u8>(),
    ];
    let list = arguments.as_ptr();
    for (shared, code) in [(100 << 10, 0), (101 << 10, 1)] {
        // SAFETY: the arguments are those of the kernel; as a number of threads any will do.
        let out = unsafe { cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, shared, 0, list, null()) };
        assert_eq!(out, code);
    }
    let limited = PTX.replace("\n{", "\n.maxntid 16, 1, 1\n{");
    let kernel = function(load(&limited).unwrap(), c"triple").unwrap();
    assert_eq!(triple(kernel, 1, 17, data, 0, 0), 1);
    assert_eq!(triple(kernel, 1, 16, data, 0, 0), 0);
}

#[test]
fn modules_that_no_driver_takes() {
    start(6);
    assert_eq!(load("nothing"), Err(218));
    assert_eq!(load(&PTX.replace("mul.lo.u32", "mul.some.u32")), Err(218));
    assert_eq!(load(&PTX.replace("sm_90", "sm_100")), Err(209));
    assert_eq!(load("\u{7f}ELF"), Err(209));
    // SAFETY: the pointer is null, which is refused.
    let code = get::<Handle>(|out| unsafe { cuModuleLoadData(out, null()) });
    assert_eq!(code, Err(1));
}

#[test]
fn handles_devices_and_pointers_are_checked() {
    start(7);
    // SAFETY: pointers are null or of this function.
    unsafe {
        assert_eq!(get(|out| cuDeviceGet(out, 99)), Err(101));
        assert_eq!(get(|out| cuDeviceGet(out, -1)), Err(101));
        assert_eq!(cuDeviceGetCount(None), 1);
        assert_eq!(get(|out| cuDeviceGetAttribute(out, 75, 7)), Ok(9));
        assert_eq!(cuCtxSetCurrent(0x77), 201);
        let mut name = [1u8; 8];
        assert_eq!(cuDeviceGetName(name.as_mut_ptr().cast(), 8, 7), 0);
        assert_eq!(&name, b"soft-cu\0");
        let early = get(|out| cuEventCreate(out, 0)).unwrap();
        let late = get(|out| cuEventCreate(out, 0)).unwrap();
        assert_eq!(get(|out| cuEventElapsedTime(out, early, late)), Err(400));
        assert_eq!((cuEventRecord(early, 0), cuEventRecord(late, 0)), (0, 0));
        assert!(get(|out| cuEventElapsedTime(out, early, late)).unwrap() >= 0.0);
        assert_eq!(cuStreamWaitEvent(0, early, 0), 0);
        assert_eq!(cuEventDestroy_v2(early), 0);
        assert_eq!(cuEventDestroy_v2(early), 400);
        assert_eq!(cuStreamWaitEvent(0, early, 0), 400);
        assert_eq!(cuStreamSynchronize(late), 400);
        let host = get(|out| cuMemAllocHost_v2(out, 100)).unwrap();
        assert_eq!((cuMemFreeHost(host), cuMemFreeHost(host)), (0, 1));
        assert_eq!(get(|out| cuGetExportTable(out, null::<c_void>())), Err(500));
        let text = get(|out| cuGetErrorName(700, out)).unwrap();
        assert_eq!(CStr::from_ptr(text), c"CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(get(|out| cuGetErrorName(12345, out)), Err(1));
        assert_eq!(cuCtxSetCurrent(0), 0);
        assert_eq!(allocate(4), Err(201));
    }
}
