//! Small models, data and ranks for the tests.

use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Tensor, TensorData};
use burn_dist::autograd::boundary;
use burn_dist::{GroupOptions, ProcessGroup, TransportKind};

use crate::device;

pub const FEATURES: usize = 5;
const HIDDEN: usize = 8;

/// Linear blocks with a boundary each, and a head that only some losses use.
#[derive(Module, Debug)]
pub struct Net {
    pub blocks: Vec<Linear>,
    pub out: Linear,
    pub extra: Linear,
}

impl Net {
    /// Creates a model whose values depend only on `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with_hidden(seed, HIDDEN)
    }

    pub fn with_hidden(seed: u64, hidden: usize) -> Self {
        let device = device().autodiff();
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
        let net = Self {
            blocks: vec![linear(FEATURES, hidden), linear(hidden, hidden)],
            out: linear(hidden, 1),
            extra: linear(hidden, 1),
        };
        net.map(&mut Fill { seed })
    }

    pub fn forward(&self, inputs: Tensor<2>) -> Tensor<2> {
        self.out.forward(boundary(self.features(inputs)))
    }

    pub fn features(&self, inputs: Tensor<2>) -> Tensor<2> {
        self.blocks
            .iter()
            .fold(inputs, |x, block| tanh(block.forward(boundary(x))))
    }

    pub fn loss(&self, (inputs, targets): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
        (self.forward(inputs) - targets).square().mean()
    }
}

/// A model with running statistics.
#[derive(Module, Debug)]
pub struct Normed {
    pub first: Linear,
    pub norm: BatchNorm,
    pub last: Linear,
}

impl Normed {
    pub fn new(seed: u64) -> Self {
        let device = device().autodiff();
        let normed = Self {
            first: LinearConfig::new(FEATURES, HIDDEN).init(&device),
            norm: BatchNormConfig::new(HIDDEN).init(&device),
            last: LinearConfig::new(HIDDEN, 1).init(&device),
        };
        normed.map(&mut Fill { seed })
    }

    pub fn loss(&self, (inputs, targets): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
        let x = self.norm.forward(self.first.forward(inputs));
        (self.last.forward(x) - targets).square().mean()
    }
}

/// Fills every float tensor with values between -0.5 and 0.5, without Burn's generator, which the
/// whole process shares while the ranks here are threads.
pub struct Fill {
    pub seed: u64,
}

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.seed += 1;
        let seed = self.seed;
        param.map(|value| {
            let trains = value.is_require_grad();
            let data = TensorData::new(noise(seed, value.shape().num_elements()), value.shape());
            Tensor::from_data(data, &value.device()).set_require_grad(trains)
        })
    }
}

/// Returns `len` reproducible values between -0.5 and 0.5.
pub fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..len).map(|_| next()).collect()
}

/// Returns true if Burn's sums on the tests' device have different bits each time.
pub fn sums_vary() -> bool {
    format!("{:?}", device()).contains("Cuda")
}

/// Returns the rows `rows` of the global batch of a step.
pub fn batch(step: u64, rows: std::ops::Range<usize>) -> (Tensor<2>, Tensor<2>) {
    let device = device();
    let inputs = noise(2 * step + 1, rows.end * FEATURES);
    let targets = noise(2 * step + 2, rows.end);
    let tensor = |values: &[f32], width| {
        let data = TensorData::new(values[rows.start * width..].to_vec(), [rows.len(), width]);
        Tensor::<2>::from_data(data, &device)
    };
    (tensor(&inputs, FEATURES), tensor(&targets, 1))
}

/// Every float tensor of a model with its path.
pub type Values = Vec<(String, Vec<f32>)>;

/// Returns the values of a model in visit order.
pub fn values<M: Module>(model: &M) -> Values {
    struct Collect {
        path: Vec<String>,
        values: Values,
    }
    impl ModuleVisitor for Collect {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.base().inner().into_data();
            self.values
                .push((self.path.join("."), data.try_to_vec().unwrap()));
        }
    }
    let mut collect = Collect {
        path: Vec::new(),
        values: Vec::new(),
    };
    model.visit(&mut collect);
    collect.values
}

/// Returns the values of the tensor at `path`.
pub fn value_at<M: Module>(model: &M, path: &str) -> Vec<f32> {
    let mut all = values(model);
    let at = all.iter().position(|(name, _)| name == path);
    all.swap_remove(at.unwrap_or_else(|| panic!("no tensor at {path}")))
        .1
}

pub fn scalar(loss: &Tensor<1>) -> f32 {
    loss.clone().into_scalar()
}

/// Asserts that two models' values differ by at most `tolerance`, relative to the largest value of
/// each tensor.
pub fn assert_close<M: Module>(left: &M, right: &M, tolerance: f32) {
    for ((path, left), (_, right)) in values(left).iter().zip(values(right)) {
        let scale = left
            .iter()
            .fold(f32::MIN_POSITIVE, |max, v| max.max(v.abs()));
        for (left, right) in left.iter().zip(&right) {
            let difference = (left - right).abs() / scale;
            assert!(difference <= tolerance, "{path}: {left} and {right}");
        }
    }
}

const LIMIT: Duration = Duration::from_secs(120);

/// Runs `work` as every rank at once and returns the results in rank order. Ends the test program
/// if the ranks hang.
pub fn on_ranks<R: Send + 'static>(
    size: usize,
    transport: TransportKind,
    work: impl Fn(ProcessGroup) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let options = GroupOptions {
        transport,
        ..patient()
    };
    on_ranks_with(options, size, work)
}

/// Returns timeouts that end before a test counts as hung.
pub fn patient() -> GroupOptions {
    GroupOptions {
        connect_timeout: Duration::from_secs(30),
        first_timeout: Duration::from_secs(30),
        timeout: Duration::from_secs(30),
        ..GroupOptions::default()
    }
}

/// Does the same with the given connection options.
pub fn on_ranks_with<R: Send + 'static>(
    options: GroupOptions,
    size: usize,
    work: impl Fn(ProcessGroup) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let (done, waiting) = mpsc::channel();
    let all = thread::spawn(move || {
        let groups = ProcessGroup::in_process(size, &options).unwrap();
        let results = thread::scope(|scope| {
            let spawn = |group| scope.spawn(|| work(group));
            let ranks: Vec<_> = groups.into_iter().map(spawn).collect();
            let join = |rank: thread::ScopedJoinHandle<'_, R>| {
                rank.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            ranks.into_iter().map(join).collect::<Vec<R>>()
        });
        let _ = done.send(());
        results
    });
    if waiting.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
        eprintln!("the ranks hung for {LIMIT:?}");
        std::process::abort();
    }
    all.join().unwrap_or_else(|panic| resume_unwind(panic))
}
