//! Restores optimizer state: a fused optimizer takes the values, Burn's build their own from them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use burn::optim::{DynState, StateSink, StateSource};
use burn::tensor::{DType, Device};
use serde_json::{Value, json};

use super::{ROOT, StateSourceRead, optimizer_name, read_owned};
use crate::flat;
use crate::parallel::groups::StepRule;
use crate::parallel::optimizer::{KeptState, OptimizerState};
use crate::parallel::{ParallelError, ParameterSpec};

/// Rebuilds this rank's optimizer state from `source`. A parameter that `source` has no state for
/// starts without.
///
/// If parameters are `cut` over the ranks, Burn's element-wise optimizers see this rank's part,
/// flat; others see the whole parameter in its shape.
pub(in crate::parallel) fn restore_optimizer(
    (parameters, owned): (&[ParameterSpec], &[Range<usize>]),
    optimizer: &mut OptimizerState,
    source: &dyn StateSourceRead,
    cut: bool,
) -> Result<(), ParallelError> {
    let names = source.names();
    for (index, (parameter, owned)) in parameters.iter().zip(owned).enumerate() {
        let failed = |reason: String| ParallelError::restore(&parameter.path, reason);
        if owned.is_empty() && parameter.num_elements() > 0 {
            optimizer.set_state(index, None);
            continue;
        }
        let choice = optimizer.choice(index);
        let flat = cut && choice.is_some_and(|choice| choice.whole.is_none());
        let saved = Saved::of(parameter, &names, source, flat);
        let state = match choice {
            Some(choice) if !saved.is_empty() => {
                Some(saved.restore(choice, owned, optimizer.device()))
            }
            _ => None,
        };
        optimizer.set_state(index, state.transpose().map_err(failed)?);
    }
    Ok(())
}

/// The saved optimizer state of one parameter.
struct Saved<'a> {
    parameter: &'a ParameterSpec,
    source: &'a dyn StateSourceRead,
    flat: bool,
    /// The optimizer's name of each tensor, and its name in the source.
    tensors: Vec<(&'a str, &'a str)>,
    scalars: BTreeMap<String, Value>,
}

impl<'a> Saved<'a> {
    fn of(
        parameter: &'a ParameterSpec,
        names: &'a [String],
        source: &'a dyn StateSourceRead,
        flat: bool,
    ) -> Self {
        let prefix = optimizer_name(&parameter.path, "");
        let leaf = |name: &'a str| Some((name.strip_prefix(&prefix)?, name));
        let scalar = |(name, value): (&String, &Value)| {
            Some((name.strip_prefix(&prefix)?.to_owned(), value.clone()))
        };
        Self {
            parameter,
            source,
            flat,
            tensors: names.iter().filter_map(|name| leaf(name)).collect(),
            scalars: source.scalars().iter().filter_map(scalar).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.tensors.is_empty() && self.scalars.is_empty()
    }

    fn restore(
        &self,
        choice: &StepRule,
        owned: &Range<usize>,
        device: &Device,
    ) -> Result<KeptState, String> {
        match &choice.fused {
            Some(fused) => {
                let mut tensors = BTreeMap::new();
                for (leaf, name) in &self.tensors {
                    let values = read_owned(self.source, name, self.parameter, owned)?;
                    tensors.insert((*leaf).to_owned(), flat::put(values, device));
                }
                let scalars = self.scalars.iter();
                let scalars = scalars.map(|(leaf, value)| (leaf.clone(), plain(value)));
                fused
                    .restore(tensors, &scalars.collect())
                    .map(KeptState::fused)
                    .ok_or_else(another_optimizer)
            }
            None => self.rebuild(choice, owned, device).map(KeptState::Burn),
        }
    }

    /// Lets Burn's optimizer build its state.
    fn rebuild(
        &self,
        choice: &StepRule,
        owned: &Range<usize>,
        device: &Device,
    ) -> Result<DynState, String> {
        let under_root = |leaf: &str| format!("{ROOT}.{leaf}");
        let mut wanted = BTreeSet::new();
        let mut scalars = BTreeMap::new();
        for (leaf, value) in &self.scalars {
            let value = serde_json::from_value(tagged(value))
                .map_err(|error| format!("`{leaf}` is not a number: {error}"))?;
            scalars.insert(under_root(leaf), value);
            wanted.insert(under_root(leaf));
        }
        let mut state = StateSource::new(scalars);
        for (leaf, name) in &self.tensors {
            let data = match self.flat {
                true => self.source.read_part(name, owned.clone())?,
                false => self.source.read(name)?,
            };
            state.insert_tensor(under_root(leaf), data);
            wanted.insert(under_root(leaf));
        }
        let rank = match self.flat {
            true => 1,
            false => self.parameter.shape.len(),
        };
        let in_double = self.parameter.dtype == crate::DType::F64;
        // An optimizer ignores unknown values, so its result is checked.
        let rebuilt = contained::run(|| {
            let optimizer = &choice.optimizer;
            let rebuilt = match choice.in_double.filter(|_| in_double) {
                Some(rebuild) => rebuild(rank, ROOT, &mut state, device)?,
                None => optimizer.state_unflatten(rank, ROOT, &mut state, device)?,
            };
            let mut sink = StateSink::default();
            optimizer.state_flatten(ROOT, &rebuilt, &mut sink);
            let is_double = sink
                .tensors
                .iter()
                .all(|(_, data)| data.dtype() == DType::F64);
            let tensors = sink.tensors.into_iter().map(|(name, _)| name);
            let scalars = sink.scalars.into_iter().map(|(name, _)| name);
            let all = tensors.chain(scalars).collect::<BTreeSet<_>>();
            (all == wanted).then_some((rebuilt, is_double))
        });
        let rebuilt = rebuilt.ok().flatten();
        let (rebuilt, is_double) = rebuilt.ok_or_else(another_optimizer)?;
        if in_double && !is_double {
            // The next step would mix types, and digits are already lost.
            return Err(
                "the parameter is f64, but its optimizer reads its state as f32. Use one of Burn's \
                 optimizer configurations, or one that reads the state as saved"
                    .to_owned(),
            );
        }
        Ok(rebuilt)
    }
}

/// The tag of whole numbers in the state of Burn's optimizers. Fused optimizers store plain
/// numbers.
const TAG: &str = "UInt";

fn plain(value: &Value) -> Value {
    value.get(TAG).unwrap_or(value).clone()
}

fn tagged(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_u64() => json!({ TAG: number }),
        other => other.clone(),
    }
}

fn another_optimizer() -> String {
    "the checkpoint's optimizer state belongs to another optimizer".to_owned()
}
