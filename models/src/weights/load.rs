//! Loads weights from a file into a model.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};

use super::float::transposed;
use super::layout::{BATCHES, Place, Slot, follows_place, slots};
use super::place::prefixes;
use super::source::{Element, Entry, Source};
use super::{KeyMap, Mismatches, Positions, WeightsError};

/// Loads the weights in `path` into `model`; see [`Load`] for options.
///
/// # Errors
///
/// See [`Load::load`].
pub fn load<M: Module>(model: M, path: impl AsRef<Path>, keys: &KeyMap) -> Result<M, WeightsError> {
    Load::new().load(model, path, keys)
}

/// The metadata of the weights file at `path`, as [`save_with`](super::save_with) has written it.
///
/// Files of `torch.save` have none.
///
/// # Errors
///
/// Fails if the file cannot be read, is damaged or has another format.
pub fn about(path: impl AsRef<Path>) -> Result<HashMap<String, String>, WeightsError> {
    Ok(Source::open(path.as_ref())?.about())
}

/// Options for loading weights.
///
/// ```no_run
/// # use burn::tensor::Device;
/// # use models::{CnnConfig, weights::{Load, PyTorchKeys}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Fine-tuning with other classes: all weights but those of the last layer.
/// let model = CnnConfig::new().with_classes(37).init(&Device::flex())?;
/// let keys = model.key_map();
/// let model = Load::new().without("fc2").load(model, "mnist_cnn.pt", &keys)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Load {
    without: Vec<String>,
    part: Option<String>,
    positions: Option<Positions>,
    lenient: bool,
}

/// Report of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Prefix of the names of the model's tensors in the file.
    pub prefix: String,
    /// Other prefixes in the file whose tensors match too.
    pub alternatives: Vec<String>,
    /// Number of the model's tensors that were loaded.
    pub tensors: usize,
    /// Mismatches, if they are allowed ([`Load::lenient`]).
    pub mismatches: Mismatches,
    /// Batch counters of PyTorch's batch normalizations in the file, by name without the prefix.
    pub batches: BTreeMap<String, i64>,
}

impl Load {
    /// Loads all weights, wherever the file has them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves out the tensors whose name in the file is `prefix` or begins with `prefix.`.
    ///
    /// The model keeps its own, whatever the file holds under these names.
    #[must_use]
    pub fn without(mut self, prefix: impl Into<String>) -> Self {
        self.without.push(prefix.into());
        self
    }

    /// Loads the part of the checkpoint with the dotted name `part`, such as `model_ema`.
    ///
    /// Without this, the state dict is the place where the names and shapes of most tensors match,
    /// under a common prefix. If several match, usual names come first (`state_dict`,
    /// `model_state_dict`, `model`, `net`, `params`), then alphabetical order.
    #[must_use]
    pub fn part(mut self, part: impl Into<String>) -> Self {
        self.part = Some(part.into());
        self
    }

    /// Resamples a position embedding with another number of patches, which form a square.
    ///
    /// For images of another size than those of the file's model
    /// ([`PyTorchKeys::positions`](super::PyTorchKeys::positions)).
    #[must_use]
    pub fn resample(mut self, positions: Option<Positions>) -> Self {
        self.positions = positions;
        self
    }

    /// Loads the tensors that match and keeps the model's others. At least one must match.
    #[must_use]
    pub fn lenient(mut self, lenient: bool) -> Self {
        self.lenient = lenient;
        self
    }

    /// Loads the weights in `path` into `model`.
    ///
    /// `path` is a `.safetensors` file or one of `torch.save` (`.pt`, `.pth`). Values become f32,
    /// or the element type of the model's tensor if it differs. The model may be on an autodiff
    /// device or not; parameters that require gradients still do. A Burn module shares the running
    /// statistics of batch normalization with its clones, so they change in all of them.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, is damaged or has another format. Also fails if tensors
    /// are missing, unexpected or of another shape; one error lists all of them. The model is then
    /// dropped, and its clones are unchanged.
    pub fn load<M: Module>(
        &self,
        model: M,
        path: impl AsRef<Path>,
        keys: &KeyMap,
    ) -> Result<M, WeightsError> {
        Ok(self.load_told(model, path, keys)?.0)
    }

