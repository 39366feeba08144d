//! Reads the pickles in checkpoints of `torch.save`: interpreted, never executed.
//!
//! A pickle is a program for a machine with a stack and a memo. Objects here are indices in a list,
//! so that the memo returns the object itself, as in Python: items added later are seen everywhere.
//! Only functions that build tensors and containers are known. Any other call makes an object that
//! can be filled like a dictionary or a list, as their subclasses can, and has attributes.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, Read};

use super::Element;
use crate::weights::float::Float;

/// Deepest nesting. Python's own recursion allows about as much.
const DEEPEST: usize = 500;
/// Largest number of objects of a pickle, and of visited objects: a small pickle can refer to one
/// object many times.
const MOST_OBJECTS: usize = 4 << 20;

/// Longest name of a tensor in bytes, and largest number of dimensions.
const LONGEST_NAME: usize = 4096;
/// Largest number of bytes of all names. Shared objects can give a small file many long names.
const MOST_NAMES: usize = 64 << 20;
const MOST_DIMENSIONS: usize = 64;

/// Index of an object in the list.
type Id = usize;

/// The bytes under tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Storage {
    /// Name in the container.
    pub key: String,
    /// Number of elements.
    pub len: usize,
    /// Bytes of an element.
    pub size: usize,
    /// First element of a view, in the storage.
    pub start: usize,
    /// Type of the elements, if they have one.
    kind: Option<Kind>,
}

/// An element type: its name and its size in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    name: String,
    size: usize,
}

/// A tensor as a view of a storage.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub storage: Storage,
    pub element: Element,
    /// Bytes of an element.
    pub size: usize,
    /// In elements from the beginning of the storage.
    pub offset: usize,
    pub shape: Vec<usize>,
    pub stride: Vec<usize>,
}

/// The value under a name in a checkpoint.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Tensor(View),
    /// A tensor of an unsupported kind, such as a sparse one: the function that builds it.
    Unreadable(String),
}

#[derive(Clone, Debug)]
enum Object {
    /// A value that is not used here.
    Other,
    Int(i64),
    Text(String),
    Class(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Storage(Storage),
    Tensor(View),
    /// Built by an unknown function or class.
    Made {
        by: String,
        args: Id,
        items: Vec<(Id, Id)>,
        list: Vec<Id>,
        attributes: Option<Id>,
    },
}

/// A pickle, read to its end.
pub(super) struct Pickle {
    objects: Vec<Object>,
    root: Id,
}

impl Pickle {
    /// Reads a pickle from `input`, and stops after it.
    pub(super) fn read(input: impl BufRead) -> Result<Self, String> {
        let mut machine = Machine {
            input,
            objects: vec![Object::Other],
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            copied: Cell::new(0),
        };
        let root = machine.run()?;
        Ok(Self {
            objects: machine.objects,
            root,
        })
    }

    /// The tensors by name. A name joins the keys and attributes on the way with dots.
    pub(super) fn tensors(&self) -> Result<Vec<(String, Found)>, String> {
        let mut walk = Walk {
            objects: &self.objects,
            path: Vec::new(),
            name: 0,
            within: HashSet::new(),
            seen: 0,
            names: 0,
            found: Vec::new(),
        };
        walk.go(self.root)?;
        Ok(walk.found)
    }

    /// All storages, by name.
    pub(super) fn storages(&self) -> HashMap<&str, &Storage> {
        let storages = self.objects.iter().filter_map(|object| match object {
            Object::Storage(storage) => Some((storage.key.as_str(), storage)),
            _ => None,
        });
        storages.collect()
    }

    /// The root, if it is a list of texts or numbers.
    pub(super) fn names(&self) -> Option<Vec<String>> {
        let Object::List(items) = &self.objects[self.root] else {
            return None;
        };
        items.iter().map(|id| key(&self.objects[*id])).collect()
    }

    /// The root, if it is an integer.
    pub(super) fn int(&self) -> Option<i64> {
        match self.objects[self.root] {
            Object::Int(value) => Some(value),
            _ => None,
        }
    }

