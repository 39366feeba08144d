//! `sum_over_ranks`: a differentiable sum over all ranks in the middle of a model, for
//! normalizations that use statistics of the global batch.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchKindConversion, DispatchTensor, TensorMetadata};
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use parking_lot::Mutex;

use crate::backend::{implement, operation};
use crate::{Error, ProcessGroup, ReduceOp};

thread_local! {
    static CURRENT: RefCell<Option<Sums>> = const { RefCell::new(None) };
}

/// Sums `x` over all ranks in a model that synchronises batch normalizations; else returns `x`.
///
/// The option is [`sync_batch_norm`](crate::parallel::ParallelOptions::sync_batch_norm). Models may
/// call it unconditionally. All ranks call it in the same order with tensors of the same shape, on
/// the thread that called [`model`](crate::parallel::Parallel::model) and before the loss's
/// backward. Plain copies evaluated on this thread in between sum too, unless they were made in
/// between.
///
/// The gradient of `x` is the sum over ranks of the gradients of the result. Together with averaged
/// parameter gradients this is the gradient of the mean of all losses.
///
/// The sum goes through host memory and waits for the other ranks, so use it for few elements. If
/// it fails, the next [`backward`](crate::parallel::Parallel::backward) returns the error.
pub fn sum_over_ranks<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let Some(sums) = current() else {
        return x;
    };
    let sum = |x: Tensor<D>| Tensor::from_dispatch(Dispatch::rank_sum(x.into_dispatch(), sums));
    match x.dtype() {
        DType::F32 | DType::F64 => sum(x),
        half => sum(x.cast(FloatDType::F32)).cast(FloatDType::from(half)),
    }
}

/// Whether [`sum_over_ranks`] sums anything on this thread.
pub fn sums_over_ranks() -> bool {
    current().is_some()
}

fn current() -> Option<Sums> {
    let current = CURRENT.with_borrow(Option::clone)?;
    current.there().is_some().then_some(current)
}

/// Sets the ranks that [`sum_over_ranks`] sums over on this thread.
pub(crate) fn set(sums: Option<&RankSums>) {
    CURRENT.set(sums.map(RankSums::to_sum));
}

/// Stops [`sum_over_ranks`] from summing over `sums` on this thread. Sums of another model stay.
pub(crate) fn unset(sums: &RankSums) {
    CURRENT.with_borrow_mut(|current| {
        if current.as_ref().is_some_and(|current| sums.is(current)) {
            *current = None;
        }
    });
}

/// The ranks to sum over.
#[derive(Debug)]
pub(crate) struct RankSums(Arc<Summing>);

/// A weak reference for threads and graphs, which may outlive the training.
#[derive(Clone, Debug)]
pub(super) struct Sums(Weak<Summing>);

#[derive(Debug)]
struct Summing {
    /// A group of its own: other collectives run while a model computes, in a different order on
    /// each rank.
    group: ProcessGroup,
    failure: Mutex<Option<Error>>,
}

impl RankSums {
    /// Sums over all ranks of `group`. A collective call.
    pub(crate) fn over(group: &ProcessGroup) -> Result<Self, Error> {
        Ok(Self(Arc::new(Summing {
            group: group.split(0, group.rank() as u64)?,
            failure: Mutex::default(),
        })))
    }

    /// Returns the error of a failed sum, if any.
    pub(crate) fn failure(&self) -> Result<(), Error> {
        self.0.failure.lock().take().map_or(Ok(()), Err)
    }

    fn to_sum(&self) -> Sums {
        Sums(Arc::downgrade(&self.0))
    }

    fn is(&self, other: &Sums) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.0), other.0.as_ptr())
    }
}

impl Sums {
    fn there(&self) -> Option<Arc<Summing>> {
        self.0.upgrade()
    }

    /// The sum, or `x` if the sum fails.
    fn of<B: Backend>(&self, x: FloatTensor<B>) -> FloatTensor<B>
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        match self.there() {
            Some(summing) => summing.of::<B>(x),
            None => x,
        }
    }
}

impl Summing {
    fn add_up(&self, data: &mut TensorData) -> Result<(), Error> {
        let dtype = data.dtype();
        if let Ok(values) = data.as_mut_slice::<f32>() {
            return self.group.all_reduce(values, ReduceOp::Sum);
        }
        match data.as_mut_slice::<f64>() {
            Ok(values) => self.group.all_reduce(values, ReduceOp::Sum),
            Err(_) => Err(Error::Device {
                reason: format!("the device returned {dtype:?} for a sum over ranks"),
            }),
        }
    }

    /// The sum, or `x` if the sum fails.
    fn of<B: Backend>(&self, x: FloatTensor<B>) -> FloatTensor<B>
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        if self.failure.lock().is_some() {
            return x;
        }
        let (shape, device) = (x.shape(), x.device());
        let flat = B::float_reshape(x.clone(), [shape.num_elements()].into());
        let data = Tensor::<1>::from_primitive::<B>(flat).try_into_data();
        let sum = data
            .map_err(|error| Error::Device {
                reason: error.to_string(),
            })
            .and_then(|mut data| self.add_up(&mut data).map(|()| data));
        match sum {
            Ok(data) => B::float_reshape(B::float_from_data(data, &device), shape),
            Err(error) => {
                // The error may be this rank's alone, and the others wait.
                self.group.abort(&error.to_string());
                self.failure.lock().get_or_insert(error);
                x
            }
        }
    }
}

operation! {
    pub(super) trait RankSumOp: Backend {
        /// The sum over all ranks.
        fn rank_sum(x: FloatTensor<Self>, sums: Sums) -> FloatTensor<Self>;
    }
}

implement! {
    RankSumOp {
        fn rank_sum(x: FloatTensor<Self>, sums: Sums) -> FloatTensor<Self> {
            sums.of::<Self>(x)
        }
    }
}

impl<B: RankSumOp, C: CheckpointStrategy> RankSumOp for Autodiff<B, C> {
    fn rank_sum(x: FloatTensor<Self>, sums: Sums) -> FloatTensor<Self> {
        let (primitive, node) = x.into_parts();
        let sum = B::rank_sum(primitive, sums.clone());
        // Compute bound: gradient checkpointing keeps the sum, so no rank sums again in backward.
        match RankSumBackward
            .prepare::<C>([node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(sums, sum),
            OpsKind::UnTracked(prep) => prep.finish(sum),
        }
    }
}

#[derive(Debug)]
struct RankSumBackward;

impl<B: RankSumOp> Backward<B, 1> for RankSumBackward {
    type State = Sums;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let gradient = B::rank_sum(gradient, ops.state);
        if let [Some(parent)] = ops.parents {
            grads.register::<B>(parent.id, gradient);
        }
    }
}
