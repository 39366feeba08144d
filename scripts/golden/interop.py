"""PyTorch's half of the test models/tests/weights_torch.rs.

    interop.py write FOLDER   saves checkpoints of one model the way training scripts do
    interop.py read FOLDER    loads what Rust exported, strictly, and compares what it computes
"""

import inspect
import json
import pathlib
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from make import MODELS
from vit import Vit

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "models/tests/golden"


def golden(case):
    with safe_open(GOLDEN / f"{case}.safetensors", "pt") as file:
        config = json.loads(file.metadata()["config"])
    return config, load_file(GOLDEN / f"{case}.safetensors")


def write(folder):
    """Checkpoints of the case csc_cnn with the state dict `param/`."""
    config, tensors = golden("csc_cnn")
    net = MODELS[config["model"]](**config["sizes"])
    parameters = {k.removeprefix("param/"): v for k, v in tensors.items() if k.startswith("param/")}
    net.load_state_dict(parameters)
    state = net.state_dict()
    optimizer = torch.optim.AdamW(net.parameters())
    net(tensors["input"]).sum().backward()
    optimizer.step()
    net.load_state_dict(parameters)
    ddp = {f"module.{key}": value for key, value in state.items()}
    transposed = {k: v.t().contiguous().t() if v.dim() == 2 else v for k, v in state.items()}
    cast = lambda dtype: {k: v.to(dtype) if v.is_floating_point() else v for k, v in state.items()}
    checkpoints = {
        "plain": state,
        "wrapped": {"epoch": 3, "state_dict": ddp, "optimizer": optimizer.state_dict()},
        "model": {"model": state, "args": {"lr": 0.1, "name": "csc"}, "model_ema": ddp},
        "module": net,
        "compiled": {f"_orig_mod.{key}": value for key, value in state.items()},
        "strided": transposed,
        "f64": cast(torch.float64),
    }
    for name, checkpoint in checkpoints.items():
        torch.save(checkpoint, folder / f"{name}.pt")
    torch.save(state, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.save(cast(torch.float16), folder / "half_f16.pt")
    torch.save(cast(torch.bfloat16), folder / "half_bf16.pt")


def read(folder):
    for path in sorted(folder.glob("*.safetensors")):
        if path.stem == "torchvision":
            continue
        config, tensors = golden(path.stem)
        net = MODELS[config["model"]](**config["sizes"])
        net.load_state_dict(load_file(path), strict=True)
        found = net.eval()(tensors["input"])
        torch.testing.assert_close(found, tensors["eval_logits"], rtol=1e-5, atol=1e-5)
        print(f"{path.stem}: loaded strictly")
        same(load_file(path), path.with_suffix(".pt"))
        print(f"{path.stem}: the same in .pt")
    read_torchvision(folder / "torchvision.safetensors")


def same(tensors, path):
    """Whether the checkpoint at `path` has exactly `tensors`, also if it is mapped into memory."""
    can_map = "mmap" in inspect.signature(torch.load).parameters
    for how in [{}] + [{"mmap": True}] * can_map:
        found = torch.load(path, weights_only=True, **how)
        assert set(found) == set(tensors), path
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def read_torchvision(path):
    try:
        from torchvision.models import VisionTransformer
    except ImportError:
        print("SKIPPED: torchvision is not installed")
        return
    net = VisionTransformer(
        image_size=8, patch_size=4, num_layers=2, num_heads=3, hidden_dim=12, mlp_dim=48,
        num_classes=5,
    )  # fmt: skip
    net.load_state_dict(load_file(path), strict=True)
    ours = load_file(path.with_suffix(".ours"))
    images, logits = ours.pop("images"), ours.pop("logits")
    torch.testing.assert_close(net.eval()(images), logits, rtol=1e-5, atol=1e-5)
    same = Vit(12, 2, 3, 5, 4, 3, 8, 8, 4, "ClassToken").eval()
    same.load_state_dict(ours, strict=True)
    torch.testing.assert_close(same(images), logits, rtol=1e-5, atol=1e-5)
    print("torchvision: loaded strictly")


if __name__ == "__main__":
    with torch.no_grad() if sys.argv[1] == "read" else torch.enable_grad():
        {"write": write, "read": read}[sys.argv[1]](pathlib.Path(sys.argv[2]))
