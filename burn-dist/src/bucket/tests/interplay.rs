//! Combines everything that can meet in one step, and compares with sums computed here: kept
//! gradients, whole parameters, several sets of shards, accumulation, gradients on some ranks only,
//! and an overflow. Recycled memory is NaN in tests, so an unwritten element shows.

use proptest::prelude::*;

use super::*;
use crate::group::GroupOptions;

#[derive(Clone, Debug)]
struct Case {
    keep: KeptGradients,
    /// Number of sets of shards, and of ranks in each.
    sets: usize,
    ranks: usize,
    accumulate: usize,
    /// Whether gradients stay on a device.
    on_device: bool,
    /// Length of each parameter, and whether it stays whole.
    parameters: Vec<(usize, bool)>,
    limit: usize,
    seed: usize,
}

const STEPS: usize = 3;
/// The step in which one rank has an infinite gradient.
const OVERFLOWS: usize = 1;

impl Case {
    fn world(&self) -> usize {
        self.sets * self.ranks
    }

    /// How many times a rank uses a parameter in a micro-batch.
    fn uses(&self, step: usize, micro_batch: usize, rank: usize, parameter: usize) -> usize {
        let mixed = self.seed + 7 * step + 11 * micro_batch + 13 * rank + 17 * parameter;
        mixed.wrapping_mul(0x9e37_79b9) / 64 % 3
    }

    /// The gradient of each use: multiples of the number of ranks, so that means have no remainder.
    fn gradient(&self, step: usize, rank: usize, parameter: usize) -> Vec<f32> {
        let (len, _) = self.parameters[parameter];
        let value = |i: usize| ((i + step + 2 * rank + 3 * parameter) % 7) as f32 - 3.0;
        (0..len).map(|i| value(i) * self.world() as f32).collect()
    }

    /// The mean over ranks of each parameter's gradient, if any rank has one.
    fn expected(&self, step: usize) -> Vec<Option<Vec<f32>>> {
        let of = |parameter: usize| {
            let mut sum: Option<Vec<f32>> = None;
            for rank in 0..self.world() {
                let all = (0..self.accumulate).map(|m| self.uses(step, m, rank, parameter));
                let uses = all.sum::<usize>() as f32;
                if uses == 0.0 {
                    continue;
                }
                let gradient = self.gradient(step, rank, parameter);
                let sum = sum.get_or_insert_with(|| vec![0.0; gradient.len()]);
                for (sum, value) in sum.iter_mut().zip(gradient) {
                    *sum += uses * value / self.world() as f32;
                }
            }
            sum
        };
        (0..self.parameters.len()).map(of).collect()
    }

    fn reducer(&self, all: &ProcessGroup) -> Reducer {
        let (group, replicas) = match self.sets {
            1 => (all.clone(), None),
            _ => {
                let (set, place) = (all.rank() / self.ranks, all.rank() % self.ranks);
                let within = all.split(set as u64, place as u64).unwrap();
                let across = all.split(place as u64, set as u64).unwrap();
                (within, Some(across))
            }
        };
        let spec = |(index, (len, _)): (usize, &(usize, bool))| ParameterSpec {
            path: format!("p{index}"),
            shape: vec![*len],
            dtype: DType::F32,
        };
        let parameters = self.parameters.iter().enumerate().map(spec).collect();
        let whole: Vec<bool> = self.parameters.iter().map(|(_, whole)| *whole).collect();
        let sizes = BucketSizes {
            first: self.limit,
            others: self.limit,
        };
        let partition = Partition::new(&group, parameters, &whole, sizes, self.keep).unwrap();
        let there = resident::there(&group, replicas.as_ref());
        let partition = partition.replicated(replicas);
        match self.on_device {
            true => resident::on_device(partition, there),
            false => in_host_memory(partition),
        }
    }