    /// The number under `wanted` in the root; booleans are 0 and 1.
    pub(super) fn int_of(&self, wanted: &str) -> Option<i64> {
        let Object::Dict(items) = &self.objects[self.root] else {
            return None;
        };
        let is_wanted = |(id, _): &&(Id, Id)| key(&self.objects[*id]).as_deref() == Some(wanted);
        let (_, value) = items.iter().find(is_wanted)?;
        match self.objects[*value] {
            Object::Int(value) => Some(value),
            _ => None,
        }
    }
}

/// An object as part of a name.
fn key(object: &Object) -> Option<String> {
    match object {
        Object::Text(text) => Some(text.clone()),
        Object::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Searches tensors.
struct Walk<'a> {
    objects: &'a [Object],
    path: Vec<String>,
    /// Number of its bytes.
    name: usize,
    /// Objects around the current one: an object may contain itself.
    within: HashSet<Id>,
    seen: usize,
    /// Bytes of all names found.
    names: usize,
    found: Vec<(String, Found)>,
}

impl Walk<'_> {
    fn go(&mut self, id: Id) -> Result<(), String> {
        self.seen += 1;
        if self.seen > MOST_OBJECTS || self.path.len() > DEEPEST {
            return Err("its pickle is nested too deeply".to_owned());
        }
        if !self.within.insert(id) {
            return Ok(());
        }
        let objects = self.objects;
        match &objects[id] {
            Object::Tensor(view) => self.add(Found::Tensor(view.clone()))?,
            Object::Dict(items) => self.items(items)?,
            Object::Tuple(list) | Object::List(list) => self.list(list)?,
            Object::Made {
                by,
                args,
                items,
                list,
                attributes,
            } => {
                self.items(items)?;
                self.list(list)?;
                match attributes {
                    Some(attributes) => self.attributes(*attributes)?,
                    None if items.is_empty() && list.is_empty() && self.has_tensor(*args, 4) => {
                        self.add(Found::Unreadable(by.clone()))?;
                    }
                    None => {}
                }
            }
            _ => {}
        }
        self.within.remove(&id);
        Ok(())
    }

    fn add(&mut self, found: Found) -> Result<(), String> {
        let name = self.path.join(".");
        self.names += name.len();
        if self.names > MOST_NAMES {
            return Err("the names in its pickle need more than 64 MiB".to_owned());
        }
        self.found.push((name, found));
        Ok(())
    }

    fn step(&mut self, name: String, id: Id) -> Result<(), String> {
        let len = name.len();
        self.name += len;
        if self.name > LONGEST_NAME {
            return Err("its pickle contains names that are too long".to_owned());
        }
        self.path.push(name);
        self.go(id)?;
        self.path.pop();
        self.name -= len;
        Ok(())
    }

    fn items(&mut self, items: &[(Id, Id)]) -> Result<(), String> {
        for (name, value) in items {
            let name = key(&self.objects[*name]);
            if let Some(name) = name {
                self.step(name, *value)?;
            }
        }
        Ok(())
    }

    fn list(&mut self, list: &[Id]) -> Result<(), String> {
        for (index, value) in list.iter().enumerate() {
            self.step(index.to_string(), *value)?;
        }
        Ok(())
    }

    /// Visits an object's attributes; those of a module are what its state dict has.
    fn attributes(&mut self, id: Id) -> Result<(), String> {
        let objects = self.objects;
        let Object::Dict(items) = &objects[id] else {
            return self.go(id);
        };
        let table = |wanted: &str| {
            let found = items
                .iter()
                .find_map(|(name, value)| match &objects[*name] {
                    Object::Text(text) if text == wanted => Some(&objects[*value]),
                    _ => None,
                });
            match found {
                Some(Object::Dict(items)) => Some(items.as_slice()),
                Some(Object::Made { items, .. }) => Some(items.as_slice()),
                _ => None,
            }
        };
        let tables = ["_parameters", "_buffers", "_modules"].map(table);
        let [Some(parameters), Some(buffers), Some(modules)] = tables else {
            return self.items(items);
        };
        let passing = items.iter().find_map(|(name, value)| {
            let is_list = key(&objects[*name])? == "_non_persistent_buffers_set";
            match &objects[*value] {
                Object::List(names) if is_list => Some(names.clone()),
                _ => None,
            }
        });
        let passing: HashSet<String> = passing
            .unwrap_or_default()
            .into_iter()
            .filter_map(|id| key(&objects[id]))
            .collect();
        let stays = |(name, _): &&(Id, Id)| {
            key(&objects[*name]).is_none_or(|name| !passing.contains(&name))
        };
        let buffers: Vec<_> = buffers.iter().filter(stays).copied().collect();
        self.items(parameters)?;
        self.items(&buffers)?;
        self.items(modules)
    }

    fn has_tensor(&self, id: Id, depth: usize) -> bool {
        match &self.objects[id] {
            Object::Tensor(_) | Object::Storage(_) => true,
            Object::Tuple(list) | Object::List(list) if depth > 0 => {
                list.iter().any(|id| self.has_tensor(*id, depth - 1))
            }
            Object::Dict(items) if depth > 0 => {
                items.iter().any(|(_, id)| self.has_tensor(*id, depth - 1))
            }
            _ => false,
        }
    }
}

/// Runs a pickle.
struct Machine<R> {
    input: R,
    /// The first one stands for all values that are not used.
    objects: Vec<Object>,
    stack: Vec<Id>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Number of items copied from container to container.
    copied: Cell<usize>,
}

impl<R: BufRead> Machine<R> {
    fn run(&mut self) -> Result<Id, String> {
        loop {
            let code = self.byte()?;
            match code {
                b'.' => return self.pop(),
                0x80 => drop(self.bytes(1)?),
                0x95 => drop(self.bytes(8)?),
                _ => self.step(code)?,
            }
        }
    }

