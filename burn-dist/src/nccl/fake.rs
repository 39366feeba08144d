//! NCCL in host memory, for tests: ranks are threads, a collective is done when all have joined,
//! and every kind of failure can be injected.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::NcclError;
use crate::backend::cuda::nccl::{Nccl, UniqueId};
use crate::collective::{Descriptor, Kind};
use crate::{Cuts, DType, ReduceOp};

/// The failure of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Failure {
    #[default]
    None,
    /// No id.
    Id,
    /// The ranks do not connect.
    Connect,
    /// This rank waits in connect until the wire is cut.
    MeetsNobody,
    /// This rank waits in this collective for another one to connect, until the wire is cut.
    Connects(u64),
    /// From this collective on, nothing is ever done.
    Hang(u64),
    /// This collective is refused.
    Refuse(u64),
    /// This collective ends with an error that NCCL notices later.
    Asynchronous(u64),
}

/// State that the ranks of a fake communicator share.
#[derive(Default)]
pub(super) struct Wire {
    size: usize,
    met: AtomicUsize,
    /// Elements of each rank, by sequence number.
    put: Mutex<HashMap<u64, Vec<Option<Shared>>>>,
    pub aborted: AtomicUsize,
    pub closed: AtomicUsize,
    /// Ends of the communicators, by the order of connection: NCCL waits for all ranks of a host.
    ended: Mutex<HashMap<usize, usize>>,
    /// How many times each rank has connected.
    connected: Mutex<HashMap<usize, usize>>,
    /// Aborts after the memory that the "device" may still write was gone.
    pub too_late: AtomicUsize,
    /// Releases threads that wait inside "NCCL", so that the test leaves none behind.
    pub is_cut: AtomicBool,
}

