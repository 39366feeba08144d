//! Mixed precision and its loss scale, on one rank and on several.

use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, FloatDType, Tensor};
use burn_dist::autograd::{boundary, full_precision};
use burn_dist::parallel::{
    Checksum, EmaOptions, LossScaleOptions, Parallel, ParallelError, ParallelOptions, Precision,
    StepReport, Strategy, autocast,
};
use burn_dist::{ProcessGroup, ReduceOp, TransportKind};

use crate::models::{
    FEATURES, Fill, Net, Normed, Values, batch, on_ranks, scalar, value_at, values,
};

const STEPS: u64 = 12;
const ROWS: usize = 16;
const RATE: f64 = 0.02;
const SCALE: f64 = 1024.0;

/// Maps inputs \[rows, features\] to \[rows, 1\] in the type of the inputs.
trait Predict: Module + 'static {
    fn new() -> Self;
    fn predict(&self, inputs: Tensor<2>) -> Tensor<2>;
}

impl Predict for Net {
    fn new() -> Self {
        Net::new(1)
    }
    fn predict(&self, inputs: Tensor<2>) -> Tensor<2> {
        self.forward(inputs)
    }
}

/// With Burn's own batch normalization.
impl Predict for Normed {
    fn new() -> Self {
        let filled = Normed::new(1);
        let channels = filled.norm.gamma.dims()[0];
        Self {
            // Statistics that a variance can have.
            norm: BatchNormConfig::new(channels).init(&Device::flex().autodiff()),
            ..filled
        }
    }
    fn predict(&self, inputs: Tensor<2>) -> Tensor<2> {
        self.last
            .forward(self.norm.forward(self.first.forward(inputs)))
    }
}

/// Burn's layers unchanged: convolution, layer normalization, attention.
#[derive(Module, Debug)]
struct Mixed {
    conv: Conv2d,
    norm: LayerNorm,
    attention: MultiHeadAttention,
    out: Linear,
}

impl Predict for Mixed {
    fn new() -> Self {
        let device = Device::flex().autodiff();
        let mixed = Self {
            conv: Conv2dConfig::new([1, 8], [2, 1]).init(&device),
            norm: LayerNormConfig::new(8).init(&device),
            attention: MultiHeadAttentionConfig::new(8, 2)
                .with_dropout(0.0)
                .init(&device),
            out: LinearConfig::new(8, 1).init(&device),
        };
        mixed.map(&mut Fill { seed: 3 })
    }
    fn predict(&self, inputs: Tensor<2>) -> Tensor<2> {
        let rows = inputs.dims()[0];
        let x = boundary(inputs).reshape([rows, 1, FEATURES, 1]);
        let x: Tensor<3> = relu(self.conv.forward(x)).flatten(2, 3);
        let x = self.norm.forward(boundary(x).swap_dims(1, 2));
        let x = self.attention.forward(MhaInput::self_attn(x)).context;
        self.out.forward(x.mean_dim(1).squeeze_dim(1))
    }
}

fn options(precision: Precision) -> ParallelOptions {
    ParallelOptions {
        precision,
        // The gradients of these small models are large.
        loss_scale: LossScaleOptions {
            initial: SCALE,
            ..LossScaleOptions::default()
        },
        ..ParallelOptions::default()
    }
}

fn new<M: Predict>(options: ParallelOptions, group: &ProcessGroup) -> Parallel<M> {
    Parallel::new(M::new(), AdamWConfig::new(), options, group).unwrap()
}

/// Returns this rank's loss in a step, with its inputs times `factor`.
fn loss<M: Predict>(parallel: &Parallel<M>, step: u64, factor: f32) -> Tensor<1> {
    let (rank, len) = (parallel.group().rank(), ROWS / parallel.group().size());
    let (inputs, targets) = batch(step, rank * len..(rank + 1) * len);
    let inputs = (inputs * factor).cast(parallel.compute_dtype());
    let prediction = parallel.model().predict(inputs);
    assert_eq!(
        FloatDType::from(prediction.dtype()),
        parallel.compute_dtype()
    );
    (prediction.cast(FloatDType::F32) - targets).square().mean()
}

/// Trains; returns the global losses and the final values, which all ranks share.
fn train<M: Predict>(options: ParallelOptions, group: &ProcessGroup) -> (Vec<f32>, Values) {
    let mut parallel = new::<M>(options, group);
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let loss = loss(&parallel, step % 2, 1.0);
        let mut mean = [scalar(&loss)];
        parallel.backward(loss).unwrap();
        assert!(parallel.step(RATE).unwrap().applied);
        group.all_reduce(&mut mean, ReduceOp::Mean).unwrap();
        losses.extend(mean);
    }
    parallel.verify_replicas().unwrap();
    (losses, values(&parallel.valid().unwrap()))
}

