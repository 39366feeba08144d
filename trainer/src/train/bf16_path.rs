//! The path of bf16 products on CPUs. It decides the order of sums, so all ranks of a run take the
//! same, and a resumed run that of its checkpoint.

use std::time::Duration;

use burn::tensor::Device;
use burn_dist::ProcessGroup;
use burn_dist::checkpoint::Manifest;
use burn_dist::parallel::Precision;
use kernels::KernelError;
use kernels::cpu::{BF16_VARIABLE, Bf16Path, Kernels};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::TrainError;
use crate::system::compute::bf16_kernels;
use crate::system::output::complain;
use crate::train::progress::Meta;

/// The message of a rank to the others.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Own {
    /// The path that the environment asks for.
    forced: Option<String>,
    /// The path of the checkpoint. Only from rank 0.
    before: Option<String>,
    /// The paths of the CPU. On rank 0 the fastest first, unless another one is forced.
    available: Vec<String>,
}

/// Chooses the path of bf16 products for all ranks. A collective call if the precision is bf16.
///
/// The environment of a rank goes first, then the path of the checkpoint, then the fastest path of
/// rank 0.
///
/// # Errors
/// Fails on all ranks if the environment asks for a path that one of them lacks.
pub(crate) fn agree(
    config: &Config,
    device: &Device,
    group: &ProcessGroup,
    checkpoint: Option<&Manifest>,
) -> Result<(), TrainError> {
    if config.train.precision != Precision::Bf16 {
        return Ok(());
    }
    let kernels = bf16_kernels(config, device);
    let own = match kernels {
        None => Own::default(),
        Some(kernels) => {
            let checkpoint = checkpoint.filter(|_| group.rank() == 0);
            Own::of(kernels, checkpoint, group)?
        }
    };
    let message = serde_json::to_vec(&own).unwrap_or_default();
    let all = group.gather_bytes(&message)?;
    let all: Vec<Own> = all
        .iter()
        .map(|own| serde_json::from_slice(own).unwrap_or_default())
        .collect();
    let chosen = choose(&all)?;
    let (Some(kernels), Some(path)) = (kernels, chosen) else {
        return Ok(());
    };
    if let Some(before) = own.before.filter(|before| before != path.name()) {
        complain(&format!(
            "warning: the checkpoint's run computed products of bf16 by {before}, this one by {}. \
             Results differ by rounding",
            path.name()
        ));
    }
    Ok(kernels.set_bf16_path(path)?)
}

impl Own {
    fn of(
        kernels: &Kernels,
        checkpoint: Option<&Manifest>,
        group: &ProcessGroup,
    ) -> Result<Self, TrainError> {
        let forced = Bf16Path::from_env()?;
        let before = checkpoint.and_then(Meta::bf16_path_of);
        let mut available = Bf16Path::available(kernels.isa());
        // The others follow.
        if group.rank() == 0 && forced.is_none() && before.is_none() {
            let measured = Bf16Path::measured(kernels.isa());
            tracing::info!("{}", words(&measured));
            // Not all ranks may have the fastest one.
            let order = fastest_first(measured);
            let place = |path: &Bf16Path| order.iter().position(|other| other == path);
            available.sort_by_key(|path| place(path).unwrap_or(usize::MAX));
        }
        Ok(Self {
            forced: forced.map(|path| path.name().to_owned()),
            before: before.map(str::to_owned),
            available: available
                .iter()
                .map(|path| path.name().to_owned())
                .collect(),
        })
    }
}

/// The measured paths, the fastest first.
fn fastest_first(mut measured: Vec<(Bf16Path, Duration)>) -> Vec<Bf16Path> {
    let mut order = Vec::with_capacity(measured.len());
    while !measured.is_empty() {
        let best = Bf16Path::best(&measured);
        measured.retain(|(path, _)| *path != best);
        order.push(best);
    }
    order
}

/// A measurement in words.
fn words(measured: &[(Bf16Path, Duration)]) -> String {
    let times: Vec<_> = measured
        .iter()
        .map(|(path, time)| format!("{} {} µs", path.name(), time.as_micros()))
        .collect();
    format!(
        "a bf16 product of 256 × 256 × 256 takes {}",
        times.join(", ")
    )
}

