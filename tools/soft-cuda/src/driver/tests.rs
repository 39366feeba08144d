//! The C functions from a program's side. Each test has its own device.
#![allow(unsafe_code)] // Calls C functions.

use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null;
use std::sync::{Condvar, Mutex};

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

/// Returns the result of a call, or its code.
fn get<T>(call: impl FnOnce(Out<T>) -> Code) -> Result<T, Code> {
    let mut out = MaybeUninit::uninit();
    match call(Some(&mut out)) {
        // SAFETY: a call without an error has written its result.
        0 => Ok(unsafe { out.assume_init() }),
        code => Err(code),
    }
}

/// Makes a device current for this thread.
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
    // SAFETY: there are this many bytes.
    unsafe { cuMemcpyHtoD_v2(to, words.as_ptr().cast(), size_of_val(words)) }
}

fn download(from: u64, words: &mut [u32]) -> Code {
    // SAFETY: there is room for this many bytes.
    unsafe { cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), from, size_of_val(words)) }
}

fn load(text: &str) -> Result<Handle, Code> {
    let text = CString::new(text).unwrap();
    // SAFETY: it is a C string.
    get(|out| unsafe { cuModuleLoadData(out, text.as_ptr()) })
}

fn function(module: Handle, name: &CStr) -> Result<Handle, Code> {
    // SAFETY: it is a C string.
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
    assert_eq!(triple(kernel, 1, 32, data, 17, stream), 0);
    // SAFETY: there are no pointers.
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, 700);
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

/// A gate that a stream waits for until it is opened.
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    const fn closed() -> Self {
        Self(Mutex::new(false), Condvar::new())
    }

    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    /// Makes a stream wait for it.
    fn close(&'static self, stream: Handle) {
        unsafe extern "C" fn wait(gate: *mut c_void) {
            // SAFETY: it is a static gate.
            let Gate(open, changed) = unsafe { &*gate.cast::<Gate>() };
            drop(changed.wait_while(open.lock().unwrap(), |open| !*open));
        }
        let gate = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the function can be called with this.
        assert_eq!(unsafe { cuLaunchHostFunc(stream, Some(wait), gate) }, 0);
    }
}

#[test]
fn what_is_enqueued_is_done_later_and_in_order() {
    static GATE: Gate = Gate::closed();
    start(16);
    let kernel = function(load(PTX).unwrap(), c"triple").unwrap();
    let data = allocate(16).unwrap();
    // SAFETY: pointers are of this function, and there are as many bytes as said.
    unsafe {
        let stream = get(|out| cuStreamCreate(out, 1)).unwrap();
        let other = get(|out| cuStreamCreate(out, 1)).unwrap();
        let event = get(|out| cuEventCreate(out, 0)).unwrap();
        let pinned = get(|out| cuMemAllocHost_v2(out, 16)).unwrap();
        let pinned: *mut u32 = std::ptr::with_exposed_provenance_mut(pinned);
        pinned.write_bytes(0, 4);
        GATE.close(stream);
        let mut words = [1u32, 2, 3, 4];
        let from = words.as_ptr().cast();
        assert_eq!(cuMemcpyHtoDAsync_v2(data, from, 16, stream), 0);
        // It has been read already: only memory of the driver is read later.
        words.fill(9);
        assert_eq!(triple(kernel, 1, 32, data, 3, stream), 0);
        assert_eq!(cuEventRecord(event, stream), 0);
        // The other stream continues at the first one's place at that time.
        assert_eq!(cuStreamWaitEvent(other, event, 0), 0);
        assert_eq!(triple(kernel, 1, 32, data, 2, other), 0);
        assert_eq!(cuMemcpyDtoHAsync_v2(pinned.cast(), data, 16, other), 0);
        assert_eq!(cuMemFreeAsync(data, other), 0);
        for waits in [stream, other] {
            assert_eq!(cuStreamQuery(waits), 600);
        }
        assert_eq!(cuEventQuery(event), 600);
        assert_eq!(get(|out| cuEventElapsedTime(out, event, event)), Err(600));
        assert_eq!(pinned.read(), 0);
        GATE.open();
        assert_eq!(cuEventSynchronize(event), 0);
        assert_eq!((cuEventQuery(event), cuStreamQuery(stream)), (0, 0));
        assert_eq!(cuStreamSynchronize(other), 0);
        assert_eq!(std::slice::from_raw_parts(pinned, 4), [9, 18, 9, 4]);
        assert_eq!(cuMemFree_v2(data), 1);
        assert_eq!(cuMemFreeHost(pinned.expose_provenance()), 0);
        assert_eq!(
            (cuStreamDestroy_v2(stream), cuStreamDestroy_v2(other)),
            (0, 0)
        );
    }
}

#[test]
fn the_default_stream_waits_for_those_that_block_it() {
    static GATES: [Gate; 2] = [Gate::closed(), Gate::closed()];
    start(17);
    let data = allocate(4).unwrap();
    // SAFETY: pointers are of this function.
    unsafe {
        let [blocking, free] = [0, 1].map(|flags| get(|out| cuStreamCreate(out, flags)).unwrap());
        GATES[0].close(blocking);
        assert_eq!(cuMemsetD8Async(data, 7, 4, blocking), 0);
        GATES[1].close(free);
        let opener = std::thread::spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            GATES[0].open();
        });
        let mut out = [0];
        assert_eq!(download(data, &mut out), 0);
        assert_eq!(out, [0x0707_0707]);
        opener.join().unwrap();
        assert_eq!((cuStreamQuery(blocking), cuStreamQuery(free)), (0, 600));
        GATES[1].open();
        assert_eq!(cuCtxSynchronize(), 0);
        assert_eq!(cuStreamQuery(free), 0);
    }
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
        // SAFETY: the arguments are those of the kernel; any number of threads is valid.
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
