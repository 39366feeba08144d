"""Writes the golden files: what PyTorch computes with small configurations of every model.

    pip install torch safetensors numpy          # and torchvision timm, to compare with them
    python scripts/golden/make.py                # writes models/tests/golden/*.safetensors, tiny.pt

The format is described in models/tests/golden/README.md. Everything is computed in float64 from
parameters and inputs that are float32 numbers, so the files hold no rounding errors of their own.

Two correct implementations differ by much more than rounding where an input of a ReLU or two inputs
of a max-pooling are next to equal. Therefore the same is computed in float32 too, also with the
images moved by 1e-6, and a seed is taken only if all results agree to a fifth of the tolerances.
"""

import argparse
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import convnext
import resnet
import vit
from cnn import Cnn
from convnext import ConvNext
from csc_cnn import CscCnn
from plain_wide_resnet import PlainWideResNet
from resnet import ResNet
from vit import Vit
from wide_resnet import WideResNet

OPTIMIZERS = {
    "sgd": {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
    "adamw": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.05},
}
MODELS = {
    "cnn": Cnn,
    "csc-cnn": CscCnn,
    "wide-resnet": WideResNet,
    "plain-wide-resnet": PlainWideResNet,
    "resnet": ResNet,
    "vit": Vit,
    "convnext": ConvNext,
}
IMAGE = {"channels": 3, "classes": 5}
VIT = {"dim": 12, "depth": 2, "heads": 3, "mlp_ratio": 2, "height": 8, "width": 12, "patch": 4}
# name: (model, its sizes, batch, height, width of the images)
CASES = {
    "cnn": ("cnn", IMAGE | {"height": 12, "width": 10, "filters": [4, 5], "hidden": 8}, 4, 12, 10),
    "csc_cnn": ("csc-cnn", IMAGE | {"height": 12, "width": 9, "filters": [4, 6]}, 4, 12, 9),
    "wrn_10_2": ("wide-resnet", IMAGE | {"depth": 10, "widen": 2, "base": 2}, 4, 12, 12),
    "wrn_16_1": ("wide-resnet", IMAGE | {"depth": 16, "widen": 1, "base": 2}, 4, 12, 12),
    "plain_wide_resnet_pool7": (
        "plain-wide-resnet", IMAGE | {"widths": [2, 3, 4, 5], "average_pool": 7}, 2, 32, 32,
    ),
    "plain_wide_resnet_global": (
        "plain-wide-resnet", IMAGE | {"widths": [3, 3, 4, 6], "average_pool": None}, 4, 16, 12,
    ),
    "resnet_basic_imagenet": (
        "resnet",
        IMAGE | {"blocks": [2, 1, 1, 1], "bottleneck": False, "width": 2, "stem": "ImageNet"},
        2, 40, 40,
    ),
    "resnet_basic_cifar": (
        "resnet",
        IMAGE | {"blocks": [1, 2, 1, 1], "bottleneck": False, "width": 2, "stem": "Cifar"},
        4, 16, 16,
    ),
    "resnet_bottleneck_imagenet": (
        "resnet",
        IMAGE
        | {"channels": 1, "blocks": [1, 1, 1, 1], "bottleneck": True, "width": 2, "stem": "ImageNet"},
        4, 36, 36,
    ),
    "resnet_bottleneck_cifar": (
        "resnet",
        IMAGE | {"blocks": [2, 1, 1, 1], "bottleneck": True, "width": 2, "stem": "Cifar"},
        4, 16, 16,
    ),
    "vit_class_token": ("vit", IMAGE | VIT | {"pooling": "ClassToken"}, 4, 8, 12),
    "vit_mean": ("vit", IMAGE | VIT | {"pooling": "Mean"}, 4, 8, 12),
    "convnext": (
        "convnext",
        IMAGE | {"depths": [1, 1, 2, 1], "widths": [4, 6, 8, 10], "patch": 2},
        4, 16, 24,
    ),
}  # fmt: skip
MAX_BYTES = 300 * 1024
MAX_TOTAL = 2 * 1024 * 1024


def build(model, sizes, generator):
    """The model with random values where PyTorch would start with zeros and ones."""
    net = MODELS[model](**sizes)

    def normal(tensor, std, mean=0.0):
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std + mean)

    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name.endswith("num_batches_tracked"):
                continue
            if name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            elif tensor.dim() > 1:
                fan_in = math.prod(tensor.shape[1:])
                normal(tensor, 0.5 if "embed" in name or "token" in name else (2 / fan_in) ** 0.5)
            elif name.endswith("weight"):
                normal(tensor, 0.2, 1.0)
            else:
                normal(tensor, 0.2)
    return {key: tensor.clone() for key, tensor in net.state_dict().items()}