/// The path for all ranks. `None` if rank 0 computes no products of bf16 on its CPU.
fn choose(all: &[Own]) -> Result<Option<Bf16Path>, KernelError> {
    let computing = || all.iter().filter(|own| !own.available.is_empty());
    let everywhere = |name: &String| computing().all(|own| own.available.contains(name));
    let Some(first) = all.first().filter(|own| !own.available.is_empty()) else {
        return Ok(None);
    };
    let common = || first.available.iter().filter(|name| everywhere(name));
    if let Some(forced) = computing().find_map(|own| own.forced.as_ref()) {
        let path = Bf16Path::parse(forced)?;
        if everywhere(forced) {
            return Ok(Some(path));
        }
        let names: Vec<_> = common().map(String::as_str).collect();
        let missing = KernelError::Bf16Missing {
            path: path.name(),
            available: names.join(", "),
        };
        return Err(missing.of_variable(BF16_VARIABLE));
    }
    let before = first.before.iter().find(|name| everywhere(name));
    let name = before.or_else(|| common().next());
    name.map(|name| Bf16Path::parse(name)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_path_is_first_and_slow_ones_keep_their_places() {
        use Bf16Path::{Amx, Dot, F32};
        let took = |path, micros| (path, Duration::from_micros(micros));
        let order = fastest_first(vec![took(F32, 200), took(Dot, 330), took(Amx, 80)]);
        assert_eq!(order, [Amx, F32, Dot]);
        let order = fastest_first(vec![took(F32, 200), took(Dot, 90), took(Amx, 85)]);
        assert_eq!(order, [Dot, Amx, F32]);
    }

    fn own(available: &[&str]) -> Own {
        Own {
            available: available.iter().map(|name| (*name).to_owned()).collect(),
            ..Own::default()
        }
    }

    fn forcing(path: &str, available: &[&str]) -> Own {
        Own {
            forced: Some(path.to_owned()),
            ..own(available)
        }
    }

    fn after(path: &str, available: &[&str]) -> Own {
        Own {
            before: Some(path.to_owned()),
            ..own(available)
        }
    }

    #[test]
    fn all_ranks_take_the_fastest_of_rank_0_that_all_have() {
        let (new, old) = (["amx", "dot", "f32"], ["dot", "f32"]);
        let chosen = |all: &[Own]| choose(all).unwrap().map(Bf16Path::name);
        assert_eq!(chosen(&[own(&new), own(&new)]), Some("amx"));
        assert_eq!(chosen(&[own(&new), own(&old)]), Some("dot"));
        assert_eq!(chosen(&[own(&["f32", "dot"]), own(&new)]), Some("f32"));
        assert_eq!(chosen(&[own(&new), own(&["f32"])]), Some("f32"));
        assert_eq!(chosen(&[own(&[]), own(&[])]), None);
        assert_eq!(chosen(&[own(&new), own(&[])]), Some("amx"));
    }

    #[test]
    fn the_checkpoint_goes_before_speed_and_the_environment_before_the_checkpoint() {
        let all = ["amx", "dot", "f32"];
        let chosen = |all: &[Own]| choose(all).unwrap().map(Bf16Path::name);
        assert_eq!(chosen(&[after("dot", &all), own(&all)]), Some("dot"));
        assert_eq!(
            chosen(&[after("amx", &["dot", "f32"]), own(&all)]),
            Some("dot")
        );
        assert_eq!(
            chosen(&[after("dot", &all), forcing("f32", &all)]),
            Some("f32")
        );
    }

    #[test]
    fn a_path_that_one_rank_lacks_cannot_be_forced() {
        let all = [forcing("amx", &["amx", "dot", "f32"]), own(&["dot", "f32"])];
        let error = choose(&all).unwrap_err().to_string();
        assert!(
            error.contains("amx") && error.contains("dot, f32"),
            "{error}"
        );
    }
}
