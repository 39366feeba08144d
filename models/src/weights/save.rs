//! Saves a model's weights to a file that PyTorch loads.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor, TensorData};
use burn_dist::files::{Replacement, write_tensors};
use safetensors::{Dtype, View};

use super::layout::{Place, Slot, follows_place, slots};
use super::source::Source;
use super::{Container, KeyMap, WeightsError, torch_save};

/// Key of [`NATIVE`] in a file's metadata.
pub(super) const LAYOUT: &str = "layout";
/// The layout of files with Burn's own names.
pub(super) const NATIVE: &str = "burn";

/// Values of PyTorch's batch counters (`num_batches_tracked`) to write.
///
/// Models here do not count batches, so the caller provides the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batches {
    /// Values by the names of the counters, which may have a prefix in the file.
    pub by_name: BTreeMap<String, i64>,
    /// Value of all other counters.
    pub otherwise: i64,
}

impl Batches {
    fn get(&self, name: &str) -> i64 {
        let ends = |full: &str| {
            full.strip_suffix(name)
                .is_some_and(|rest| rest.ends_with('.'))
        };
        let known = self.by_name.get(name).or_else(|| {
            let mut all = self.by_name.iter();
            all.find_map(|(full, count)| ends(full).then_some(count))
        });
        known.copied().unwrap_or(self.otherwise)
    }
}

/// The batch counters in the weights file at `path`, by name.
///
/// # Errors
///
/// Fails if the file cannot be read, is damaged or has another format.
pub fn batches(path: impl AsRef<Path>) -> Result<BTreeMap<String, i64>, WeightsError> {
    Ok(Source::open(path.as_ref())?.batches(""))
}

/// Writes the weights of `model` to the file `path`, with PyTorch's names and layouts.
///
/// The ending of `path` decides the format: [`Container`]. In PyTorch, load a safetensors file with
/// `load_state_dict(safetensors.torch.load_file(path))`, and a `.pt` file with
/// `load_state_dict(torch.load(path, weights_only=True))`. The file appears when it is complete,
/// and replaces an old one.
///
/// # Errors
///
/// See [`state_dict`]. Also fails if the name has another ending, or the folder cannot be written
/// to.
pub fn save<M: Module>(
    model: &M,
    path: impl AsRef<Path>,
    keys: &KeyMap,
) -> Result<(), WeightsError> {
    save_with(model, path, keys, HashMap::new(), &Batches::default())
}

/// Does a [`save`] with `about` as the file's metadata and with these batch counters.
///
/// # Errors
///
/// As [`save`].
pub fn save_with<M: Module>(
    model: &M,
    path: impl AsRef<Path>,
    keys: &KeyMap,
    about: HashMap<String, String>,
    batches: &Batches,
) -> Result<(), WeightsError> {
    let mut tensors = values(model)?;
    let read = |path: &str, _: &[usize]| {
        let values = tensors.remove(path);
        values.ok_or_else(|| "the model has no tensor of this name".to_owned())
    };
    save_from(model, path, keys, (about, batches), read, || Ok(()))
}

/// Does a [`save_with`], with values from `read` instead of `model`.
///
/// `read` gets the path of a tensor in the model and its shape, and returns its elements,
/// row-major. Tensors are read and written one at a time; those of `model` need not be initialized.
/// `complete` is called after the last one, before the file appears.
///
/// # Errors
///
/// As [`save`], and the errors of `read` and `complete`.
pub fn save_from<M: Module>(
    model: &M,
    path: impl AsRef<Path>,
    keys: &KeyMap,
    (mut about, batches): (HashMap<String, String>, &Batches),
    read: impl FnMut(&str, &[usize]) -> Result<Vec<f32>, String>,
    complete: impl FnOnce() -> Result<(), String>,
) -> Result<(), WeightsError> {
    let path = path.as_ref();
    let failed = |reason| WeightsError::Write {
        path: path.to_owned(),
        reason,
    };
    let container = Container::of_path(path);
    let container = container
        .ok_or_else(|| failed(format!("its name must end with {}", Container::ENDINGS)))?;
    if keys.is_native() && container == Container::Pytorch {
        let reason = "PyTorch has no modules of Burn. Write Burn's layout to a .safetensors file";
        return Err(failed(reason.to_owned()));
    }
    let slots = slots(model, keys)?;
    // Other libraries look here for the writer of the file.
    let format = ("format".to_owned(), "pt".to_owned());
    let native = (LAYOUT.to_owned(), NATIVE.to_owned());
    about.extend([if keys.is_native() { native } else { format }]);
    let reading = RefCell::new(Reading {
        read,
        failure: None,
    });
    let mut views = Vec::with_capacity(slots.len());
    for slot in &slots {
        views.push((slot.key.as_str(), Stored::Values(slot, &reading)));
        let counter = slot.counter.as_ref();
        let stored = |name: &String| Stored::Counter(batches.get(name).to_le_bytes());
        views.extend(counter.map(|counter| (counter.as_str(), stored(counter))));
    }
    let checked = || reading.take_failure().and_then(|()| complete());
    let about = about.into_iter().collect();
    write((path, container), views, &about, checked).map_err(failed)
}

