#!/usr/bin/env python3
"""The same training steps in PyTorch, interleaved with the replays of the kernels.

    python3 kernels/examples/replay/pytorch.py [--threads 2] [--rounds 5] [MODEL ...]

Each round measures every variant for some seconds, one after another, so that all see the same
machine; printed are medians over the rounds. Build the replays first:
`cargo build --release -p burn-dist-kernels --example replay`.
"""

import argparse
import os
import re
import statistics
import subprocess
import time

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 64


class Block(nn.Module):
    """A block of WRN-16-4, normalised before it is convolved."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(channels, out, 1, stride, bias=False) if channels != out else None

    def forward(self, x):
        a = F.relu(self.bn1(x))
        around = x if self.short is None else self.short(a)
        return around + self.conv2(F.relu(self.bn2(self.conv1(a))))


class Wrn(nn.Module):
    """WRN-16-4."""

    def __init__(self):
        super().__init__()
        sizes = [(16, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.blocks = nn.Sequential(*(Block(*size) for size in sizes))
        self.norm = nn.BatchNorm2d(256)
        self.head = nn.Linear(256, 100)

    def forward(self, x):
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        return self.head(x.mean((2, 3)))


class VitBlock(nn.Module):
    """A block of ViT-Tiny."""

    def __init__(self, width=192, heads=3):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)
        x = x + self.proj(y)
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """The blocks of ViT-Tiny, on 65 tokens."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(VitBlock() for _ in range(12)))
        self.head = nn.Linear(192, 100)

    def forward(self, x):
        return self.head(self.blocks(x)[:, 0])


class Cnn(nn.Module):
    """The CNN of the MNIST tutorials."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def torch_step(model, bf16):
    """A function that trains for one step."""
    net, shape, classes, last = {
        "wrn": (Wrn, (BATCH, 3, 32, 32), 100, True),
        "vit": (Vit, (BATCH, 65, 192), 100, False),
        "cnn": (Cnn, (BATCH, 1, 28, 28), 10, True),
    }[model]
    torch.manual_seed(0)
    net, x, y = net(), torch.randn(shape), torch.arange(BATCH) % classes
    if last:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), 0.02)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()

    return step


def measure(step, limit):
    """Images per second, by the median step."""
    step()
    times, start = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < limit:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return BATCH / statistics.median(times)


def replay(binary, name, threads, limit):
    """Images per second of the kernels."""
    text = subprocess.run([binary, name, str(threads), str(limit)], capture_output=True, text=True, check=True)
    return float(re.search(r"= (\d+) img/s", text.stdout)[1])


def main():
    """Prints the medians of all variants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["wrn", "vit", "cnn"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--binary", default=os.path.join(target, "release/examples/replay"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for model in args.models:
        variants = {"PyTorch f32": lambda step=torch_step(model, False): measure(step, args.seconds)}
        variants["kernels f32"] = lambda: replay(args.binary, model, args.threads, args.seconds)
        if model == "vit":
            variants["PyTorch bf16"] = lambda step=torch_step(model, True): measure(step, args.seconds)
            variants["kernels bf16"] = lambda: replay(args.binary, "vit-bf16", args.threads, args.seconds)
        results = {name: [] for name in variants}
        for _ in range(args.rounds):
            for name, run in variants.items():
                results[name].append(run())
        medians = {name: statistics.median(speeds) for name, speeds in results.items()}
        for name, speed in medians.items():
            ratio = speed / medians[name.replace("kernels", "PyTorch")]
            print(f"{model:4} {name:13} {speed:7.0f} img/s  {ratio:.2f} × PyTorch", flush=True)


if __name__ == "__main__":
    main()
