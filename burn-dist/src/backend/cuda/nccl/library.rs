//! The real NCCL. Its library is loaded on first use, so programs start without it.
//!
//! The declarations follow `nccl.h` instead of cudarc for two reasons. cudarc only looks for
//! `libnccl.so`, which systems without the development files lack. It also reads NCCL's codes into
//! Rust enums, which a code of a newer version would break. Contexts, streams and device memory
//! come from cudarc, and so are shared with cubecl.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaStream, sys};

use super::NcclError;
use super::api::{Nccl, UniqueId};
use crate::collective::{Descriptor, Kind};
use crate::{Cuts, DType, ReduceOp};

/// The name on systems that only run NCCL, and the name on systems that build with it.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The oldest version whose mean is the one we need: 2.10.
const OLDEST: i32 = 21_000;

type Comm = *mut c_void;
type Code = c_int;

#[repr(C)]
#[derive(Clone, Copy)]
struct Id {
    bytes: [u8; 128],
}

/// The functions of the library, which stays loaded until the process ends.
pub(super) struct Functions {
    get_version: unsafe extern "C" fn(*mut c_int) -> Code,
    get_unique_id: unsafe extern "C" fn(*mut Id) -> Code,
    comm_init_rank: unsafe extern "C" fn(*mut Comm, c_int, Id, c_int) -> Code,
    comm_destroy: unsafe extern "C" fn(Comm) -> Code,
    comm_abort: unsafe extern "C" fn(Comm) -> Code,
    comm_get_async_error: unsafe extern "C" fn(Comm, *mut Code) -> Code,
    get_error_string: unsafe extern "C" fn(Code) -> *const c_char,
    all_reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code,
    reduce_scatter:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code,
    all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> Code,
    broadcast:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code,
    reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        c_int,
        Comm,
        Stream,
    ) -> Code,
    group_start: unsafe extern "C" fn() -> Code,
    group_end: unsafe extern "C" fn() -> Code,
}

type Stream = *mut c_void;

impl Functions {
    /// The library of this process, loaded at the first call.
    pub fn load() -> Result<&'static Self, NcclError> {
        static LOADED: OnceLock<Result<Functions, NcclError>> = OnceLock::new();
        LOADED.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    pub fn version(&self) -> Result<i32, NcclError> {
        let mut version = 0;
        // SAFETY: NCCL writes one integer.
        self.check("ncclGetVersion", unsafe {
            (self.get_version)(&mut version)
        })?;
        Ok(version)
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), NcclError> {
        match code {
            0 => Ok(()),
            code => Err(NcclError::Call {
                call,
                code,
                reason: self.words(code),
            }),
        }
    }

    fn words(&self, code: Code) -> String {
        // SAFETY: NCCL returns a constant text for every code, known or not.
        let text = unsafe { (self.get_error_string)(code) };
        if text.is_null() {
            return "unknown".to_owned();
        }
        // SAFETY: not null, and terminated by a zero.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

fn open() -> Result<Functions, NcclError> {
    let mut reasons = Vec::new();
    for name in NAMES {
        // SAFETY: NCCL's initialisers have no requirements.
        match unsafe { libloading::Library::new(name) } {
            // Never unloaded: its threads may outlive any owner.
            Ok(library) => {
                let library: &'static libloading::Library = Box::leak(Box::new(library));
                let library = functions(library)?;
                let version = library.version()?;
                if version < OLDEST {
                    return Err(NcclError::NoLibrary {
                        reason: format!(
                            "{name} has version {}, but 2.10 or later is needed",
                            super::error::version_words(version)
                        ),
                    });
                }
                return Ok(library);
            }
            Err(error) => reasons.push(format!("{name}: {error}")),
        }
    }
    let reason = format!("{}; add its folder to LD_LIBRARY_PATH", reasons.join("; "));
    Err(NcclError::NoLibrary { reason })
}

fn functions(library: &'static libloading::Library) -> Result<Functions, NcclError> {
    macro_rules! function {
        ($name:literal) => {{
            // SAFETY: the type of the field that takes it is that of `nccl.h`, and has not changed
            // since version 2.0.
            let symbol = unsafe { library.get($name.to_bytes_with_nul()) };
            *symbol.map_err(|error| NcclError::NoLibrary {
                reason: error.to_string(),
            })?
        }};
    }
    Ok(Functions {
        get_version: function!(c"ncclGetVersion"),
        get_unique_id: function!(c"ncclGetUniqueId"),
        comm_init_rank: function!(c"ncclCommInitRank"),
        comm_destroy: function!(c"ncclCommDestroy"),
        comm_abort: function!(c"ncclCommAbort"),
        comm_get_async_error: function!(c"ncclCommGetAsyncError"),
        get_error_string: function!(c"ncclGetErrorString"),
        all_reduce: function!(c"ncclAllReduce"),
        reduce_scatter: function!(c"ncclReduceScatter"),
        all_gather: function!(c"ncclAllGather"),
        broadcast: function!(c"ncclBroadcast"),
        reduce: function!(c"ncclReduce"),
        group_start: function!(c"ncclGroupStart"),
        group_end: function!(c"ncclGroupEnd"),
    })
}

/// The `ncclDataType_t`.
fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
    }
}