/// Checks that low precision follows `f32` within `tolerance` of the first loss, and learns.
fn assert_follows<M: Predict>(precision: Precision, tolerance: f32) {
    let (expected, _) = train::<M>(options(Precision::F32), &ProcessGroup::single());
    for size in [1, 2] {
        let ranks = on_ranks(size, TransportKind::Auto, move |group| {
            train::<M>(options(precision), &group)
        });
        // Running statistics follow each rank's own data; the parameters were compared above.
        let (losses, _) = &ranks[0];
        assert_ne!(losses, &expected, "{precision} computed in f32");
        // Statistics of half a batch are not the subject of this test.
        if size == 2 && std::any::type_name::<M>().ends_with("Normed") {
            continue;
        }
        for (loss, expected) in losses.iter().zip(&expected) {
            let difference = (loss - expected).abs();
            assert!(
                difference <= tolerance * losses[0],
                "{precision} on {size} ranks: {loss} and {expected}"
            );
        }
    }
    assert!(expected[STEPS as usize - 1] < expected[1]);
}

#[test]
fn bf16_follows_f32() {
    assert_follows::<Net>(Precision::Bf16, 0.01);
    assert_follows::<Normed>(Precision::Bf16, 0.03);
    assert_follows::<Mixed>(Precision::Bf16, 0.03);
}

#[test]
fn f16_follows_f32() {
    assert_follows::<Net>(Precision::F16, 0.002);
    assert_follows::<Normed>(Precision::F16, 0.005);
    assert_follows::<Mixed>(Precision::F16, 0.005);
}

#[test]
fn what_leaves_the_training_is_f32() {
    let group = ProcessGroup::single();
    for precision in [Precision::Bf16, Precision::F16] {
        let mut parallel = new::<Normed>(options(precision), &group);
        assert_eq!(parallel.compute_dtype(), precision.compute_dtype());
        let first = loss(&parallel, 0, 1.0);
        parallel.backward(first).unwrap();
        parallel.step(RATE).unwrap();
        // Both panic on anything but `f32`.
        values(&parallel.valid().unwrap());
        let state = parallel.state().unwrap().read().unwrap();
        for (name, data) in state.tensors {
            assert_eq!(data.dtype(), burn::tensor::DType::F32, "{name}");
        }
        // More digits than the low precision has.
        let value = parallel
            .valid()
            .unwrap()
            .first
            .weight
            .val()
            .slice([0..1, 0..1]);
        let low = value.clone().cast(parallel.compute_dtype());
        assert_ne!(
            value.into_scalar::<f32>(),
            low.cast(FloatDType::F32).into_scalar::<f32>()
        );
        values(&parallel.into_model().unwrap());
    }
}

#[test]
fn a_layer_that_asks_for_it_reads_f32() {
    let parallel = new::<Net>(options(Precision::Bf16), &ProcessGroup::single());
    let weight = &parallel.model().out.weight;
    let dtype = |tensor: Tensor<2>| FloatDType::from(tensor.dtype());
    assert_eq!(dtype(weight.val()), FloatDType::BF16);
    assert_eq!(dtype(full_precision(|| weight.val())), FloatDType::F32);
    assert_eq!(dtype(weight.val()), FloatDType::BF16);
}

#[test]
fn frozen_parameters_are_cast_too() {
    let mut model = Net::new(1);
    model.blocks = model.blocks.set_require_grad(false);
    let before = values(&model);
    let group = ProcessGroup::single();
    let options = options(Precision::Bf16);
    let mut parallel = Parallel::new(model, AdamWConfig::new(), options, &group).unwrap();
    let loss = loss(&parallel, 0, 1.0);
    parallel.backward(loss).unwrap();
    parallel.step(RATE).unwrap();
    let after = values(&parallel.valid().unwrap());
    assert_eq!(before[0], after[0]);
    assert_ne!(before, after);
}

/// Returns a model's output for a few rows in their type.
fn predicted<M: Predict>(model: &M, dtype: FloatDType) -> Vec<f32> {
    let out = model.predict(batch(9, 0..ROWS).0.inner().cast(dtype));
    assert_eq!(FloatDType::from(out.dtype()), dtype);
    out.into_data().convert::<f32>().try_to_vec().unwrap()
}