    /// Runs one operation; the names are those of Python's `pickletools`.
    fn step(&mut self, code: u8) -> Result<(), String> {
        match code {
            // Values.
            b'N' => self.stack.push(0),
            0x88 => self.push(Object::Int(1))?,
            0x89 => self.push(Object::Int(0))?,
            b'I' | b'L' => {
                let line = self.line()?;
                let number = line.trim_end_matches('L').parse::<i64>();
                self.push(number.map_or(Object::Other, Object::Int))?;
            }
            b'F' => {
                self.line()?;
                self.stack.push(0);
            }
            b'J' => {
                let raw = self.array::<4>()?;
                self.push(Object::Int(i64::from(i32::from_le_bytes(raw))))?;
            }
            b'K' => {
                let raw = self.byte()?;
                self.push(Object::Int(i64::from(raw)))?;
            }
            b'M' => {
                let raw = self.array::<2>()?;
                self.push(Object::Int(i64::from(u16::from_le_bytes(raw))))?;
            }
            b'G' => {
                self.bytes(8)?;
                self.stack.push(0);
            }
            0x8a | 0x8b => {
                let raw = match code {
                    0x8a => self.counted::<1>()?,
                    _ => self.counted::<4>()?,
                };
                self.push(integer(&raw))?;
            }
            // Texts and bytes.
            b'S' => {
                let line = self.line()?;
                let line = line.trim();
                let inner = line
                    .get(1..line.len().saturating_sub(1))
                    .unwrap_or_default();
                self.push(Object::Text(inner.to_owned()))?;
            }
            b'V' => {
                let line = self.line()?;
                self.push(Object::Text(line))?;
            }
            b'X' | b'T' => {
                let raw = self.counted::<4>()?;
                self.push(text(raw))?;
            }
            0x8c | b'U' => {
                let raw = self.counted::<1>()?;
                self.push(text(raw))?;
            }
            0x8d => {
                let raw = self.counted::<8>()?;
                self.push(text(raw))?;
            }
            b'B' => {
                self.counted::<4>()?;
                self.stack.push(0);
            }
            b'C' => {
                self.counted::<1>()?;
                self.stack.push(0);
            }
            0x8e | 0x96 => {
                self.counted::<8>()?;
                self.stack.push(0);
            }
            // Containers.
            b'(' => self.marks.push(self.stack.len()),
            b')' => self.push(Object::Tuple(Vec::new()))?,
            b']' | 0x8f => self.push(Object::List(Vec::new()))?,
            b'}' => self.push(Object::Dict(Vec::new()))?,
            b't' => {
                let items = self.since_mark()?;
                self.push(Object::Tuple(items))?;
            }
            0x85..=0x87 => {
                let count = usize::from(code - 0x84);
                let first = self.stack.len().checked_sub(count).ok_or_else(underflow)?;
                let items = self.stack.split_off(first);
                self.push(Object::Tuple(items))?;
            }
            b'l' | 0x91 => {
                let items = self.since_mark()?;
                self.push(Object::List(items))?;
            }
            b'd' => {
                let items = pairs(self.since_mark()?)?;
                self.push(Object::Dict(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.extend(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.since_mark()?;
                self.extend(items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(vec![(key, value)])?;
            }
            b'u' => {
                let items = pairs(self.since_mark()?)?;
                self.set(items)?;
            }
            // The stack and the memo.
            b'0' if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'g' | b'h' | b'j' => {
                let place = self.place(code, [b'g', b'h'])?;
                let id = self.memo.get(&place).copied();
                let id =
                    id.ok_or_else(|| format!("its pickle refers to the unknown object {place}"))?;
                self.stack.push(id);
            }
            b'p' | b'q' | b'r' => {
                let place = self.place(code, [b'p', b'q'])?;
                let top = self.top()?;
                self.memo.insert(place, top);
            }
            0x94 => {
                let top = self.top()?;
                self.memo.insert(self.memo.len() as u32, top);
            }
            // Objects.
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Object::Class(format!("{module}.{name}")))?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Object::Text(module), Object::Text(name)) =
                    (&self.objects[module], &self.objects[name])
                else {
                    return Err(
                        "its pickle names a class with something other than strings".to_owned()
                    );
                };
                let class = Object::Class(format!("{module}.{name}"));
                self.push(class)?;
            }
            b'Q' => {
                let id = self.pop()?;
                match self.module(id) {
                    Some(class) => self.stack.push(class),
                    None => {
                        let storage = self.storage(id)?;
                        self.push(Object::Storage(storage))?;
                    }
                }
            }
            b'R' | 0x81 => {
                let (args, callable) = (self.pop()?, self.pop()?);
                let made = self.call(callable, args, 0)?;
                self.push(made)?;
            }
            0x92 => {
                let (_named, args, class) = (self.pop()?, self.pop()?, self.pop()?);
                let made = self.call(class, args, 0)?;
                self.push(made)?;
            }
            b'o' => {
                let mut parts = self.since_mark()?;
                if parts.is_empty() {
                    return Err(underflow());
                }
                let class = parts.remove(0);
                let args = self.make(Object::Tuple(parts))?;
                let made = self.call(class, args, 0)?;
                self.push(made)?;
            }
            b'b' => {
                let (state, object) = (self.pop()?, self.top()?);
                if let Object::Made { attributes, .. } = &mut self.objects[object] {
                    *attributes = Some(state);
                }
            }
            other => {
                return Err(format!(
                    "its pickle uses the unknown operation 0x{other:02x}"
                ));
            }
        }
        Ok(())
    }

    /// The result of calling a function or class with `args`.
    fn call(&self, callable: Id, args: Id, depth: usize) -> Result<Object, String> {
        let by = match &self.objects[callable] {
            Object::Class(name) => name.as_str(),
            _ => "something that is not a class",
        };
        let list = match &self.objects[args] {
            Object::Tuple(list) => list.as_slice(),
            _ => &[],
        };
        let first = || list.first().map(|id| &self.objects[*id]);
        Ok(match by {
            "collections.OrderedDict"
            | "collections.Counter"
            | "builtins.dict"
            | "__builtin__.dict" => self.dict(first())?,
            "collections.defaultdict" => self.dict(list.get(1).map(|id| &self.objects[*id]))?,
            "collections.deque"
            | "builtins.set"
            | "builtins.frozenset"
            | "builtins.list"
            | "__builtin__.set"
            | "__builtin__.frozenset"
            | "__builtin__.list" => match first() {
                Some(Object::Tuple(items) | Object::List(items)) => {
                    self.copy(items.len())?;
                    Object::List(items.clone())
                }
                _ => Object::List(Vec::new()),
            },
            "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2" => {
                Object::Tensor(self.view(list, None)?)
            }
            "torch._utils._rebuild_tensor_v3" => {
                let kind = match list.get(6).map(|id| &self.objects[*id]) {
                    Some(Object::Class(name)) => Some(of_dtype(name)),
                    _ => None,
                };
                Object::Tensor(self.view(list, kind)?)
            }
            "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state" => {
                match first() {
                    Some(Object::Tensor(view)) => Object::Tensor(view.clone()),
                    _ => Object::Other,
                }
            }
            // For a subclass of tensors: the function, the class, its arguments.
            "torch._tensor._rebuild_from_type_v2" if depth < 8 => match list {
                [function, _, inner, ..] => self.call(*function, *inner, depth + 1)?,
                _ => Object::Other,
            },
            _ => Object::Made {
                by: by.to_owned(),
                args,
                items: Vec::new(),
                list: Vec::new(),
                attributes: None,
            },
        })
    }

    /// A dictionary from another one, or from a list of pairs.
    fn dict(&self, from: Option<&Object>) -> Result<Object, String> {
        let items = match from {
            Some(Object::Dict(items)) => {
                self.copy(items.len())?;
                items.clone()
            }
            Some(Object::List(list) | Object::Tuple(list)) => {
                self.copy(list.len())?;
                let pair = |id: &Id| match &self.objects[*id] {
                    Object::Tuple(pair) | Object::List(pair) => {
                        pair.first_chunk::<2>().map(|[key, value]| (*key, *value))
                    }
                    _ => None,
                };
                list.iter().filter_map(pair).collect()
            }
            _ => Vec::new(),
        };
        Ok(Object::Dict(items))
    }

    /// Checks the limit before `items` items are copied.
    fn copy(&self, items: usize) -> Result<(), String> {
        let copied = self.copied.get().saturating_add(items);
        self.copied.set(copied);
        match copied <= MOST_OBJECTS {
            true => Ok(()),
            false => Err("its pickle copies too many objects".to_owned()),
        }
    }

    /// `(storage, offset, shape, stride, ..)`.
    fn view(&self, args: &[Id], kind: Option<Kind>) -> Result<View, String> {
        let [storage, offset, shape, stride, ..] = args else {
            return Err("its pickle builds a tensor from too few arguments".to_owned());
        };
        let Object::Storage(storage) = &self.objects[*storage] else {
            return Err(
                "its pickle builds a tensor from something other than a storage".to_owned(),
            );
        };
        let kind = kind.or_else(|| storage.kind.clone());
        let Some(Kind { name, size }) = kind else {
            return Err(format!("its storage {} has no type", storage.key));
        };
        let (shape, stride) = (self.sizes(*shape)?, self.sizes(*stride)?);
        let offset = self.size(*offset)?.checked_add(storage.start);
        let view = View {
            storage: storage.clone(),
            element: element(&name),
            size,
            offset: offset.ok_or_else(too_large)?,
            shape,
            stride,
        };
        match view.end() {
            Some(end) if view.shape.len() == view.stride.len() => {
                let within = storage
                    .len
                    .checked_mul(storage.size)
                    .ok_or_else(too_large)?;
                match end.checked_mul(size) {
                    Some(bytes) if bytes <= within => Ok(view),
                    _ => Err(format!(
                        "its pickle builds a tensor of shape {:?} from the storage {}, which has \
                         {} elements",
                        view.shape, storage.key, storage.len
                    )),
                }
            }
            _ => Err(too_large()),
        }
    }

    fn sizes(&self, id: Id) -> Result<Vec<usize>, String> {
        match &self.objects[id] {
            Object::Tuple(sizes) | Object::List(sizes) => {
                sizes.iter().map(|size| self.size(*size)).collect()
            }
            // The form in which `torch.Size` is built.
            Object::Made { args, .. } => match &self.objects[*args] {
                Object::Tuple(inner) if inner.len() == 1 && inner[0] != id => {
                    match &self.objects[inner[0]] {
                        Object::Tuple(sizes) | Object::List(sizes) => {
                            sizes.iter().map(|size| self.size(*size)).collect()
                        }
                        _ => Err(no_size()),
                    }
                }
                _ => Err(no_size()),
            },
            _ => Err(no_size()),
        }
        .and_then(|sizes: Vec<usize>| match sizes.len() <= MOST_DIMENSIONS {
            true => Ok(sizes),
            false => Err(too_large()),
        })
    }

    fn size(&self, id: Id) -> Result<usize, String> {
        match self.objects[id] {
            Object::Int(size) => usize::try_from(size).map_err(|_| no_size()),
            _ => Err(no_size()),
        }
    }

    /// The class of `('module', class, file, source)`, which records a class's source in streams.
    fn module(&self, id: Id) -> Option<Id> {
        let Object::Tuple(parts) = &self.objects[id] else {
            return None;
        };
        let [tag, class, ..] = parts.as_slice() else {
            return None;
        };
        matches!(&self.objects[*tag], Object::Text(tag) if tag == "module").then_some(*class)
    }

    /// `('storage', type, key, place, elements[, (key, start, elements)])`.
    fn storage(&self, id: Id) -> Result<Storage, String> {
        let wrong = || "its pickle names a storage in an unknown form".to_owned();
        let Object::Tuple(parts) = &self.objects[id] else {
            return Err(wrong());
        };
        let [tag, class, name, _, len, view @ ..] = parts.as_slice() else {
            return Err(wrong());
        };
        if !matches!(&self.objects[*tag], Object::Text(tag) if tag == "storage") {
            return Err(wrong());
        }
        let (Object::Class(class) | Object::Text(class)) = &self.objects[*class] else {
            return Err(wrong());
        };
        let class = class.rsplit('.').next().unwrap_or_default();
        let kind = match class {
            "UntypedStorage" => None,
            class => Some(of_storage(class)),
        };
        let start = match view.first().map(|id| &self.objects[*id]) {
            Some(Object::Tuple(view)) => self.size(*view.get(1).ok_or_else(wrong)?)?,
            _ => 0,
        };
        Ok(Storage {
            key: key(&self.objects[*name]).ok_or_else(wrong)?,
            len: self.size(*len)?,
            size: kind.as_ref().map_or(1, |kind| kind.size),
            start,
            kind,
        })
    }

    fn extend(&mut self, items: Vec<Id>) -> Result<(), String> {
        let top = self.top()?;
        match &mut self.objects[top] {
            Object::List(list) | Object::Made { list, .. } => list.extend(items),
            _ => return Err("its pickle appends to something that is not a list".to_owned()),
        }
        Ok(())
    }

    fn set(&mut self, pairs: Vec<(Id, Id)>) -> Result<(), String> {
        let top = self.top()?;
        match &mut self.objects[top] {
            Object::Dict(items) | Object::Made { items, .. } => items.extend(pairs),
            _ => return Err("its pickle fills something that is not a dictionary".to_owned()),
        }
        Ok(())
    }

    /// The memo index of an operation: on a line, in one byte, or in four.
    fn place(&mut self, code: u8, [line, byte]: [u8; 2]) -> Result<u32, String> {
        if code == line {
            let line = self.line()?;
            return line
                .parse()
                .map_err(|_| format!("its pickle has an invalid position {line:?}"));
        }
        if code == byte {
            return Ok(u32::from(self.byte()?));
        }
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn make(&mut self, object: Object) -> Result<Id, String> {
        if self.objects.len() >= MOST_OBJECTS {
            return Err("its pickle contains too many objects".to_owned());
        }
        self.objects.push(object);
        Ok(self.objects.len() - 1)
    }

    fn push(&mut self, object: Object) -> Result<(), String> {
        let id = match object {
            Object::Other => 0,
            object => self.make(object)?,
        };
        self.stack.push(id);
        Ok(())
    }

    fn top(&self) -> Result<Id, String> {
        self.stack.last().copied().ok_or_else(underflow)
    }

    fn pop(&mut self) -> Result<Id, String> {
        self.stack.pop().ok_or_else(underflow)
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or_else(underflow)?;
        match mark <= self.stack.len() {
            true => Ok(self.stack.split_off(mark)),
            false => Err(underflow()),
        }
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.array::<1>()?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut raw = [0; N];
        self.input.read_exact(&mut raw).map_err(unreadable)?;
        Ok(raw)
    }

    /// Reads `len` bytes; memory grows as they arrive.
    fn bytes(&mut self, len: u64) -> Result<Vec<u8>, String> {
        let mut raw = Vec::new();
        let mut part = (&mut self.input).take(len);
        std::io::Read::read_to_end(&mut part, &mut raw).map_err(unreadable)?;
        match raw.len() as u64 == len {
            true => Ok(raw),
            false => Err(cut_short()),
        }
    }

    /// Reads the bytes after their `N`-byte length.
    fn counted<const N: usize>(&mut self) -> Result<Vec<u8>, String> {
        let raw = self.array::<N>()?;
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&raw);
        self.bytes(u64::from_le_bytes(wide))
    }

    fn line(&mut self) -> Result<String, String> {
        let mut raw = Vec::new();
        self.input.read_until(b'\n', &mut raw).map_err(unreadable)?;
        match raw.pop() {
            Some(b'\n') => Ok(String::from_utf8_lossy(&raw)
                .trim_end_matches('\r')
                .to_owned()),
            _ => Err(cut_short()),
        }
    }
}

impl View {
    /// End of the viewed elements in the storage; `None` if it overflows.
    pub(super) fn end(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(self.offset);
        }
        let mut last = self.offset;
        for (size, step) in self.shape.iter().zip(&self.stride) {
            last = last.checked_add((size - 1).checked_mul(*step)?)?;
        }
        last.checked_add(1)
    }
}

fn element(name: &str) -> Element {
    match name {
        "F64" => Element::Float(Float::F64),
        "F32" => Element::Float(Float::F32),
        "F16" => Element::Float(Float::F16),
        "BF16" => Element::Float(Float::BF16),
        other => Element::Other(other.to_owned()),
    }
}

/// Returns the kind of a class of storages.
fn of_storage(class: &str) -> Kind {
    let (name, size) = match class {
        "DoubleStorage" => ("F64", 8),
        "FloatStorage" => ("F32", 4),
        "HalfStorage" => ("F16", 2),
        "BFloat16Storage" => ("BF16", 2),
        "LongStorage" => ("I64", 8),
        "IntStorage" => ("I32", 4),
        "ShortStorage" => ("I16", 2),
        "CharStorage" => ("I8", 1),
        "ByteStorage" => ("U8", 1),
        "BoolStorage" => ("Bool", 1),
        "ComplexDoubleStorage" => ("C128", 16),
        "ComplexFloatStorage" => ("C64", 8),
        "QInt32Storage" => ("QI32", 4),
        other => (other.trim_end_matches("Storage"), 1),
    };
    Kind {
        name: name.to_owned(),
        size,
    }
}

/// Returns the kind of an attribute of torch, for a storage of bytes.
fn of_dtype(name: &str) -> Kind {
    let name = name.rsplit('.').next().unwrap_or_default();
    let (name, size) = match name {
        "float64" | "double" => ("F64", 8),
        "float32" | "float" => ("F32", 4),
        "float16" | "half" => ("F16", 2),
        "bfloat16" => ("BF16", 2),
        "int64" | "long" => ("I64", 8),
        "uint64" => ("U64", 8),
        "int32" | "uint32" => ("U32", 4),
        "int16" | "uint16" => ("U16", 2),
        other => (other, 1),
    };
    Kind {
        name: name.to_owned(),
        size,
    }
}

/// Little-endian, with a sign; integers wider than 64 bits are not used.
fn integer(raw: &[u8]) -> Object {
    if raw.len() > 8 {
        return Object::Other;
    }
    let negative = raw.last().is_some_and(|last| last & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..raw.len()].copy_from_slice(raw);
    Object::Int(i64::from_le_bytes(wide))
}

fn text(raw: Vec<u8>) -> Object {
    Object::Text(
        String::from_utf8(raw)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
    )
}

fn pairs(items: Vec<Id>) -> Result<Vec<(Id, Id)>, String> {
    let (pairs, rest) = items.as_chunks::<2>();
    match rest {
        [] => Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect()),
        _ => Err("its pickle has a key without a value".to_owned()),
    }
}

