//! Places of a model's tensors in a PyTorch state dict.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Int, Tensor};

use super::float::transposed;
use super::{KeyMap, WeightsError};

/// Modules whose parameters are gamma and beta in Burn and weight and bias in PyTorch.
const NORMS: [&str; 5] = [
    "BatchNorm",
    "LayerNorm",
    "GroupNorm",
    "InstanceNorm",
    "RmsNorm",
];
/// PyTorch's counter of the batches in running statistics.
pub(super) const BATCHES: &str = "num_batches_tracked";

/// A tensor of a model, as PyTorch sees it.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// Path in the model.
    pub path: String,
    /// Name in the file.
    pub key: String,
    /// Shape in the file.
    pub shape: Vec<usize>,
    /// Whether the matrix is stored transposed.
    pub transposed: bool,
    /// Name in the file of PyTorch's batch counter beside this tensor.
    pub counter: Option<String>,
}

impl Slot {
    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Shape in the model.
    pub(super) fn shape_in_model(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if self.transposed {
            shape.reverse();
        }
        shape
    }

    /// Converts values of the model to the layout in the file.
    pub(super) fn in_file(&self, values: Vec<f32>) -> Vec<f32> {
        match self.shape.as_slice() {
            [rows, _] if self.transposed => transposed(&values, *rows),
            _ => values,
        }
    }
}

/// The tensors of `model` in visit order.
pub(super) fn slots<M: Module>(model: &M, keys: &KeyMap) -> Result<Vec<Slot>, WeightsError> {
    let mut lister = Lister {
        keys,
        place: Place::default(),
        slots: Vec::new(),
        not_float: None,
    };
    model.visit(&mut lister);
    if let Some(path) = lister.not_float {
        return Err(WeightsError::NotAWeight { path });
    }
    let mut paths = HashMap::new();
    for slot in &lister.slots {
        if let Some(first) = paths.insert(&slot.key, &slot.path) {
            return Err(WeightsError::SameKey {
                first: first.clone(),
                second: slot.path.clone(),
                key: slot.key.clone(),
            });
        }
    }
    Ok(lister.slots)
}

/// Position of a traversal in a model.
#[derive(Default)]
pub(super) struct Place {
    /// Names of the fields and types of their containers, outermost first.
    steps: Vec<(String, String)>,
}

/// Keeps the field `place` of a visitor or mapper where it is.
macro_rules! follows_place {
    () => {
        fn enter_module(&mut self, name: &str, container_type: &str) {
            self.place.enter(name, container_type);
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.place.exit();
        }
    };
}
pub(super) use follows_place;

impl Place {
    pub(super) fn enter(&mut self, name: &str, container: &str) {
        self.steps.push((name.to_owned(), container.to_owned()));
    }

    pub(super) fn exit(&mut self) {
        self.steps.pop();
    }

    /// Path of the fields. An enum's variant is not part of it, because PyTorch has none.
    pub(super) fn path(&self) -> String {
        let fields = self
            .steps
            .iter()
            .filter(|(_, container)| !container.starts_with("Enum:"));
        let names: Vec<&str> = fields.map(|(name, _)| name.as_str()).collect();
        names.join(".")
    }

    /// Name of the visited tensor's field, and type of the module around it.
    fn leaf(&self) -> (&str, &str) {
        self.steps.last().map_or(("", ""), |(name, container)| {
            (name, container.strip_prefix("Struct:").unwrap_or(container))
        })
    }

    fn slot(&self, keys: &KeyMap, mut shape: Vec<usize>) -> Slot {
        let path = self.path();
        if keys.is_native() {
            return Slot {
                key: keys.key(&path),
                counter: None,
                path,
                shape,
                transposed: false,
            };
        }
        let (field, module) = self.leaf();
        let name = |renamed: &str| match path.rsplit_once('.') {
            Some((parent, _)) => format!("{parent}.{renamed}"),
            None => renamed.to_owned(),
        };
        let own = match field {
            "gamma" if NORMS.contains(&module) => name("weight"),
            "beta" if NORMS.contains(&module) => name("bias"),
            _ => path.clone(),
        };
        let transposed = module == "Linear" && field == "weight";
        if transposed {
            shape.reverse();
        }
        let counts = module.starts_with("BatchNorm") && field == "running_mean";
        Slot {
            key: keys.key(&own),
            counter: counts.then(|| keys.key(&name(BATCHES))),
            path,
            shape,
            transposed,
        }
    }
}

struct Lister<'a> {
    keys: &'a KeyMap,
    place: Place,
    slots: Vec<Slot>,
    not_float: Option<String>,
}

impl ModuleVisitor for Lister<'_> {
    follows_place!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let slot = self.place.slot(self.keys, param.lazy_shape().to_vec());
        self.slots.push(slot);
    }

    fn visit_int<const D: usize>(&mut self, _param: &Param<Tensor<D, Int>>) {
        self.not_float.get_or_insert_with(|| self.place.path());
    }

    fn visit_bool<const D: usize>(&mut self, _param: &Param<Tensor<D, Bool>>) {
        self.not_float.get_or_insert_with(|| self.place.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
    use burn::tensor::Device;

    #[derive(Module, Debug)]
    struct Net {
        bn: BatchNorm,
        fc: Vec<Linear>,
    }

    fn net() -> Net {
        let device = Device::flex();
        Net {
            bn: BatchNormConfig::new(3).init(&device),
            fc: vec![LinearConfig::new(3, 2).init(&device)],
        }
    }

    #[test]
    fn names_and_shapes_are_those_of_pytorch() {
        let slots = slots(&net(), &KeyMap::same()).unwrap();
        let found: Vec<_> = slots
            .iter()
            .map(|slot| (slot.key.as_str(), slot.shape.as_slice(), slot.transposed))
            .collect();
        let expected: [(&str, &[usize], bool); 6] = [
            ("bn.weight", &[3], false),
            ("bn.bias", &[3], false),
            ("bn.running_mean", &[3], false),
            ("bn.running_var", &[3], false),
            ("fc.0.weight", &[2, 3], true),
            ("fc.0.bias", &[2], false),
        ];
        assert_eq!(found, expected);
        let counters: Vec<_> = slots.iter().filter_map(|s| s.counter.as_deref()).collect();
        assert_eq!(counters, ["bn.num_batches_tracked"]);
    }

    #[test]
    fn two_tensors_of_one_name_are_refused() {
        let keys = KeyMap::same().rule(r"^bn\.running_\w+", "same").unwrap();
        let error = slots(&net(), &keys).unwrap_err().to_string();
        assert_eq!(
            error,
            "the key map assigns both `bn.running_mean` and `bn.running_var` of the model to `same`"
        );
    }
}
