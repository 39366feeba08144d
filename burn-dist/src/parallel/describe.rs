//! The description of a model, which ranks compare before they train it together.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Flag, Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::replicas::is_lazy_and_trainable;
use super::{ParallelError, ParallelOptions, ParameterOptimizer, Precision, Strategy};
use super::{autocast, groups, statistics};
use crate::bucket::{ParameterSpec, gradient_dtype};
use crate::{ProcessGroup, backend};

/// The tensor that a module holds at one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    path: String,
    trainable: bool,
    shape: Vec<usize>,
    dtype: String,
}

impl Entry {
    fn describe(&self) -> String {
        let kind = if self.trainable {
            "parameter"
        } else {
            "buffer"
        };
        format!("{kind} `{}` {:?} {}", self.path, self.shape, self.dtype)
    }
}

/// All tensors of a model in visit order, their kind of device, the options and the optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Description {
    device: String,
    options: String,
    entries: Vec<Entry>,
    /// The optimizer of each trainable parameter, and its learning-rate factor.
    steps: Vec<(String, f64)>,
}

impl Description {
    /// Describes a model and lists its trainable parameters.
    pub(super) fn of<M: Module>(
        model: &M,
        options: &ParallelOptions,
        optimizer: &ParameterOptimizer,
    ) -> Result<(Self, Vec<ParameterSpec>), ParallelError> {
        let mut lister = Lister {
            precision: options.precision,
            initializes: options.strategy != Strategy::Zero3,
            sums: options.sync_batch_norm,
            ..Lister::default()
        };
        model.visit(&mut lister);
        if let Some(error) = lister.error {
            return Err(error);
        }
        let kinds: BTreeSet<&str> = model.devices().iter().map(backend::kind).collect();
        let description = Self {
            device: kinds.into_iter().collect::<Vec<_>>().join(" and "),
            options: options.describe(),
            entries: lister.entries,
            steps: groups::describe(optimizer, &lister.parameters),
        };
        Ok((description, lister.parameters))
    }

    /// Fails unless every rank has the same description. A collective call.
    ///
    /// Ranks exchange digests first, and full descriptions only if the digests differ.
    pub(super) fn agree(&self, group: &ProcessGroup) -> Result<(), ParallelError> {
        let own = serde_json::to_vec(self).map_err(|error| ParallelError::Description {
            rank: group.rank(),
            reason: error.to_string(),
        })?;
        let digests = group.gather_bytes(blake3::hash(&own).as_bytes())?;
        let Some(other) = digests.iter().position(|digest| digest != &digests[0]) else {
            return Ok(());
        };
        let all = group.gather_bytes(&own)?;
        let all = all
            .iter()
            .enumerate()
            .map(|(rank, bytes)| parse(rank, bytes));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        Self::devices_agree(&all)?;
        Err(all[0].difference(&all[other], other))
    }

    /// Fails if ranks compute on different kinds of devices.
    fn devices_agree(all: &[Self]) -> Result<(), ParallelError> {
        let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (rank, description) in all.iter().enumerate() {
            let ranks = kinds.entry(description.device.clone()).or_default();
            ranks.push(rank);
        }
        match kinds.len() {
            0 | 1 => Ok(()),
            _ => Err(ParallelError::DevicesDiffer {
                kinds: kinds.into_iter().collect(),
            }),
        }
    }

    /// The first difference between rank 0's description and another rank's.
    fn difference(&self, other: &Self, rank: usize) -> ParallelError {
        if self.options != other.options {
            return ParallelError::OptionsDiffer {
                first_rank: 0,
                second_rank: rank,
                first: self.options.clone(),
                second: other.options.clone(),
            };
        }
        let len = self.entries.len().max(other.entries.len());
        let differs = |index: &usize| self.entries.get(*index) != other.entries.get(*index);
        let Some(at) = (0..len).find(differs) else {
            return self.other_steps(other, rank);
        };
        let (first, second) = (self.entries.get(at), other.entries.get(at));
        let describe = |entry: Option<&Entry>| entry.map_or("nothing".to_owned(), Entry::describe);
        ParallelError::ModelsDiffer {
            first_rank: 0,
            second_rank: rank,
            path: first
                .or(second)
                .map_or_else(String::new, |entry| entry.path.clone()),
            first: describe(first),
            second: describe(second),
        }
    }

