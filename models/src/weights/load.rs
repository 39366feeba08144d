//! A model takes its weights from a file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};

use super::float::transposed;
use super::layout::{BATCHES, Place, Slot, slots};
use super::place::prefixes;
use super::source::{Element, Entry, Source};
use super::{KeyMap, Mismatches, Positions, WeightsError};

/// Gives the weights in `path` to `model`; see [`Load`] for choices.
///
/// # Errors
///
/// See [`Load::load`].
pub fn load<M: Module>(model: M, path: impl AsRef<Path>, keys: &KeyMap) -> Result<M, WeightsError> {
    Load::new().load(model, path, keys)
}

/// What the file of weights at `path` says about itself, as [`save_with`](super::save_with) has
/// written it. Files of `torch.save` say nothing.
///
/// # Errors
///
/// A file that can't be read, is damaged or is something else.
pub fn about(path: impl AsRef<Path>) -> Result<HashMap<String, String>, WeightsError> {
    Ok(Source::open(path.as_ref())?.about())
}

/// How weights are loaded.
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

/// What was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// What stands in the file before the names of the model's tensors.
    pub prefix: String,
    /// Other places of the file whose tensors fit as well.
    pub alternatives: Vec<String>,
    /// Tensors of the model that were loaded.
    pub tensors: usize,
    /// What did not fit, where that is allowed ([`Load::lenient`]).
    pub mismatches: Mismatches,
    /// How many batches PyTorch's batch normalizations have counted in the file, by the names of
    /// their counters there without the prefix.
    pub batches: BTreeMap<String, i64>,
}

impl Load {
    /// All weights, from wherever the file has them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves the tensors whose name in the file is `prefix` or begins with `prefix.` as the model
    /// has them, whatever the file holds under such names.
    #[must_use]
    pub fn without(mut self, prefix: impl Into<String>) -> Self {
        self.without.push(prefix.into());
        self
    }

    /// Takes what the checkpoint holds under the dotted name `part`, such as `model_ema`.
    ///
    /// Without this, the state dict is looked for: it is where the names and shapes of most tensors
    /// fit, whatever stands before all of the names. Where several fit, the usual names go before
    /// others (`state_dict`, `model_state_dict`, `model`, `net`, `params`), then the order of the
    /// alphabet counts.
    #[must_use]
    pub fn part(mut self, part: impl Into<String>) -> Self {
        self.part = Some(part.into());
        self
    }

    /// Takes a position embedding of another number of patches, which lie in a square, and
    /// resamples it: for images of another size than those that the file's model knows
    /// ([`PyTorchKeys::positions`](super::PyTorchKeys::positions)).
    #[must_use]
    pub fn resample(mut self, positions: Option<Positions>) -> Self {
        self.positions = positions;
        self
    }

    /// Loads the tensors that fit and leaves the others as the model has them. At least one has to
    /// fit.
    #[must_use]
    pub fn lenient(mut self, lenient: bool) -> Self {
        self.lenient = lenient;
        self
    }

    /// Gives the weights in `path`, a `.safetensors` file or what `torch.save` writes (`.pt`,
    /// `.pth`), to `model`.
    ///
    /// Values become f32, or the element type of the model's tensor if that is another. The model
    /// may be on an autodiff device or not; what requires gradients still does. Running statistics
    /// of batch normalisation are shared by a Burn module and its clones: those change with it.
    ///
    /// # Errors
    ///
    /// A file that can't be read, is damaged or is something else; tensors that are missing, too
    /// many or of another shape, all of them in one error. The model is dropped then: nothing was
    /// changed in its clones.
    pub fn load<M: Module>(
        &self,
        model: M,
        path: impl AsRef<Path>,
        keys: &KeyMap,
    ) -> Result<M, WeightsError> {
        Ok(self.load_told(model, path, keys)?.0)
    }

    /// Loads as [`load`](Self::load) does, and says what.
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
        // Running statistics keep the last update apart from their value until they are next read.
        // `valid` folds it in, in the state that the model shares with its copy; else it would
        // later replace what is loaded.
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
        is_float && (*shape == slot.shape || self.other_grid(slot, shape).is_some())
    }

    /// How a tensor of `shape` in the file becomes that of `slot`, if it is that of another number
    /// of patches.
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

    /// What stands before the names of the state dict, and what else would fit as well.
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

/// Replaces the values of a model's tensors by those of the same path.
struct Assign {
    place: Place,
    values: HashMap<String, TensorData>,
}

impl ModuleMapper for Assign {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.place.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.place.exit();
    }

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
