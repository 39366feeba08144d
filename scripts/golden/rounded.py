"""How far PyTorch itself is from the golden files when it computes in half precision on the processor.

    python scripts/golden/rounded.py

Normalisations over the few values of a golden file amplify roundings, so what `bench gpu --parts
parity` finds of a device is to be read beside it. Per file the distance ‖found − golden‖ / ‖golden‖ of
all gradients together, with autocast and with a model of that type.
"""

import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file

from make import MODELS

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "models/tests/golden"
SCALE = 256.0


def distance(path, dtype, autocast):
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])
    tensors = load_file(path)
    under = lambda kind: {
        key.removeprefix(kind): value for key, value in tensors.items() if key.startswith(kind)
    }
    net = MODELS[config["model"]](**config["sizes"])
    net.load_state_dict(under("param/"))
    net, images = (net, tensors["input"]) if autocast else (net.to(dtype), tensors["input"].to(dtype))
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        logits = net.train()(images)
    (F.cross_entropy(logits.float(), tensors["target"].long()) * SCALE).backward()
    golden = under("grad/")
    parameters = dict(net.named_parameters())
    off = sum((parameters[key].grad.double() / SCALE - golden[key]).square().sum() for key in golden)
    size = sum(golden[key].double().square().sum() for key in golden)
    return float((off / size).sqrt())


def main():
    print(f"PyTorch {torch.__version__}: autocast and model in bf16, then in f16")
    for path in sorted(GOLDEN.glob("*.safetensors")):
        types = [torch.bfloat16, torch.float16]
        found = [distance(path, dtype, autocast) for dtype in types for autocast in (True, False)]
        print(f"{path.stem:28}", *(f"{off:8.1e}" for off in found))


if __name__ == "__main__":
    main()
