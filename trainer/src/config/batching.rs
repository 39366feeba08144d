//! Batch sizes: `global batch = micro-batch × accumulation × world size`, or × virtual ranks.
//! Checks all, and derives one that is missing.

use std::fmt;

use super::error::Fault;
use super::sections::{ParallelConfig, TrainConfig};

/// Global batch if the configuration sets no batch size.
const DEFAULT_GLOBAL: usize = 64;
/// Maximum global batch. A larger one is a typing error, and its buffers would not fit.
const MAX_GLOBAL: usize = 1 << 24;

/// Batch sizes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Images per step over all ranks.
    pub global: usize,
    /// Images per micro-batch.
    pub micro: usize,
    /// Micro-batches per rank, or virtual rank, and step.
    pub accumulate: usize,
}

impl Batching {
    /// Number of ranks, or of virtual ranks.
    pub fn ranks(&self) -> usize {
        self.global / (self.micro * self.accumulate).max(1)
    }

    /// The sizes for people: `96 = 24 × 2 accumulation steps × 2 ranks`, without factors of 1.
    pub fn words(&self, parallel: &ParallelConfig) -> String {
        let factors = [
            (self.accumulate, "accumulation steps"),
            (self.ranks(), name_of_ranks(parallel)),
        ];
        let factors = factors.into_iter().filter(|(number, _)| *number > 1);
        let factors: Vec<String> = factors
            .map(|(number, name)| format!(" × {number} {name}"))
            .collect();
        match factors.is_empty() {
            true => self.global.to_string(),
            false => format!("{} = {}{}", self.global, self.micro, factors.concat()),
        }
    }

    /// The batch sizes for `world` ranks.
    pub fn resolve(
        train: &TrainConfig,
        parallel: &ParallelConfig,
        world: usize,
    ) -> Result<Self, Fault> {
        for (key, value) in [
            ("train.batch_size", train.batch_size),
            ("train.micro_batch_size", train.micro_batch_size),
            ("train.accumulate", train.accumulate),
        ] {
            if value.is_some_and(|value| value == 0 || value > MAX_GLOBAL) {
                return Err(Fault::in_key(
                    key,
                    format!("`{key}` must be from 1 to {MAX_GLOBAL}"),
                ));
            }
        }
        if let Some(count) = parallel.virtual_ranks
            && count < world
        {
            let text = format!("{world} ranks cannot share {count} virtual ranks");
            let help = format!("start at most {count} ranks, or raise parallel.virtual_ranks");
            return Err(Fault::in_key("parallel.virtual_ranks", text).help(help));
        }
        let ranks = Ranks {
            count: parallel.virtual_ranks.unwrap_or(world),
            name: name_of_ranks(parallel),
        };
        match (train.batch_size, train.micro_batch_size) {
            (None, Some(micro)) => Self::grow(micro, train.accumulate.unwrap_or(1), &ranks),
            (global, None) => {
                let global = global.unwrap_or(DEFAULT_GLOBAL);
                let accumulate = train.accumulate.unwrap_or(1);
                let parts = accumulate.saturating_mul(ranks.count);
                divide(global, parts, &format!("{accumulate} × {ranks}")).map(|micro| Self {
                    global,
                    micro,
                    accumulate,
                })
            }
            (Some(global), Some(micro)) => {
                let parts = micro.saturating_mul(ranks.count);
                let accumulate = divide(
                    global,
                    parts,
                    &format!("micro-batches of {micro} × {ranks}"),
                )?;
                match train.accumulate {
                    Some(wanted) if wanted != accumulate => Err(Fault::in_key(
                        "train.batch_size",
                        format!(
                            "`train.batch_size` = {global} is not micro_batch_size {micro} × \
                             accumulate {wanted} × {ranks} = {}",
                            parts.saturating_mul(wanted)
                        ),
                    )
                    .help("remove one of the three; it is derived from the other two")),
                    _ => Ok(Self {
                        global,
                        micro,
                        accumulate,
                    }),
                }
            }
        }
    }

