//! Virtual ranks: any number of ranks gets the same bits under every strategy and transport.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, LambConfig};
use burn::tensor::Tensor;
use burn::tensor::activation::tanh;
use burn_dist::autograd::boundary;
use burn_dist::parallel::{
    BucketSizes, Checksum, EmaOptions, Parallel, ParallelError, ParallelOptions,
    ParameterOptimizer, ShardWithin, Share, Strategy,
};
use burn_dist::{Compression, ProcessGroup, TransportKind};
use proptest::prelude::*;

use crate::device;
use crate::models::{FEATURES, Fill, batch, on_ranks, values};

const STEPS: u64 = 3;

/// A model with running statistics, and a layer that not every virtual rank uses.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: Option<BatchNorm>,
    last: Linear,
    extra: Linear,
}

impl Net {
    fn new(seed: u64, hidden: usize) -> Self {
        Self::with(seed, hidden, true)
    }

    fn with(seed: u64, hidden: usize, normed: bool) -> Self {
        let device = device().autodiff();
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
        let net = Self {
            first: linear(FEATURES, hidden),
            norm: normed.then(|| BatchNormConfig::new(hidden).init(&device)),
            last: linear(hidden, 1),
            extra: linear(hidden, 1),
        };
        net.map(&mut Fill { seed })
    }

    fn loss(&self, (inputs, targets): (Tensor<2>, Tensor<2>), uses_extra: bool) -> Tensor<1> {
        let x = tanh(self.first.forward(boundary(inputs)));
        let x = match &self.norm {
            Some(norm) => norm.forward(boundary(x)),
            None => x,
        };
        let y = self.last.forward(boundary(x.clone()));
        let y = match uses_extra {
            true => y + self.extra.forward(boundary(x)),
            false => y,
        };
        (y - targets).square().mean()
    }
}

#[derive(Clone, Debug)]
struct Case {
    count: usize,
    hidden: usize,
    accumulate: usize,
    clip_norm: Option<f64>,
    whole: bool,
    weighted: bool,
    ema: bool,
    /// Whether the model has running statistics.
    normed: bool,
    /// Whether only some virtual ranks use a layer.
    uneven: bool,
    buckets: usize,
}

/// All tensors of a state, their parts in order.
type State = BTreeMap<String, BTreeMap<usize, Vec<u8>>>;

/// What must not depend on the ranks.
#[derive(Debug, PartialEq)]
struct Outcome {
    checksums: Vec<Checksum>,
    norms: Vec<Option<u64>>,
    weights: Vec<Option<u64>>,
    statistics: Vec<Vec<(String, Vec<u32>)>>,
    states: Vec<State>,
}

impl Case {
    fn optimizer(&self) -> ParameterOptimizer {
        match self.whole {
            true => LambConfig::new().with_weight_decay(0.1).into(),
            false => AdamWConfig::new().with_weight_decay(0.1).into(),
        }
    }

    fn options(&self, strategy: Strategy) -> ParallelOptions {
        ParallelOptions {
            strategy,
            virtual_ranks: Some(self.count),
            accumulate: self.accumulate,
            clip_norm: self.clip_norm,
            buckets: BucketSizes {
                first: self.buckets,
                others: 2 * self.buckets,
            },
            ema: self.ema.then_some(EmaOptions {
                decay: 0.5,
                warmup: true,
            }),
            ..ParallelOptions::default()
        }
    }

    /// The micro-batch of a share; virtual ranks have different numbers of rows if it is weighted.
    fn batch(&self, step: u64, share: Share) -> ((Tensor<2>, Tensor<2>), f64) {
        let rows = match self.weighted {
            true => 2 + share.virtual_rank % 3,
            false => 3,
        };
        let start = (share.virtual_rank * self.accumulate + share.micro_batch) * 4;
        (batch(step, start..start + rows), rows as f64)
    }

    fn train(&self, group: &ProcessGroup, strategy: Strategy) -> Outcome {
        let model = Net::with(1 + group.rank() as u64, self.hidden, self.normed);
        let options = self.options(strategy);
        let mut parallel = Parallel::new(model, self.optimizer(), options, group).unwrap();
        let mut outcome = Outcome {
            checksums: Vec::new(),
            norms: Vec::new(),
            weights: Vec::new(),
            statistics: Vec::new(),
            states: Vec::new(),
        };
        for step in 0..STEPS {
            let mut calls = 0;
            while let Some(share) = parallel.next_share() {
                let (batch, rows) = self.batch(step, share);
                let uses_extra = match self.uneven {
                    true => (step as usize + share.virtual_rank).is_multiple_of(3),
                    false => step == 1,
                };
                let loss = parallel.model().loss(batch, uses_extra);
                match self.weighted {
                    true => parallel
                        .backward_weighted(loss.mul_scalar(rows), rows)
                        .unwrap(),
                    false => parallel.backward(loss).unwrap(),
                }
                calls += 1;
            }
            assert_eq!(calls, parallel.micro_batches());
            let report = parallel.step(0.02).unwrap();
            outcome.norms.push(report.gradient_norm.map(f64::to_bits));
            outcome.weights.push(report.weight.map(f64::to_bits));
            outcome.checksums.push(parallel.verify_replicas().unwrap());
            let bits = |(path, values): (String, Vec<f32>)| {
                (path, values.into_iter().map(f32::to_bits).collect())
            };
            let all = values(&parallel.valid().unwrap());
            let running = all.into_iter().filter(|(path, _)| path.contains("running"));
            outcome.statistics.push(running.map(bits).collect());
            outcome.states.push(state(&parallel));
        }
        outcome
    }

