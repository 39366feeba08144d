//! A model's weights become a file that PyTorch loads.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor, TensorData};
use safetensors::{Dtype, View};

use super::float::transposed;
use super::layout::{Place, slots};
use super::{KeyMap, WeightsError};

/// Name in the metadata of a file under which [`NATIVE`] stands.
pub(super) const LAYOUT: &str = "layout";
/// The layout of files with Burn's own names.
pub(super) const NATIVE: &str = "burn";

/// Writes the weights of `model` to the safetensors file `path`, as PyTorch names and lays them
/// out, for `load_state_dict(safetensors.torch.load_file(path))` with `strict=True`.
///
/// The file appears when it is complete, in place of one that was there.
///
/// # Errors
///
/// See [`state_dict`]; a folder that can't be written to.
pub fn save<M: Module>(
    model: &M,
    path: impl AsRef<Path>,
    keys: &KeyMap,
) -> Result<(), WeightsError> {
    save_with(model, path, keys, HashMap::new())
}

/// Writes the weights of `model` as [`save`] does, with `about` in the file's metadata, for
/// people and programs that come later.
///
/// # Errors
///
/// As [`save`].
pub fn save_with<M: Module>(
    model: &M,
    path: impl AsRef<Path>,
    keys: &KeyMap,
    mut about: HashMap<String, String>,
) -> Result<(), WeightsError> {
    let path = path.as_ref();
    let failed = |reason: String| WeightsError::Write {
        path: path.to_owned(),
        reason,
    };
    let tensors = state_dict(model, keys)?;
    let views = tensors
        .iter()
        .map(|(key, data)| Ok((key.as_str(), Stored::new(key, data)?)))
        .collect::<Result<Vec<_>, String>>()
        .map_err(failed)?;
    // Other libraries look here for who wrote the file.
    let format = ("format".to_owned(), "pt".to_owned());
    let native = (LAYOUT.to_owned(), NATIVE.to_owned());
    about.extend([if keys.is_native() { native } else { format }]);
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    write(folder, path, views, about).map_err(failed)
}

/// Writes beside `path`, tensor by tensor, and renames, so that `path` is always a whole file.
fn write(
    folder: &Path,
    path: &Path,
    views: Vec<(&str, Stored<'_>)>,
    about: HashMap<String, String>,
) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let temporary = tempfile::Builder::new()
        .prefix(".weights-")
        // Readable as any other file, less the process's mask.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(failed)?
        .into_temp_path();
    let permissions = fs::metadata(&temporary).map_err(failed)?.permissions();
    // Puts a file of its own, which only its owner may read, in the place of this one.
    safetensors::serialize_to_file(views, Some(about), &temporary)
        .map_err(|error| error.to_string())?;
    fs::set_permissions(&temporary, permissions).map_err(failed)?;
    let written = File::open(&temporary).and_then(|file| file.sync_all());
    written.map_err(failed)?;
    temporary.persist(path).map_err(|error| failed(error.error))
}

/// The weights of `model` as a PyTorch state dict: f32 in PyTorch's layout by name, with running
/// statistics, and `num_batches_tracked` (i64, 0) wherever PyTorch's strict loading asks for it.
///
/// # Errors
///
/// A key map that gives two tensors one name; a tensor that is not floating-point or whose values
/// the device does not give.
pub fn state_dict<M: Module>(
    model: &M,
    keys: &KeyMap,
) -> Result<BTreeMap<String, TensorData>, WeightsError> {
    // Without hooks, and with the last update of the running statistics folded in.
    let model = model.valid().materialize();
    let mut reader = Reader {
        place: Place::default(),
        values: HashMap::new(),
        outcome: Ok(()),
    };
    let slots = slots(&model, keys)?;
    model.visit(&mut reader);
    reader.outcome?;
    let mut tensors = BTreeMap::new();
    for slot in slots {
        let Some(values) = reader.values.remove(&slot.path) else {
            continue;
        };
        let values = match slot.shape.as_slice() {
            [rows, _] if slot.transposed => transposed(&values, *rows),
            _ => values,
        };
        tensors.insert(slot.key, TensorData::new(values, slot.shape));
        if let Some(counter) = slot.counter {
            tensors.insert(counter, TensorData::new(vec![0i64], [0usize; 0]));
        }
    }
    Ok(tensors)
}

struct Reader {
    place: Place,
    values: HashMap<String, Vec<f32>>,
    outcome: Result<(), WeightsError>,
}

impl ModuleVisitor for Reader {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.place.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.place.exit();
    }

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

/// A tensor as safetensors takes it.
struct Stored<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    bytes: &'a [u8],
}

impl<'a> Stored<'a> {
    fn new(key: &str, data: &'a TensorData) -> Result<Self, String> {
        let dtype = match data.dtype() {
            DType::F32 => Dtype::F32,
            DType::I64 => Dtype::I64,
            other => return Err(format!("`{key}` has elements of type {other:?}")),
        };
        Ok(Self {
            dtype,
            shape: data.shape().as_slice(),
            bytes: data.as_bytes(),
        })
    }
}

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes.into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