fn underflow() -> String {
    "its pickle reads below the bottom of its stack".to_owned()
}

fn cut_short() -> String {
    "its pickle ends too early; the file may be truncated".to_owned()
}

fn unreadable(error: std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => cut_short(),
        _ => error.to_string(),
    }
}

fn too_large() -> String {
    "its pickle builds a tensor whose size overflows".to_owned()
}

fn no_size() -> String {
    "its pickle gives a tensor size that is not a number of elements".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tensor_under_very_many_long_names_is_refused() {
        let text = |text: &str| {
            [
                b"X",
                &(text.len() as u32).to_le_bytes()[..],
                text.as_bytes(),
            ]
            .concat()
        };
        let nested = |times: usize| {
            let parts = [
                b"\x80\x02}".to_vec(),
                text(&"k".repeat(LONGEST_NAME - 100)),
                b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
                text("storage"),
                b"ctorch\nFloatStorage\n".to_vec(),
                text("0"),
                text("cpu"),
                b"K\x01tQK\x00))tRs".to_vec(),
                // Each round makes a pair of the same object.
                b"2\x86".repeat(times),
                b".".to_vec(),
            ];
            Pickle::read(parts.concat().as_slice()).unwrap().tensors()
        };
        assert_eq!(nested(3).unwrap().len(), 8);
        let refused = nested(15).map(|found| found.len()).unwrap_err();
        assert!(refused.contains("64 MiB"), "{refused}");
    }
}