/// Evaluates a model during training in its precision and in `f32`; the same again with averages.
fn evaluated<M: Predict>(strategy: Strategy, precision: Precision) -> Vec<Vec<f32>> {
    let ranks = on_ranks(2, TransportKind::Auto, move |group| {
        let mut results = Vec::new();
        for ema in [
            None,
            Some(EmaOptions {
                decay: 0.5,
                warmup: false,
            }),
        ] {
            let options = ParallelOptions {
                strategy,
                ema,
                ..options(precision)
            };
            let mut parallel = new::<M>(options, &group);
            for step in 0..3 {
                let loss = loss(&parallel, step, 1.0);
                parallel.backward(loss).unwrap();
                parallel.step(RATE).unwrap();
            }
            parallel.sync_buffers().unwrap();
            let dtype = parallel.compute_dtype();
            let cast = parallel.evaluate_autocast(|model| predicted(model, dtype));
            let full = parallel.evaluate_with(|model| predicted(model, FloatDType::F32));
            let plain = parallel.for_evaluation().unwrap();
            let (cast, full) = (cast.unwrap(), full.unwrap());
            assert_eq!(full, predicted(&plain, FloatDType::F32));
            let again = autocast(plain, precision).unwrap();
            assert_eq!(cast, predicted(&again, dtype));
            // Training continues as if nothing had been evaluated.
            let loss = loss(&parallel, 3, 1.0);
            parallel.backward(loss).unwrap();
            assert!(parallel.step(RATE).unwrap().applied);
            parallel.verify_replicas().unwrap();
            results.extend([cast, full]);
        }
        results
    });
    assert_eq!(ranks[0], ranks[1]);
    ranks[0].clone()
}

fn assert_evaluates<M: Predict>() {
    for precision in Precision::ALL {
        let expected = evaluated::<M>(Strategy::Ddp, precision);
        for pair in expected.chunks(2) {
            let [cast, full] = pair else { unreachable!() };
            assert_eq!(precision == Precision::F32, cast == full, "{precision}");
            let largest = full.iter().fold(0f32, |most, value| most.max(value.abs()));
            for (cast, full) in cast.iter().zip(full) {
                assert!((cast - full).abs() < 0.05 * largest, "{cast} {full}");
            }
        }
        assert_ne!(expected[0], expected[2], "the averages were not evaluated");
        for (sharded, whole) in evaluated::<M>(Strategy::Zero3, precision)
            .iter()
            .zip(&expected)
        {
            for (sharded, whole) in sharded.iter().zip(whole) {
                assert!((sharded - whole).abs() <= 1e-5 * whole.abs().max(1.0));
            }
        }
    }
}

#[test]
fn models_are_evaluated_in_the_precision_of_their_training() {
    assert_evaluates::<Net>();
    assert_evaluates::<Mixed>();
}

#[test]
fn running_statistics_are_evaluated_in_the_precision_of_the_training() {
    assert_evaluates::<Normed>();
}

/// A reparameterization of a user's own.
#[derive(Module, Debug)]
struct Doubled {
    factor: Param<Tensor<1>>,
}

impl Reparameterization for Doubled {
    const NAME: &'static str = "doubled";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base * self.factor.val().reshape([1; D])
    }
}

struct Double;

impl Reparameterizer for Double {
    type Reparam = Doubled;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Doubled>) {
        let factor = Param::from_tensor(Tensor::from_floats([2.0], &param.lazy_device()));
        (param.set_require_grad(false), Some(Doubled { factor }))
    }
}

#[test]
fn reparameterizations_that_cannot_be_cast_are_refused() {
    let doubled = Net::new(1).apply_reparameterization(Double);
    let error = autocast(doubled.clone(), Precision::F16)
        .map(|_| ())
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("has a reparameterization (doubled)"),
        "{text}"
    );
    let group = ProcessGroup::single();
    let options = options(Precision::Bf16);
    let error = Parallel::new(doubled, AdamWConfig::new(), options, &group)
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(error, ParallelError::ReparameterizedInLowPrecision { .. }),
        "{error}"
    );
}

fn f16(loss_scale: LossScaleOptions) -> ParallelOptions {
    ParallelOptions {
        loss_scale,
        ..options(Precision::F16)
    }
}

/// Trains on inputs times `factor` of a rank and a step; returns the reports and the checksum after
/// every step.
fn steps(
    group: &ProcessGroup,
    options: ParallelOptions,
    factor: fn(usize, u64) -> f32,
) -> Vec<(StepReport, Checksum)> {
    let mut parallel = new::<Net>(options, group);
    let mut step = |step: u64| {
        let loss = loss(&parallel, step, factor(group.rank(), step));
        parallel.backward(loss).unwrap();
        let report = parallel.step(RATE).unwrap();
        let report = StepReport {
            waited: std::time::Duration::ZERO,
            // NaN equals nothing.
            gradient_norm: report.gradient_norm.filter(|norm| norm.is_finite()),
            ..report
        };
        (report, parallel.verify_replicas().unwrap())
    };
    (0..40).map(&mut step).collect()
}