    /// The outcome of each rank, and the whole state.
    fn on(&self, ranks: usize, strategy: Strategy, transport: TransportKind) -> Outcome {
        let case = self.clone();
        let mut all = on_ranks(ranks, transport, move |group| case.train(&group, strategy));
        let mut first = all.remove(0);
        for other in all {
            assert_eq!(other.checksums, first.checksums);
            assert_eq!(other.norms, first.norms);
            assert_eq!(other.statistics, first.statistics);
            for (whole, share) in first.states.iter_mut().zip(other.states) {
                for (name, parts) in share {
                    whole.entry(name).or_default().extend(parts);
                }
            }
        }
        for state in &mut first.states {
            for parts in state.values_mut() {
                let whole: Vec<u8> = std::mem::take(parts).into_values().flatten().collect();
                parts.insert(0, whole);
            }
        }
        first
    }
}

/// This rank's share of the state.
fn state(parallel: &Parallel<Net>) -> State {
    let values = parallel.state().unwrap().read().unwrap();
    let whole = values
        .tensors
        .into_iter()
        .map(|(name, data)| (name, 0, data));
    let parts = values
        .parts
        .into_iter()
        .map(|part| (part.name, part.start, part.data));
    let mut state = State::new();
    for (name, start, data) in whole.chain(parts) {
        let bytes = data.as_bytes().to_vec();
        state.entry(name).or_default().insert(start, bytes);
    }
    for (name, value) in values.scalars {
        let bytes = value.to_string().into_bytes();
        state.entry(name).or_default().insert(0, bytes);
    }
    state
}

fn case() -> impl Strategy_<Value = Case> {
    let sizes = (1usize..=16, 1usize..20, 1usize..3, 64usize..2000);
    let flags = prop::array::uniform5(any::<bool>());
    let clip = prop_oneof![Just(None), Just(Some(0.05)), Just(Some(f64::INFINITY))];
    (sizes, flags, clip).prop_map(|(sizes, flags, clip_norm)| {
        let (count, hidden, accumulate, buckets) = sizes;
        let [whole, weighted, ema, normed, uneven] = flags;
        Case {
            count,
            hidden,
            accumulate,
            clip_norm,
            whole,
            weighted,
            ema,
            normed,
            uneven,
            buckets,
        }
    })
}

use proptest::strategy::Strategy as Strategy_;

fn transport() -> impl Strategy_<Value = TransportKind> {
    prop_oneof![Just(TransportKind::Auto), Just(TransportKind::Tcp)]
}