    /// Does a [`load`](Self::load) and returns a report.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn load_told<M: Module>(
        &self,
        model: M,
        path: impl AsRef<Path>,
        keys: &KeyMap,
    ) -> Result<(M, Taken), WeightsError> {
        let path = path.as_ref();
        let mut source = Source::open(path)?;
        let slots = match source.is_native() {
            true => slots(&model, &KeyMap::native())?,
            false => slots(&model, keys)?,
        };
        let slots = self.wanted(slots)?;
        let (prefix, alternatives) = self.prefix(path, &slots, source.entries())?;
        let mismatches = self.compare(&slots, source.entries(), &prefix);
        let counters = slots.iter().filter_map(|slot| slot.counter.as_ref());
        let counters: HashSet<&String> = counters.collect();
        let counted = source.batches(&prefix).into_iter();
        let counted = counted.filter_map(|(key, count)| {
            let name = key.strip_prefix(&prefix)?.to_owned();
            counters.contains(&name).then_some((name, count))
        });
        let counted = counted.collect();
        let fitting: Vec<Slot> = slots
            .into_iter()
            .filter(|slot| self.fits(slot, source.entries(), &prefix))
            .collect();
        if !mismatches.is_empty() && (!self.lenient || fitting.is_empty()) {
            return Err(WeightsError::Mismatch {
                path: path.to_owned(),
                mismatches: Box::new(mismatches),
            });
        }
        let taken = Taken {
            tensors: fitting.len(),
            batches: counted,
            alternatives,
            mismatches,
            prefix,
        };
        let mut values = HashMap::new();
        for slot in fitting {
            let key = format!("{}{}", taken.prefix, slot.key);
            let mut read = source.read(&key)?;
            let in_file = source.entries().get(&key).map(|entry| &entry.shape);
            if let Some((positions, side)) = in_file.and_then(|shape| self.other_grid(&slot, shape))
            {
                let resampled = positions.resample(&read, side);
                read = resampled.map_err(|reason| WeightsError::Tensor {
                    path: path.to_owned(),
                    key: key.clone(),
                    reason,
                })?;
                let [rows, columns] = positions.grid;
                tracing::info!(
                    "{}: {key} resampled from {side}×{side} to {rows}×{columns} patches",
                    path.display()
                );
            }
            let data = match slot.shape.as_slice() {
                [rows, columns] if slot.transposed => {
                    TensorData::new(transposed(&read, *columns), [*columns, *rows])
                }
                shape => TensorData::new(read, shape.to_vec()),
            };
            values.insert(slot.path, data);
        }
        // Running statistics keep the last update apart from their value until the next read.
        // `valid` folds it into the state that the model shares with its copy. Otherwise it would
        // later replace the loaded values.
        drop(model.valid());
        let model = model.map(&mut Assign {
            place: Place::default(),
            values,
        });
        Ok((model, taken))
    }

    /// Whether the file has `slot` as the model needs it.
    fn fits(&self, slot: &Slot, entries: &BTreeMap<String, Entry>, prefix: &str) -> bool {
        let entry = entries.get(&format!("{prefix}{}", slot.key));
        entry.is_some_and(|entry| self.takes(slot, entry))
    }

    fn takes(&self, slot: &Slot, entry: &Entry) -> bool {
        let shape = &entry.shape;
        let is_float = matches!(entry.element, Element::Float(_));
        is_float && (is_shape(shape, &slot.shape) || self.other_grid(slot, shape).is_some())
    }

    /// Positions and side of the file's grid, if a tensor of `shape` can be resampled to `slot`.
    fn other_grid(&self, slot: &Slot, shape: &[usize]) -> Option<(&Positions, usize)> {
        let positions = self.positions.as_ref();
        let positions = positions.filter(|positions| positions.path == slot.path)?;
        let side = positions.square(shape, &slot.shape)?;
        (shape != slot.shape).then_some((positions, side))
    }

    fn left_out(&self, key: &str) -> bool {
        self.without.iter().any(|prefix| begins_with(key, prefix))
    }

    /// The tensors to load.
    fn wanted(&self, slots: Vec<Slot>) -> Result<Vec<Slot>, WeightsError> {
        let unused = self
            .without
            .iter()
            .find(|prefix| !slots.iter().any(|slot| begins_with(&slot.key, prefix)));
        if let Some(prefix) = unused {
            return Err(WeightsError::NothingWithout {
                prefix: prefix.clone(),
            });
        }
        let kept = slots.into_iter().filter(|slot| !self.left_out(&slot.key));
        Ok(kept.collect())
    }

    /// The prefix of the state dict, and other prefixes that match too.
    fn prefix(
        &self,
        path: &Path,
        slots: &[Slot],
        entries: &BTreeMap<String, Entry>,
    ) -> Result<(String, Vec<String>), WeightsError> {
        let part = self.part.as_ref().map(|part| format!("{part}."));
        if let Some(part) = &part
            && !entries.keys().any(|key| key.starts_with(part))
        {
            return Err(WeightsError::NoSuchPart {
                path: path.to_owned(),
                part: part.trim_end_matches('.').to_owned(),
                found: first_components(entries),
            });
        }
        let part = part.unwrap_or_default();
        let found = prefixes(slots, entries, &part, |slot, entry| self.takes(slot, entry));
        Ok(found.unwrap_or((part, Vec::new())))
    }

    fn compare(
        &self,
        slots: &[Slot],
        entries: &BTreeMap<String, Entry>,
        prefix: &str,
    ) -> Mismatches {
        let mut mismatches = Mismatches {
            prefix: prefix.to_owned(),
            ..Mismatches::default()
        };
        for slot in slots {
            let key = slot.key.clone();
            match entries.get(&format!("{prefix}{key}")) {
                None => mismatches.missing.push((key, slot.shape.clone())),
                Some(entry) if self.takes(slot, entry) => {}
                Some(Entry {
                    element: Element::Other(name),
                    ..
                }) => mismatches.not_float.push((key, name.clone())),
                Some(entry) => {
                    let shapes = (key, slot.shape.clone(), entry.shape.clone());
                    mismatches.misshapen.push(shapes);
                }
            }
        }
        let wanted: HashSet<&str> = slots.iter().map(|slot| slot.key.as_str()).collect();
        for (full, entry) in entries {
            let Some(key) = full.strip_prefix(prefix) else {
                continue; // The optimizer's state, averages, other networks.
            };
            let counter = key.rsplit('.').next() == Some(BATCHES);
            if !counter && !self.left_out(key) && !wanted.contains(key) {
                mismatches
                    .unexpected
                    .push((full.clone(), entry.shape.clone()));
            }
        }
        mismatches
    }
}