    fn backward(&self, reducer: &Reducer, step: usize, micro_batch: usize, rank: usize) {
        let uses = |parameter| self.uses(step, micro_batch, rank, parameter);
        for parameter in 0..self.parameters.len() {
            (0..uses(parameter)).for_each(|_| reducer.used(parameter));
        }
        let last = micro_batch + 1 == self.accumulate;
        reducer.begin_backward(last).unwrap();
        for parameter in (0..self.parameters.len()).rev() {
            for _ in 0..uses(parameter) {
                let mut gradient = self.gradient(step, rank, parameter);
                if step == OVERFLOWS && rank + 1 == self.world() {
                    gradient[0] = f32::INFINITY;
                }
                let gradient = Tensor::from_floats(gradient.as_slice(), &Device::flex());
                reducer.collect(parameter, gradient);
                reducer.released(parameter);
            }
        }
        reducer.end_backward().unwrap();
    }

    /// Whether the last rank has a gradient at all in the step that overflows.
    fn overflows(&self) -> bool {
        let parameters = 0..self.parameters.len();
        let mut all = parameters.flat_map(|p| (0..self.accumulate).map(move |m| (p, m)));
        all.any(|(p, m)| self.uses(OVERFLOWS, m, self.world() - 1, p) > 0)
    }

    /// The norms of all steps.
    fn run(&self, all: &ProcessGroup) -> Vec<u64> {
        let reducer = self.reducer(all);
        let step = |step: usize| {
            for micro_batch in 0..self.accumulate {
                self.backward(&reducer, step, micro_batch, all.rank());
            }
            wait(&reducer);
            let norm = reducer.norm().unwrap();
            if step == OVERFLOWS {
                assert_eq!(norm.is_finite(), !self.overflows());
            } else {
                self.check(&reducer, step, norm);
            }
            reducer.reset();
            norm.to_bits()
        };
        (0..STEPS).map(step).collect()
    }

    fn check(&self, reducer: &Reducer, step: usize, norm: f64) {
        let mut squares = 0.0;
        for (parameter, expected) in self.expected(step).into_iter().enumerate() {
            let found = result(reducer, parameter);
            let Some(expected) = expected else {
                assert_eq!(found, None, "nobody has a gradient of p{parameter}");
                continue;
            };
            let own = reducer.owned()[parameter].clone();
            assert_eq!(found.unwrap_or_default(), expected[own], "p{parameter}");
            squares += expected.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
        }
        // On a device squares are summed in f32.
        let exact = if self.on_device { 1e-5 } else { 1e-9 };
        assert!((norm - squares.sqrt()).abs() <= exact * norm, "{norm}");
    }
}

fn case() -> impl Strategy<Value = Case> {
    let keep = prop_oneof![
        Just((KeptGradients::Whole, 1)),
        Just((KeptGradients::Scattered, 1)),
        Just((KeptGradients::Scattered, 2)),
        Just((KeptGradients::Sharded, 1)),
        Just((KeptGradients::Sharded, 2)),
        Just((KeptGradients::Sharded, 3)),
    ];
    let parameters = prop::collection::vec((1usize..70, any::<bool>()), 1..9);
    let small = (1usize..4, 1usize..4, any::<bool>(), 1usize..600);
    (keep, small, parameters, 0usize..1000).prop_map(
        |((keep, sets), (ranks, accumulate, on_device, limit), parameters, seed)| Case {
            keep,
            sets,
            ranks,
            accumulate,
            on_device,
            parameters,
            limit,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_rank_has_the_mean_of_what_it_owns(case in case()) {
        let groups = match case.world() {
            1 => vec![ProcessGroup::single()],
            size => ProcessGroup::in_process(size, &GroupOptions::default()).unwrap(),
        };
        let norms: Vec<_> = std::thread::scope(|scope| {
            let run = |group: ProcessGroup| {
                let case = &case;
                scope.spawn(move || case.run(&group))
            };
            let threads: Vec<_> = groups.into_iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        prop_assert!(norms.iter().all(|own| *own == norms[0]), "{norms:?}");
    }
}