/// Writes a file tensor by tensor; it replaces `path` when it is complete and on disk. The same
/// model gives the same bytes: the entries of `about` are in the order of their keys.
fn write(
    (path, container): (&Path, Container),
    views: Vec<(&str, impl View)>,
    about: &BTreeMap<String, String>,
    checked: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let mut file = Replacement::create(path, None).map_err(failed)?;
    match container {
        Container::Safetensors => write_tensors(&mut file, views, about).map(drop),
        Container::Pytorch => torch_save::write(&mut file, &views, about),
    }
    .map_err(failed)?;
    checked()?;
    file.publish().map(drop).map_err(failed)
}

/// The weights of `model` as a PyTorch state dict: f32 in PyTorch's layout, by name.
///
/// It has running statistics, and `num_batches_tracked` (i64, 0) wherever PyTorch's strict loading
/// expects it.
///
/// # Errors
///
/// Fails if a key map gives two tensors one name, or if a tensor is not floating-point or cannot be
/// read from its device.
pub fn state_dict<M: Module>(
    model: &M,
    keys: &KeyMap,
) -> Result<BTreeMap<String, TensorData>, WeightsError> {
    let mut values = values(model)?;
    let mut tensors = BTreeMap::new();
    for slot in slots(model, keys)? {
        let Some(values) = values.remove(&slot.path) else {
            continue;
        };
        let values = slot.in_file(values);
        tensors.insert(slot.key, TensorData::new(values, slot.shape));
        if let Some(counter) = slot.counter {
            tensors.insert(counter, TensorData::new(vec![0i64], [0usize; 0]));
        }
    }
    Ok(tensors)
}

/// The values of all tensors by path.
fn values<M: Module>(model: &M) -> Result<HashMap<String, Vec<f32>>, WeightsError> {
    // Without hooks, and with the last update of the running statistics folded in.
    let model = model.valid().materialize();
    let mut reader = Reader {
        place: Place::default(),
        values: HashMap::new(),
        outcome: Ok(()),
    };
    model.visit(&mut reader);
    reader.outcome?;
    Ok(reader.values)
}

struct Reader {
    place: Place,
    values: HashMap<String, Vec<f32>>,
    outcome: Result<(), WeightsError>,
}

impl ModuleVisitor for Reader {
    follows_place!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.outcome.is_err() {
            return;
        }
        let path = self.place.path();
        let values = param
            .val()
            .inner()
            .try_into_data()
            .map_err(|error| error.to_string())
            .and_then(|data| {
                let data = data.convert_dtype(DType::F32);
                data.try_to_vec::<f32>().map_err(|error| error.to_string())
            });
        match values {
            Ok(values) => {
                self.values.insert(path, values);
            }
            Err(reason) => self.outcome = Err(WeightsError::Device { path, reason }),
        }
    }
}

/// The source of values, and the first error.
struct Reading<R> {
    read: R,
    failure: Option<String>,
}

/// Reads a tensor when it is written. safetensors' interface cannot return errors, so an error is
/// kept until the file is written, and the file is then dropped.
trait ReadValues {
    fn values(&self, slot: &Slot) -> Vec<f32>;
    fn take_failure(&self) -> Result<(), String>;
}

impl<R: FnMut(&str, &[usize]) -> Result<Vec<f32>, String>> ReadValues for RefCell<Reading<R>> {
    fn values(&self, slot: &Slot) -> Vec<f32> {
        let len = slot.len();
        let mut reading = self.borrow_mut();
        if reading.failure.is_some() {
            return vec![0.0; len];
        }
        let read = (reading.read)(&slot.path, &slot.shape_in_model());
        let read = read.and_then(|values| match values.len() == len {
            true => Ok(slot.in_file(values)),
            false => Err(format!(
                "has {} elements, but the model has {:?}",
                values.len(),
                slot.shape_in_model()
            )),
        });
        read.unwrap_or_else(|reason| {
            reading.failure = Some(format!("tensor `{}`: {reason}", slot.path));
            vec![0.0; len]
        })
    }

    fn take_failure(&self) -> Result<(), String> {
        self.borrow_mut().failure.take().map_or(Ok(()), Err)
    }
}

/// A tensor in the form that safetensors takes.
enum Stored<'a> {
    /// Read when it is written.
    Values(&'a Slot, &'a dyn ReadValues),
    /// PyTorch's batch counter.
    Counter([u8; 8]),
}

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            Self::Values(..) => Dtype::F32,
            Self::Counter(_) => Dtype::I64,
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Values(slot, _) => &slot.shape,
            Self::Counter(_) => &[],
        }
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Values(slot, reading) => {
                let values = reading.values(slot);
                values
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect()
            }
            Self::Counter(count) => count.as_slice().into(),
        }
    }

    fn data_len(&self) -> usize {
        match self {
            Self::Values(slot, _) => slot.len() * size_of::<f32>(),
            Self::Counter(count) => count.len(),
        }
    }
}