    /// The first parameter that two ranks step differently.
    fn other_steps(&self, other: &Self, rank: usize) -> ParallelError {
        let mut steps = self.steps.iter().zip(&other.steps);
        let at = steps.position(|(own, other)| own != other);
        let said = |description: &Self| {
            let mut parameters = description.entries.iter().filter(|entry| entry.trainable);
            let (entry, (settings, factor)) =
                at.and_then(|at| Some((parameters.nth(at)?, description.steps.get(at)?)))?;
            Some(format!(
                "`{}` updated by {settings}, lr × {factor}",
                entry.path
            ))
        };
        ParallelError::OptionsDiffer {
            first_rank: 0,
            second_rank: rank,
            first: said(self).unwrap_or_default(),
            second: said(other).unwrap_or_default(),
        }
    }
}

fn parse(rank: usize, bytes: &[u8]) -> Result<Description, ParallelError> {
    serde_json::from_slice(bytes).map_err(|error| ParallelError::Description {
        rank,
        reason: error.to_string(),
    })
}

#[derive(Default)]
struct Lister {
    precision: Precision,
    /// Whether trainable lazy parameters may be initialized, all at once. If not, they count as
    /// having the type of new tensors on their device.
    initializes: bool,
    /// Whether batch normalizations should use the statistics of all ranks.
    sums: bool,
    path: Vec<String>,
    entries: Vec<Entry>,
    parameters: Vec<ParameterSpec>,
    error: Option<ParallelError>,
}

impl Lister {
    fn push(&mut self, trainable: bool, shape: Vec<usize>, dtype: String) {
        self.entries.push(Entry {
            path: self.path.join("."),
            trainable,
            shape,
            dtype,
        });
    }

    fn fail(&mut self, error: ParallelError) {
        self.error.get_or_insert(error);
    }
}

impl ModuleVisitor for Lister {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        // A reparameterization is visited right after its parameter.
        if container_type == "Reparameterization"
            && let Some(entry) = self.entries.last()
        {
            let (path, name) = (entry.path.clone(), name.to_owned());
            if entry.trainable {
                self.fail(ParallelError::Reparameterized { path, name });
            } else if self.precision != Precision::F32
                && !autocast::computes_in_low_precision(&name)
            {
                self.fail(ParallelError::ReparameterizedInLowPrecision { path, name });
            }
        }
        self.path.push(name.to_owned());
        if self.sums && statistics::are_in(container_type) {
            // A batch normalization is recognised by the container of its fields.
            let path = self.path[..self.path.len() - 1].join(".");
            self.fail(ParallelError::NotSynchronized { path });
        }
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = param.lazy_shape().to_vec();
        let is_lazy = !self.initializes && is_lazy_and_trainable(param);
        let dtype = match is_lazy {
            true => param.lazy_device().settings().float_dtype.into(),
            false => param.dtype(),
        };
        let trainable = is_lazy || param.is_require_grad();
        self.push(trainable, shape.clone(), format!("{dtype:?}"));
        if !trainable {
            return;
        }
        let path = self.path.join(".");
        match gradient_dtype(dtype) {
            Some(dtype) => self.parameters.push(ParameterSpec { path, shape, dtype }),
            None => self.fail(ParallelError::ParameterType {
                path,
                dtype: format!("{dtype:?}"),
            }),
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let dtype = format!("{:?}", param.dtype());
        self.push(false, param.lazy_shape().to_vec(), dtype);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let dtype = format!("{:?}", param.dtype());
        self.push(false, param.lazy_shape().to_vec(), dtype);
    }

    /// A layer that uses dropout on one rank only, or other statistics, is a different model.
    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.push(false, Vec::new(), format!("flag {}", **flag));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::GroupOptions;

    /// The results of the ranks that compute on these kinds of devices.
    fn outcomes(kinds: &[&str]) -> Vec<Result<(), ParallelError>> {
        let groups = ProcessGroup::in_process(kinds.len(), &GroupOptions::default()).unwrap();
        thread::scope(|scope| {
            let agree = |(group, kind): (ProcessGroup, &&str)| {
                let description = Description {
                    device: (*kind).to_owned(),
                    options: "the same".to_owned(),
                    entries: Vec::new(),
                    steps: Vec::new(),
                };
                scope.spawn(move || description.agree(&group))
            };
            let ranks: Vec<_> = groups.into_iter().zip(kinds).map(agree).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_on_another_kind_of_device_are_named() {
        for outcome in outcomes(&["cuda", "cuda", "cpu", "cuda"]) {
            let error = outcome.unwrap_err();
            assert!(
                matches!(error, ParallelError::DevicesDiffer { .. }),
                "{error}"
            );
            let message = error.to_string();
            assert!(
                message.contains("cpu on rank(s) 2; cuda on rank(s) 0, 1, 3"),
                "{message}"
            );
        }
        assert!(outcomes(&["wgpu", "wgpu"]).iter().all(Result::is_ok));
    }
}