    /// The batch sizes for `world` ranks with the global batch of `first` ranks, and micro-batches
    /// that are not larger. Virtual ranks keep theirs.
    pub fn kept(
        train: &TrainConfig,
        parallel: &ParallelConfig,
        (first, world): (usize, usize),
    ) -> Result<Self, Fault> {
        if parallel.virtual_ranks.is_some() {
            return Self::resolve(train, parallel, world);
        }
        let before = Self::resolve(train, parallel, first)?;
        Self::keeping(before.global, before.micro, world)
    }

    /// The batch sizes for `world` ranks with this global batch, and micro-batches of at most
    /// `micro`.
    pub fn keeping(global: usize, micro: usize, world: usize) -> Result<Self, Fault> {
        let share = divide(global, world, &format!("{world} ranks"))?;
        let fits = |accumulate: &usize| {
            share.is_multiple_of(*accumulate) && share / accumulate <= micro.max(1)
        };
        // A micro-batch of 1 always fits.
        let accumulate = (1..=share).find(fits).unwrap_or(share);
        Ok(Self {
            global,
            micro: share / accumulate,
            accumulate,
        })
    }

    fn grow(micro: usize, accumulate: usize, ranks: &Ranks) -> Result<Self, Fault> {
        let global = micro.saturating_mul(accumulate).saturating_mul(ranks.count);
        if global > MAX_GLOBAL {
            return Err(Fault::in_key(
                "train.micro_batch_size",
                format!(
                    "micro_batch_size × accumulate × {ranks} exceeds the maximum of {MAX_GLOBAL}"
                ),
            ));
        }
        Ok(Self {
            global,
            micro,
            accumulate,
        })
    }
}

/// The ranks, or virtual ranks, that share a global batch.
struct Ranks {
    count: usize,
    name: &'static str,
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, self.name)
    }
}

fn name_of_ranks(parallel: &ParallelConfig) -> &'static str {
    match parallel.virtual_ranks {
        Some(_) => "virtual ranks",
        None => "ranks",
    }
}