impl Wire {
    pub fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            size,
            ..Self::default()
        })
    }

    fn end(&self, connected: &Connected) {
        let ended = |more: usize| {
            let mut ended = self.ended.lock().unwrap();
            let count = ended.entry(connected.ordinal).or_default();
            *count += more;
            *count
        };
        ended(1);
        while ended(0) < self.size && !self.is_cut.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait_for_nobody(&self) {
        while !self.is_cut.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Elements that the "device" may write while the rank waits.
type Shared = Arc<Mutex<Vec<f32>>>;

pub(super) struct Fake {
    pub wire: Arc<Wire>,
    pub failure: Failure,
}

pub(super) struct FakeMemory {
    pub values: Shared,
    pub is_ready: bool,
}

impl FakeMemory {
    pub fn of(values: Vec<f32>) -> Self {
        Self {
            values: Arc::new(Mutex::new(values)),
            is_ready: false,
        }
    }

    pub fn take(&self) -> Vec<f32> {
        self.values.lock().unwrap().clone()
    }
}

pub(super) struct Connected {
    rank: usize,
    ordinal: usize,
    running: Option<u64>,
    last: Weak<Mutex<Vec<f32>>>,
    hangs: bool,
    error: AtomicBool,
}

fn refused(call: &'static str) -> NcclError {
    NcclError::Call {
        call,
        code: 3,
        reason: "internal error".to_owned(),
    }
}

impl Nccl for Fake {
    type Communicator = Connected;
    type Memory = FakeMemory;

    fn unique_id(&self) -> Result<UniqueId, NcclError> {
        match self.failure {
            Failure::Id => Err(refused("ncclGetUniqueId")),
            _ => Ok([7; 128]),
        }
    }

    fn connect(&self, id: &UniqueId, size: usize, rank: usize) -> Result<Connected, NcclError> {
        assert_eq!((id, size), (&[7; 128], self.wire.size));
        if self.failure == Failure::Connect {
            return Err(refused("ncclCommInitRank"));
        }
        if self.failure == Failure::MeetsNobody {
            self.wire.wait_for_nobody();
        }
        self.wire.met.fetch_add(1, Ordering::SeqCst);
        let mut connected = self.wire.connected.lock().unwrap();
        let count = connected.entry(rank).or_default();
        *count += 1;
        Ok(Connected {
            rank,
            ordinal: *count,
            running: None,
            last: Weak::new(),
            hangs: false,
            error: AtomicBool::new(false),
        })
    }

    fn make_ready(&self, memory: &mut FakeMemory) -> Result<(), NcclError> {
        memory.is_ready = true;
        Ok(())
    }

    fn enqueue(
        &self,
        connected: &mut Connected,
        what: &Descriptor,
        cuts: &Cuts,
        memory: &mut FakeMemory,
    ) -> Result<(), NcclError> {
        assert!(memory.is_ready, "used before it was computed");
        assert_eq!(memory.values.lock().unwrap().len() as u64, what.len);
        assert_eq!(what.dtype, DType::F32);
        connected.last = Arc::downgrade(&memory.values);
        match self.failure {
            Failure::Refuse(at) if at == what.sequence => return Err(refused("ncclAllReduce")),
            Failure::Connects(at) if at == what.sequence => {
                self.wire.wait_for_nobody();
                return Err(refused("ncclAllReduce"));
            }
            Failure::Hang(from) if what.sequence >= from => connected.hangs = true,
            Failure::Asynchronous(at) if at == what.sequence => {
                connected.hangs = true;
                connected.error.store(true, Ordering::SeqCst);
            }
            _ => {}
        }
        connected.running = Some(what.sequence);
        if connected.hangs {
            return Ok(());
        }
        let mut put = self.wire.put.lock().unwrap();
        let places = put
            .entry(what.sequence)
            .or_insert_with(|| vec![None; self.wire.size]);
        places[connected.rank] = Some(memory.values.clone());
        if places.iter().all(Option::is_some) {
            let all: Vec<Shared> = places.iter().flatten().cloned().collect();
            compute(what, cuts, &all);
            put.remove(&what.sequence);
        }
        Ok(())
    }

    fn is_done(&self, connected: &mut Connected) -> Result<bool, NcclError> {
        let put = self.wire.put.lock().unwrap();
        let running = connected.running.and_then(|at| put.get(&at));
        let waiting = running.is_some_and(|places| places[connected.rank].is_some());
        Ok(!connected.hangs && !waiting)
    }

    fn asynchronous_error(&self, connected: &mut Connected) -> Result<(), NcclError> {
        match connected.error.load(Ordering::SeqCst) {
            true => Err(NcclError::Asynchronous {
                code: 6,
                reason: "remote process exited".to_owned(),
            }),
            false => Ok(()),
        }
    }

    fn abort(&self, connected: Connected) {
        self.wire.aborted.fetch_add(1, Ordering::SeqCst);
        self.wire.end(&connected);
        let is_gone = connected.running.is_some() && connected.last.upgrade().is_none();
        self.wire
            .too_late
            .fetch_add(usize::from(is_gone), Ordering::SeqCst);
    }

    fn close(&self, connected: Connected) {
        self.wire.closed.fetch_add(1, Ordering::SeqCst);
        self.wire.end(&connected);
    }
}

/// Computes the result for every rank; undefined elements become NaN.
fn compute(what: &Descriptor, cuts: &Cuts, all: &[Shared]) {
    let before: Vec<Vec<f32>> = all.iter().map(|v| v.lock().unwrap().clone()).collect();
    let (len, size) = (what.len as usize, all.len());
    let reduced = |i: usize| {
        let values = before.iter().map(|v| v[i]);
        match what.op {
            Some(ReduceOp::Max) => values.fold(f32::NEG_INFINITY, f32::max),
            Some(ReduceOp::Min) => values.fold(f32::INFINITY, f32::min),
            Some(ReduceOp::Mean) => values.sum::<f32>() / size as f32,
            _ => values.sum(),
        }
    };
    let owner = |i: usize| {
        (0..size)
            .find(|r| cuts.shard(len, size, *r).contains(&i))
            .unwrap()
    };
    for (rank, values) in all.iter().enumerate() {
        let after = (0..len).map(|i| match what.kind {
            Kind::AllReduce => reduced(i),
            Kind::ReduceScatter if owner(i) == rank => reduced(i),
            Kind::ReduceScatter => f32::NAN,
            Kind::AllGather => before[owner(i)][i],
            _ => before[usize::from(what.root)][i],
        });
        *values.lock().unwrap() = after.collect();
    }
}