fn strategy() -> impl Strategy_<Value = Strategy> {
    prop::sample::select(Strategy::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_number_of_ranks_gets_the_same_bits(
        case in case(),
        ranks in 1usize..=16,
        strategy in strategy(),
        transport in transport(),
    ) {
        let ranks = ranks.min(case.count);
        // In stage 3 all ranks use the same layers.
        let uneven = case.uneven && strategy != Strategy::Zero3;
        let case = Case { uneven, ..case };
        let alone = case.on(1, Strategy::Ddp, TransportKind::Auto);
        let own = case.on(ranks, strategy, transport);
        prop_assert_eq!(own, alone);
    }
}

#[test]
fn as_many_ranks_as_virtual_ranks_and_any_fewer() {
    let case = Case {
        count: 12,
        hidden: 9,
        accumulate: 1,
        clip_norm: Some(0.1),
        whole: false,
        weighted: false,
        ema: true,
        normed: true,
        uneven: false,
        buckets: 200,
    };
    let alone = case.on(1, Strategy::Ddp, TransportKind::Auto);
    for (ranks, strategy) in [
        (12, Strategy::Ddp),
        (5, Strategy::Zero1),
        (8, Strategy::Zero2),
        (5, Strategy::Zero3),
    ] {
        let own = case.on(ranks, strategy, TransportKind::Auto);
        assert_eq!(own, alone, "{ranks} ranks, {strategy}");
    }
}

/// One virtual rank is plain training, and the mean over two is that of two plain ranks.
#[test]
fn one_virtual_rank_per_rank_is_plain_training() {
    for ranks in [1, 2] {
        let train = move |virtual_ranks| {
            on_ranks(ranks, TransportKind::Auto, move |group| {
                let options = ParallelOptions {
                    virtual_ranks,
                    clip_norm: Some(1.0),
                    ..ParallelOptions::default()
                };
                let adamw = AdamWConfig::new();
                let mut parallel = Parallel::new(Net::new(1, 8), adamw, options, &group).unwrap();
                for step in 0..STEPS {
                    let start = 4 * group.rank();
                    let loss = parallel.model().loss(batch(step, start..start + 4), true);
                    parallel.backward(loss).unwrap();
                    parallel.step(0.02).unwrap();
                }
                parallel.checksum().unwrap()
            })
        };
        assert_eq!(train(Some(ranks)), train(None), "{ranks} ranks");
    }
}

/// Dropped gradients leave no trace, neither in sums nor in running statistics.
#[test]
fn discarded_steps_leave_no_trace() {
    let train = |discards: bool| {
        on_ranks(2, TransportKind::Auto, move |group| {
            let options = ParallelOptions {
                virtual_ranks: Some(4),
                ..ParallelOptions::default()
            };
            let mut parallel =
                Parallel::new(Net::new(1, 8), AdamWConfig::new(), options, &group).unwrap();
            for step in 0..4 {
                let begins_and_gives_up = discards && step % 2 == 0;
                for done in [1, 2].into_iter().filter(|_| begins_and_gives_up) {
                    for _ in 0..done {
                        let loss = parallel.model().loss(batch(100 + step, 0..4), true);
                        parallel.backward(loss).unwrap();
                    }
                    parallel.discard().unwrap();
                }
                while let Some(share) = parallel.next_share() {
                    let start = 4 * share.virtual_rank;
                    let loss = parallel.model().loss(batch(step, start..start + 4), true);
                    parallel.backward(loss).unwrap();
                }
                parallel.step(0.02).unwrap();
            }
            values(&parallel.valid().unwrap())
        })
    };
    assert_eq!(train(true), train(false));
}

/// Of three virtual ranks, one rank has two and the other one.
#[test]
fn ranks_that_discard_at_different_places_fail() {
    let outcomes = on_ranks(2, TransportKind::Auto, |group| {
        let options = ParallelOptions {
            virtual_ranks: Some(3),
            ..ParallelOptions::default()
        };
        let mut parallel =
            Parallel::new(Net::new(1, 4), AdamWConfig::new(), options, &group).unwrap();
        let begin = |parallel: &mut Parallel<Net>, passes: usize| {
            for _ in 0..passes {
                let loss = parallel.model().loss(batch(0, 0..4), true);
                parallel.backward(loss).unwrap();
            }
        };
        let passes = parallel.micro_batches();
        begin(&mut parallel, passes);
        parallel.discard().unwrap();
        // This is all for one rank only.
        begin(&mut parallel, 1);
        parallel.discard().unwrap_err().to_string()
    });
    for error in outcomes {
        assert!(error.contains("discard after all micro-batches"), "{error}");
    }
}

#[test]
fn what_has_no_order_is_refused() {
    let group = ProcessGroup::single();
    let refuses = |change: fn(&mut ParallelOptions)| {
        let mut options = ParallelOptions {
            virtual_ranks: Some(2),
            ..ParallelOptions::default()
        };
        change(&mut options);
        let refused = Parallel::new(Net::new(1, 4), AdamWConfig::new(), options, &group);
        refused.unwrap_err().to_string()
    };
    assert!(refuses(|o| o.sync_batch_norm = true).contains("sync_batch_norm is on"));
    assert!(refuses(|o| o.compression = Compression::Bf16).contains("compression is bf16"));
    let within = refuses(|o| {
        o.strategy = Strategy::Zero1;
        o.shard_within = ShardWithin::Node;
    });
    assert!(within.contains("shard_within is node"), "{within}");
    assert!(refuses(|o| o.virtual_ranks = Some(0)).contains("0 virtual ranks"));
    let too_many = on_ranks(3, TransportKind::Auto, |group| {
        let options = ParallelOptions {
            virtual_ranks: Some(2),
            ..ParallelOptions::default()
        };
        let refused = Parallel::new(Net::new(1, 4), AdamWConfig::new(), options, &group);
        refused.unwrap_err().to_string()
    });
    for error in too_many {
        assert!(
            error.contains("3 ranks cannot share 2 virtual ranks"),
            "{error}"
        );
    }
}

#[test]
fn steps_are_whole() {
    let group = ProcessGroup::single();
    let options = ParallelOptions {
        virtual_ranks: Some(2),
        ..ParallelOptions::default()
    };
    let mut parallel = Parallel::new(Net::new(1, 4), AdamWConfig::new(), options, &group).unwrap();
    let loss = parallel.model().loss(batch(0, 0..4), true);
    parallel.backward(loss).unwrap();
    let early = parallel.step_early(0.1).unwrap_err();
    assert!(matches!(early, ParallelError::WholeStepsOnly), "{early}");
    let mut turns = parallel.join([1, 2]);
    assert!(matches!(
        turns.next(),
        Some(Err(ParallelError::WholeStepsOnly))
    ));
    assert!(turns.next().is_none());
    // The step goes on.
    let loss = parallel.model().loss(batch(0, 4..8), true);
    parallel.backward(loss).unwrap();
    assert_eq!(parallel.next_share(), None);
    parallel.step(0.1).unwrap();
}