/// The `ncclRedOp_t`.
fn reduction(op: Option<ReduceOp>) -> c_int {
    match op {
        None | Some(ReduceOp::Sum) => 0,
        Some(ReduceOp::Max) => 2,
        Some(ReduceOp::Min) => 3,
        Some(ReduceOp::Mean) => 4,
    }
}

/// Work that must be done before device memory may be touched.
pub(super) type Fence = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Elements on the device.
pub(crate) struct DeviceMemory<K> {
    /// Address of the first element.
    pub address: u64,
    /// Completes when the elements are computed.
    pub fence: Option<Fence>,
    /// Keeps the memory from being freed, moved or used by others.
    pub keep: K,
}

/// NCCL on one CUDA device.
pub(crate) struct Cuda<K> {
    nccl: &'static Functions,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    keeps: std::marker::PhantomData<fn() -> K>,
}

/// A communicator of NCCL, with its owner's rank.
pub(crate) struct Connected {
    comm: Comm,
    size: usize,
    rank: usize,
}

impl<K> Cuda<K> {
    /// Opens the device with this index in this process's visible devices.
    pub fn open(device: usize) -> Result<Self, NcclError> {
        let library = Functions::load()?;
        let context =
            CudaContext::new(device).map_err(|e| driver("cuDevicePrimaryCtxRetain", e))?;
        let stream = context
            .new_stream()
            .map_err(|error| driver("cuStreamCreate", error))?;
        Ok(Self {
            nccl: library,
            context,
            stream,
            keeps: std::marker::PhantomData,
        })
    }

    fn bind(&self) -> Result<(), NcclError> {
        let bound = self.context.bind_to_thread();
        bound.map_err(|error| driver("cuCtxSetCurrent", error))
    }

    fn stream(&self) -> Stream {
        self.stream.cu_stream().cast()
    }

    /// Runs one call per shard, for shards of different lengths.
    fn by_shard(
        &self,
        connected: &Connected,
        (what, cuts): (&Descriptor, &Cuts),
        address: u64,
    ) -> Result<(), NcclError> {
        let library = self.nccl;
        let len = usize::try_from(what.len).unwrap_or(usize::MAX);
        let (kind, op) = (data_type(what.dtype), reduction(what.op));
        // SAFETY: no arguments.
        library.check("ncclGroupStart", unsafe { (library.group_start)() })?;
        let mut outcome = Ok(());
        for root in 0..connected.size {
            let own = cuts.shard(len, connected.size, root);
            if own.is_empty() {
                continue;
            }
            let place = address + (own.start * what.dtype.size()) as u64;
            let place = place as *mut c_void;
            let to = root as c_int;
            // SAFETY: the range lies within the elements, which the caller keeps alive until the
            // stream is done; both calls are in place.
            let (call, code) = unsafe {
                if what.kind == Kind::ReduceScatter {
                    let code = (library.reduce)(
                        place,
                        place,
                        own.len(),
                        kind,
                        op,
                        to,
                        connected.comm,
                        self.stream(),
                    );
                    ("ncclReduce", code)
                } else {
                    let code = (library.broadcast)(
                        place,
                        place,
                        own.len(),
                        kind,
                        to,
                        connected.comm,
                        self.stream(),
                    );
                    ("ncclBroadcast", code)
                }
            };
            outcome = outcome.and(library.check(call, code));
        }
        // SAFETY: no arguments. Ends the group in every case.
        let ended = library.check("ncclGroupEnd", unsafe { (library.group_end)() });
        outcome.and(ended)
    }
}

fn driver(call: &'static str, error: cudarc::driver::DriverError) -> NcclError {
    NcclError::Call {
        call,
        code: error.0 as i32,
        reason: error.to_string(),
    }
}