def run(model, sizes, state, images, target, dtype):
    """Everything that a golden file holds, computed with `dtype`."""
    images, results = images.to(dtype), {}

    def fresh():
        net = MODELS[model](**sizes)
        net.load_state_dict(state)
        return net.to(dtype).train()

    net = fresh()
    logits = net(images)
    loss = F.cross_entropy(logits, target)
    loss.backward()
    results |= {"logits": logits, "loss": loss}
    results |= {f"grad/{key}": parameter.grad for key, parameter in net.named_parameters()}
    for optimizer, options in OPTIMIZERS.items():
        net = fresh()
        kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
        optim = kind(net.parameters(), **options)
        for step in (1, 2, 3):
            optim.zero_grad()
            F.cross_entropy(net(images), target).backward()
            optim.step()
            if step != 2:
                results |= {
                    f"{optimizer}{step}/{key}": tensor.clone()
                    for key, tensor in net.state_dict().items()
                    if not key.endswith("num_batches_tracked")
                }
        if optimizer == "sgd":
            results["eval_logits"] = net.eval()(images)
    return {key: tensor.detach().double() for key, tensor in results.items()}


def worst(exact, other, state):
    """The largest difference between two runs, as a multiple of what the tests tolerate."""
    largest = max(exact[key].abs().max() for key in exact if key.startswith("grad/"))
    without_gradient = any(
        exact[key].abs().max() < 1e-6 * largest for key in exact if key.startswith("grad/")
    )
    found = 0.0
    for key, wanted in exact.items():
        difference = (other[key] - wanted).abs()
        kind, _, name = key.partition("/")
        if kind in ("logits", "loss"):
            tolerated = 1e-5 * wanted.abs().clamp(min=1)
        elif kind == "eval_logits":
            tolerated = 1e-4 * wanted.abs().clamp(min=1)
        elif kind == "grad":
            tolerated = 1e-4 * wanted.abs().max()
            if wanted.abs().max() < 1e-6 * largest:
                tolerated = 1e-6 * largest
        elif "running" in name:
            tolerated = 1e-5 * wanted.abs().clamp(min=1)
            if name.endswith("running_mean") and kind.startswith("adamw") and without_gradient:
                tolerated = tolerated + int(kind[-1]) * OPTIMIZERS["adamw"]["lr"]
        else:
            tolerated = 1e-3 * (wanted - state[name].double()).abs().max() + 1e-6 * wanted.abs().max()
            if kind.startswith("adamw"):
                # Adam moves a parameter whose gradient is rounding errors by rounding errors.
                grad = exact[f"grad/{name}"].abs()
                difference = difference * (grad > 1e-3 * max(grad.max(), 1e-3 * largest))
        found = max(found, (difference / tolerated).max().item())
    return found


def make(name, folder):
    model, sizes, batch, height, width = CASES[name]
    for seed in range(2000):
        generator = torch.Generator().manual_seed(seed)
        state = build(model, sizes, generator)
        images = torch.randn(batch, sizes["channels"], height, width, generator=generator)
        target = torch.randint(sizes["classes"], (batch,), generator=generator)
        exact = run(model, sizes, state, images, target, torch.float64)
        nudge = images.double() + 1e-6 * torch.randn(images.shape, generator=generator).double()
        difference = max(
            worst(exact, run(model, sizes, state, images, target, torch.float32), state),
            worst(exact, run(model, sizes, state, nudge.float(), target, torch.float32), state) / 5,
        )
        if difference < 0.2:
            break
    else:
        sys.exit(f"{name}: no seed is stable")
    tensors = {"input": images, "target": target}
    tensors |= {f"param/{key}": tensor for key, tensor in state.items()}
    tensors |= {key: tensor.float().contiguous() for key, tensor in exact.items()}
    config = {"model": model, "sizes": sizes, "optimizers": OPTIMIZERS}
    path = folder / f"{name}.safetensors"
    save_file(tensors, path, {"config": json.dumps(config)})
    size = path.stat().st_size
    print(f"{name}: seed {seed}, {size} bytes, differences {difference:.3f} of the tolerances")
    assert size <= MAX_BYTES, f"{path} is larger than {MAX_BYTES} bytes"
    return size, state


def of_torchvision(state):
    """The state dict of a ConvNeXt as torchvision has it."""
    shape = lambda key: (-1, 1, 1) if key.endswith(".gamma") else state[key].shape
    return {convnext.torchvision_key(key): state[key].reshape(shape(key)) for key in state}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-check", action="store_true", help="don't compare with other libraries")
    parser.add_argument("cases", nargs="*", help="names of cases, all if none is given")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if not arguments.no_check:
        torch.manual_seed(0)
        with torch.no_grad():
            resnet.check()
            vit.check()
            convnext.check()
    folder = pathlib.Path(__file__).resolve().parents[2] / "models/tests/golden"
    total = 0
    for name in arguments.cases or CASES:
        size, state = make(name, folder)
        total += size
        if name == "csc_cnn":
            torch.save(state, folder / "csc_cnn.pt")
            wrapped = {f"module.{key}": tensor for key, tensor in state.items()}
            momentum = {0: {"momentum_buffer": state["fc.bias"]}}
            checkpoint = {"epoch": 3, "state_dict": wrapped, "optimizer": {"state": momentum}}
            torch.save(checkpoint, folder / "csc_cnn_checkpoint.pt")
        if name == "convnext":
            torch.save(of_torchvision(state), folder / "convnext_torchvision.pt")
    assert total <= MAX_TOTAL, f"{total} bytes are more than {MAX_TOTAL}"
    print(f"{total} bytes together")


if __name__ == "__main__":
    main()
