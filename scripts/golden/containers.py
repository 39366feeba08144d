"""Checkpoints in the containers of other programs, for models/tests/weights.rs. Needs no PyTorch.

    containers.py    writes lightning.ckpt, averaged.pt and stream.pt beside csc_cnn.safetensors

All hold the state dict of the case csc_cnn. Python's own pickle writes them as `torch.save` does, with stand-ins for
PyTorch's functions, storages and tensors under their names.
"""

import argparse
import collections
import io
import json
import pathlib
import pickle
import struct
import sys
import types
import zipfile

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "models/tests/golden"


def named(module, name, thing):
    """Gives `thing` a name under which pickle finds it."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        whole = ".".join(parts[:end])
        parent = sys.modules.setdefault(whole, types.ModuleType(whole))
    thing.__module__, thing.__qualname__, thing.__name__ = module, name, name
    setattr(parent, name, thing)
    return thing


REBUILD = named("torch._utils", "_rebuild_tensor_v2", lambda *_: None)
TYPES = {
    "F32": named("torch", "FloatStorage", type("FloatStorage", (), {})),
    "I64": named("torch", "LongStorage", type("LongStorage", (), {})),
}


ATTRIBUTES = named("lightning.fabric.utilities.data", "AttributeDict", type("AttributeDict", (dict,), {}))
HISTORY = named("mine", "History", type("History", (list,), {}))
CONFIG = named("mine", "Config", type("Config", (), {}))
COUNTED = named("mine", "Counted", type("Counted", (collections.OrderedDict,), {}))


class Storage:
    def __init__(self, dtype, data, count):
        self.dtype, self.data, self.count = dtype, data, count


class Tensor:
    def __init__(self, dtype, shape, data):
        self.shape = tuple(shape)
        count = 1
        for size in shape:
            count *= size
        self.storage = Storage(dtype, data, count)

    def __reduce__(self):
        stride, step = [], 1
        for size in reversed(self.shape):
            stride.insert(0, step)
            step *= size
        return REBUILD, (self.storage, 0, self.shape, tuple(stride), False, collections.OrderedDict())


class Pickler(pickle.Pickler):
    def __init__(self, file, protocol):
        super().__init__(file, protocol=protocol)
        self.storages = []

    def persistent_id(self, thing):
        if not isinstance(thing, Storage):
            return None
        if thing not in self.storages:
            self.storages.append(thing)
        key = str(self.storages.index(thing))
        return "storage", TYPES[thing.dtype], key, "cpu", thing.count


def pickled(thing, protocol):
    file = io.BytesIO()
    pickler = Pickler(file, protocol)
    pickler.dump(thing)
    return file.getvalue(), pickler.storages


def save(thing, path, protocol=2):
    content, storages = pickled(thing, protocol)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        def put(name, data):
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), data)
        put("data.pkl", content)
        put("byteorder", "little")
        for index, storage in enumerate(storages):
            put(f"data/{index}", storage.data)
        put("version", "3\n")


def save_stream(thing, path):
    """As before PyTorch 1.6."""
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    content, storages = pickled(thing, 2)
    with open(path, "wb") as file:
        pickle.dump(0x1950A86A20F9469CFC6C, file, protocol=2)
        pickle.dump(1001, file, protocol=2)
        pickle.dump(system, file, protocol=2)
        file.write(content)
        pickle.dump([str(index) for index in range(len(storages))], file, protocol=2)
        for storage in storages:
            file.write(struct.pack("<q", storage.count) + storage.data)


def state_dict():
    raw = (GOLDEN / "csc_cnn.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, values = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    tensors = collections.OrderedDict()
    for key, info in sorted(header.items()):
        if key.startswith("param/"):
            begin, end = info["data_offsets"]
            data = values[begin:end]
            if key.endswith("num_batches_tracked"):
                data = struct.pack("<q", 1234 if "layer1" in key else 4321)
            tensors[key.removeprefix("param/")] = Tensor(info["dtype"], info["shape"], data)
    return tensors


def extras():
    """What training scripts put beside the weights."""
    filled, losses, own = ATTRIBUTES(lr=0.1, layers=[1, 2]), HISTORY([1.5, 0.5]), CONFIG()
    losses.best = 0.5
    own.depth, own.itself = 3, own
    ring = {"a": 1}
    ring["ring"] = ring
    return {
        "defaultdict": collections.defaultdict(list, a=[1]),
        "nested": collections.defaultdict(dict, {1: {"x": collections.defaultdict(int, y=2)}}),
        "deque": collections.deque([1, 2, 3], maxlen=5),
        "counter": collections.Counter("abca"),
        "hyper_parameters": filled,
        "history": losses,
        "config": own,
        "counted": COUNTED(a=1),
        "arguments": argparse.Namespace(lr=0.1, betas=(0.9, 0.99)),
        "set": {1, 2}, "frozen": frozenset([3]), "bytes": b"\0\1", "complex": 1 + 2j, "large": 1 << 100,
        "ring": ring,
    }  # fmt: skip


def main():
    state = state_dict()
    prefixed = lambda prefix: collections.OrderedDict((prefix + key, value) for key, value in state.items())
    moments = {index: {"exp_avg": value} for index, value in enumerate(state.values())}
    lightning = {
        "epoch": 3, "callbacks": extras(), "optimizer_states": [{"state": moments, "param_groups": []}],
        "state_dict": prefixed("model._orig_mod."),
    }  # fmt: skip
    save({**extras(), **lightning}, GOLDEN / "lightning.ckpt", protocol=4)
    averaged = prefixed("module.")
    averaged["n_averaged"] = Tensor("I64", (), struct.pack("<q", 7))
    save({"params_ema": averaged, "history": extras()}, GOLDEN / "averaged.pt")
    save_stream({"weights": state, **extras()}, GOLDEN / "stream.pt")


if __name__ == "__main__":
    main()