impl<K: Send + 'static> Nccl for Cuda<K> {
    type Communicator = Connected;
    type Memory = DeviceMemory<K>;

    fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = Id { bytes: [0; 128] };
        // SAFETY: NCCL fills the 128 bytes.
        let code = unsafe { (self.nccl.get_unique_id)(&mut id) };
        self.nccl.check("ncclGetUniqueId", code)?;
        Ok(id.bytes)
    }

    fn connect(&self, id: &UniqueId, size: usize, rank: usize) -> Result<Connected, NcclError> {
        self.bind()?;
        let mut comm: Comm = std::ptr::null_mut();
        let id = Id { bytes: *id };
        // SAFETY: the device's context is current on this thread, and NCCL writes one pointer.
        let code =
            unsafe { (self.nccl.comm_init_rank)(&mut comm, size as c_int, id, rank as c_int) };
        self.nccl.check("ncclCommInitRank", code)?;
        Ok(Connected { comm, size, rank })
    }

    fn make_ready(&self, memory: &mut DeviceMemory<K>) -> Result<(), NcclError> {
        let Some(fence) = memory.fence.take() else {
            return Ok(());
        };
        cubecl_environment::future::block_on(fence).map_err(|reason| NcclError::Call {
            call: "waiting for the computation",
            code: -1,
            reason,
        })
    }

    fn enqueue(
        &self,
        connected: &mut Connected,
        what: &Descriptor,
        cuts: &Cuts,
        memory: &mut DeviceMemory<K>,
    ) -> Result<(), NcclError> {
        let (library, comm, stream) = (self.nccl, connected.comm, self.stream());
        let len = usize::try_from(what.len).unwrap_or(usize::MAX);
        let (kind, op) = (data_type(what.dtype), reduction(what.op));
        let all = memory.address as *mut c_void;
        let even = *cuts == Cuts::Even && len.is_multiple_of(connected.size);
        let own = cuts.shard(len, connected.size, connected.rank);
        let own_address = memory.address + (own.start * what.dtype.size()) as u64;
        let own_place = own_address as *mut c_void;
        // SAFETY: `memory` holds `len` elements of this type and stays with the caller until the
        // stream is done; all calls are in place as NCCL defines it.
        let (call, code) = unsafe {
            match what.kind {
                Kind::AllReduce => (
                    "ncclAllReduce",
                    (library.all_reduce)(all, all, len, kind, op, comm, stream),
                ),
                Kind::ReduceScatter if even => (
                    "ncclReduceScatter",
                    (library.reduce_scatter)(all, own_place, own.len(), kind, op, comm, stream),
                ),
                Kind::AllGather if even => (
                    "ncclAllGather",
                    (library.all_gather)(own_place, all, own.len(), kind, comm, stream),
                ),
                Kind::Broadcast => (
                    "ncclBroadcast",
                    (library.broadcast)(all, all, len, kind, c_int::from(what.root), comm, stream),
                ),
                Kind::ReduceScatter | Kind::AllGather => {
                    return self.by_shard(connected, (what, cuts), memory.address);
                }
                Kind::Barrier | Kind::GatherBytes | Kind::Register => return Ok(()),
            }
        };
        library.check(call, code)
    }

    fn is_done(&self, _connected: &mut Connected) -> Result<bool, NcclError> {
        // SAFETY: the stream lives as long as `self`.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Err(driver("cuStreamQuery", cudarc::driver::DriverError(code))),
        }
    }

    fn asynchronous_error(&self, connected: &mut Connected) -> Result<(), NcclError> {
        let mut found = 0;
        // SAFETY: the communicator lives, and NCCL writes one integer.
        let code = unsafe { (self.nccl.comm_get_async_error)(connected.comm, &mut found) };
        self.nccl.check("ncclCommGetAsyncError", code)?;
        // 7 is `ncclInProgress`.
        match found {
            0 | 7 => Ok(()),
            code => Err(NcclError::Asynchronous {
                code,
                reason: self.nccl.words(code),
            }),
        }
    }

    fn abort(&self, connected: Connected) {
        // SAFETY: the communicator lives, and is not used after this.
        let code = unsafe { (self.nccl.comm_abort)(connected.comm) };
        if let Err(error) = self.nccl.check("ncclCommAbort", code) {
            tracing::warn!("{error}");
        }
    }

    fn close(&self, connected: Connected) {
        // SAFETY: the communicator lives, nothing runs, and it is not used after this.
        let code = unsafe { (self.nccl.comm_destroy)(connected.comm) };
        if let Err(error) = self.nccl.check("ncclCommDestroy", code) {
            tracing::warn!("{error}");
        }
    }
}