/// `global / parts`, which must be an integer.
fn divide(global: usize, parts: usize, what: &str) -> Result<usize, Fault> {
    if parts > 0 && parts <= global && global.is_multiple_of(parts) {
        return Ok(global / parts);
    }
    let below = global / parts.max(1) * parts;
    let above = below.saturating_add(parts);
    let near = if below == 0 {
        above.to_string()
    } else {
        format!("{below} or {above}")
    };
    Err(Fault::in_key(
        "train.batch_size",
        format!("a global batch of {global} cannot be split into {what}"),
    )
    .help(format!("set train.batch_size to {near}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_ranks_keep_the_global_batch() {
        for (global, micro, world, expected) in [
            (64, 16, 4, Some((16, 1))),
            (64, 16, 2, Some((16, 2))),
            (64, 16, 1, Some((16, 4))),
            (64, 16, 8, Some((8, 1))),
            (96, 24, 3, Some((16, 2))),
            (6, 3, 1, Some((3, 2))),
            (7, 4, 1, Some((1, 7))),
            (64, 16, 3, None),
            (2, 1, 4, None),
        ] {
            let kept = Batching::keeping(global, micro, world).ok();
            let sizes = kept.map(|kept| (kept.micro, kept.accumulate));
            assert_eq!(sizes, expected, "{global} by {world}");
            if let Some(kept) = kept {
                assert_eq!((kept.global, kept.ranks()), (global, world));
            }
        }
        let train = TrainConfig {
            micro_batch_size: Some(8),
            accumulate: Some(2),
            ..TrainConfig::default()
        };
        let plain = ParallelConfig::default();
        let kept = Batching::kept(&train, &plain, (4, 2)).unwrap();
        assert_eq!((kept.global, kept.micro, kept.accumulate), (64, 8, 4));
        let parallel = ParallelConfig {
            virtual_ranks: Some(4),
            ..plain
        };
        let kept = Batching::kept(&train, &parallel, (4, 3)).unwrap();
        assert_eq!((kept.global, kept.micro, kept.accumulate), (64, 8, 2));
        assert!(Batching::kept(&train, &parallel, (4, 5)).is_err());
    }

    #[test]
    fn only_factors_that_matter_are_named() {
        let words = |global, micro, accumulate| {
            let batching = Batching {
                global,
                micro,
                accumulate,
            };
            batching.words(&ParallelConfig::default())
        };
        assert_eq!(words(96, 96, 1), "96");
        assert_eq!(words(96, 48, 2), "96 = 48 × 2 accumulation steps");
        assert_eq!(words(96, 48, 1), "96 = 48 × 2 ranks");
        assert_eq!(words(96, 24, 2), "96 = 24 × 2 accumulation steps × 2 ranks");
    }

    fn resolve(
        sizes: (Option<usize>, Option<usize>, Option<usize>),
        world: usize,
    ) -> Result<(usize, usize, usize), String> {
        let train = TrainConfig {
            batch_size: sizes.0,
            micro_batch_size: sizes.1,
            accumulate: sizes.2,
            ..TrainConfig::default()
        };
        Batching::resolve(&train, &ParallelConfig::default(), world)
            .map(|batching| (batching.global, batching.micro, batching.accumulate))
            .map_err(|fault| format!("{} | {}", fault.message, fault.help.unwrap_or_default()))
    }

    #[test]
    fn what_is_left_out_is_derived() {
        assert_eq!(resolve((None, None, None), 2), Ok((64, 32, 1)));
        assert_eq!(resolve((Some(96), None, None), 3), Ok((96, 32, 1)));
        assert_eq!(resolve((Some(96), None, Some(4)), 3), Ok((96, 8, 4)));
        assert_eq!(resolve((Some(96), Some(8), None), 3), Ok((96, 8, 4)));
        assert_eq!(resolve((None, Some(8), None), 3), Ok((24, 8, 1)));
        assert_eq!(resolve((None, Some(8), Some(2)), 3), Ok((48, 8, 2)));
        assert_eq!(resolve((Some(48), Some(8), Some(2)), 3), Ok((48, 8, 2)));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_sizes_that_do() {
        let error = resolve((Some(64), None, None), 3).unwrap_err();
        assert!(error.contains("train.batch_size to 63 or 66"), "{error}");
        let error = resolve((Some(2), None, None), 3).unwrap_err();
        assert!(error.contains("train.batch_size to 3"), "{error}");
        let error = resolve((Some(50), Some(8), Some(2)), 3).unwrap_err();
        assert!(error.contains("48 or 72"), "{error}");
        let error = resolve((Some(96), Some(8), Some(2)), 3).unwrap_err();
        assert!(error.contains("= 48"), "{error}");
        assert!(resolve((Some(0), None, None), 1).is_err());
        assert!(resolve((None, Some(usize::MAX), None), 2).is_err());
        assert!(resolve((None, Some(1 << 23), Some(1 << 23)), 1 << 20).is_err());
    }

    #[test]
    fn virtual_ranks_share_a_batch_whatever_the_ranks() {
        let parallel = ParallelConfig {
            virtual_ranks: Some(4),
            ..ParallelConfig::default()
        };
        let train = TrainConfig {
            batch_size: Some(96),
            ..TrainConfig::default()
        };
        for world in 1..=4 {
            let batching = Batching::resolve(&train, &parallel, world).unwrap();
            assert_eq!(batching.words(&parallel), "96 = 24 × 4 virtual ranks");
        }
        let fault = Batching::resolve(&train, &parallel, 5).unwrap_err();
        assert_eq!(fault.message, "5 ranks cannot share 4 virtual ranks");
        let train = TrainConfig {
            batch_size: Some(90),
            ..TrainConfig::default()
        };
        let fault = Batching::resolve(&train, &parallel, 2).unwrap_err();
        assert!(
            fault.message.contains("1 × 4 virtual ranks"),
            "{}",
            fault.message
        );
    }

    proptest::proptest! {
        #[test]
        fn a_resolved_batch_always_multiplies_out(
            global in proptest::option::of(0usize..500),
            micro in proptest::option::of(0usize..50),
            accumulate in proptest::option::of(0usize..10),
            world in 1usize..9,
        ) {
            if let Ok((g, m, a)) = resolve((global, micro, accumulate), world) {
                proptest::prop_assert_eq!(g, m * a * world);
                proptest::prop_assert!(global.is_none_or(|global| global == g));
                proptest::prop_assert!(micro.is_none_or(|micro| micro == m));
                proptest::prop_assert!(accumulate.is_none_or(|accumulate| accumulate == a));
                proptest::prop_assert!(m > 0 && a > 0);
            }
        }
    }
}