/// Whether a tensor of shape `found` has the values of one of shape `wanted` in the same order:
/// dimensions of 1 may follow. torchvision stores the scales of channels as \[channels, 1, 1\].
fn is_shape(found: &[usize], wanted: &[usize]) -> bool {
    let rest = found.strip_prefix(wanted);
    rest.is_some_and(|rest| rest.iter().all(|size| *size == 1))
}

fn begins_with(key: &str, prefix: &str) -> bool {
    key.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn first_components(entries: &BTreeMap<String, Entry>) -> String {
    let mut names: Vec<&str> = entries
        .keys()
        .filter_map(|key| key.split('.').next())
        .collect();
    names.dedup();
    names.truncate(10);
    names.join(", ")
}

/// Replaces the values of a model's tensors by path.
struct Assign {
    place: Place,
    values: HashMap<String, TensorData>,
}

impl ModuleMapper for Assign {
    follows_place!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(data) = self.values.remove(&self.place.path()) else {
            return param;
        };
        param.map(|old| {
            let loaded = Tensor::from_data(data, (&old.device().inner(), old.dtype()));
            match old.gradient_checkpointing_strategy() {
                Some(strategy) => loaded
                    .autodiff()
                    .with_gradient_checkpointing_strategy(strategy)
                    .set_require_grad(old.is_require_grad()),
                None => loaded,
            }
        })
    }
}