#[test]
fn a_scale_that_is_too_large_shrinks_until_it_fits_on_all_ranks_alike() {
    let options = f16(LossScaleOptions {
        initial: 2f64.powi(35),
        ..LossScaleOptions::default()
    });
    for size in [1, 2] {
        let options = options.clone();
        let ranks = on_ranks(size, TransportKind::Auto, move |group| {
            steps(&group, options.clone(), |_, _| 1.0)
        });
        assert!(ranks.iter().all(|steps| *steps == ranks[0]));
        let steps = &ranks[0];
        let skipped = steps.iter().take_while(|(report, _)| !report.applied);
        let skipped = skipped.count();
        assert!((5..30).contains(&skipped), "{skipped}");
        assert_eq!(steps[0].0.loss_scale, Some(2f64.powi(35)));
        for pair in steps[..skipped].windows(2) {
            assert_eq!(pair[0].1, pair[1].1, "a skipped step changed something");
        }
        let (last, checksum) = &steps[39];
        assert_eq!(last.skipped_steps, skipped as u64);
        // The first overflow was tolerated.
        assert_eq!(last.loss_scale, Some(2f64.powi(36 - skipped as i32)));
        assert!(last.applied && last.gradient_norm.is_some());
        assert_ne!(checksum, &steps[0].1);
    }
}

#[test]
fn overflow_on_one_rank_is_skipped_by_all() {
    let factor = |rank: usize, step: u64| {
        if rank == 1 && [3, 7].contains(&step) {
            f32::INFINITY
        } else {
            1.0
        }
    };
    let ranks = on_ranks(2, TransportKind::Auto, move |group| {
        steps(&group, options(Precision::F16), factor)
    });
    assert_eq!(ranks[0], ranks[1]);
    let steps = &ranks[0];
    for (index, (report, checksum)) in steps.iter().enumerate() {
        let bad = [3, 7].contains(&index);
        assert_eq!(report.applied, !bad);
        assert_eq!(index > 0 && *checksum == steps[index - 1].1, bad);
        let scale = if index <= 7 { SCALE } else { SCALE / 2.0 };
        assert_eq!(report.loss_scale, Some(scale));
    }
    assert_eq!(steps[39].0.skipped_steps, 2);
}

#[test]
fn a_model_that_always_overflows_is_an_error() {
    let options = f16(LossScaleOptions {
        initial: 4.0,
        floor: 2.0,
        give_up_after: 3,
        ..LossScaleOptions::default()
    });
    let mut parallel = new::<Net>(options, &ProcessGroup::single());
    let mut outcomes = Vec::new();
    for step in 0..5 {
        let loss = loss(&parallel, step, f32::NAN);
        parallel.backward(loss).unwrap();
        outcomes.push(parallel.step(RATE));
    }
    // One is tolerated, one lowers the scale to the floor, three more are too many.
    assert!(outcomes[..4].iter().all(Result::is_ok));
    let error = outcomes[4].as_ref().unwrap_err().to_string();
    assert!(error.contains("3 steps in a row"), "{error}");
}

#[test]
fn clipping_and_accumulation_go_by_the_unscaled_gradients() {
    let norm = |precision, accumulate: usize| {
        let options = ParallelOptions {
            accumulate,
            clip_norm: Some(0.01),
            ..options(precision)
        };
        let mut parallel = new::<Net>(options, &ProcessGroup::single());
        for _ in 0..accumulate {
            let loss = loss(&parallel, 0, 1.0);
            parallel.backward(loss).unwrap();
        }
        let report = parallel.step(RATE).unwrap();
        assert!(report.clipped && report.applied);
        report.gradient_norm.unwrap()
    };
    let expected = norm(Precision::F32, 1);
    for accumulate in [1, 3] {
        let found = norm(Precision::F16, accumulate);
        assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
    }
}

#[test]
fn ranks_with_another_precision_are_refused() {
    let errors = on_ranks(2, TransportKind::Auto, |group| {
        let precision = [Precision::Bf16, Precision::F16][group.rank()];
        let created = Parallel::new(Net::new(1), AdamWConfig::new(), options(precision), &group);
        created.map(|_| ()).unwrap_err().to_string()
    });
    assert!(
        errors[0].contains("bf16") && errors[0].contains("f16 with"),
        "{}",
        errors[0]
    );
}

#[test]
fn frozen_normalizations_keep_their_digits() {
    let mut model = Normed::new(1);
    model.norm = model.norm.no_grad();
    let before = value_at(&model, "norm.gamma");
    let options = ParallelOptions {
        precision: Precision::Bf16,
        ..ParallelOptions::default()
    };
    let group = ProcessGroup::single();
    let training = Parallel::new(model, AdamWConfig::new(), options, &group).unwrap();
    assert_eq!(value_at(&training.valid().unwrap(), "norm.gamma"), before);
    assert_eq!(
        value_at(&training.into_model().unwrap(), "norm.gamma"),
        before
    );
}
