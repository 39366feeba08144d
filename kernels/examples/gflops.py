#!/usr/bin/env python3
"""Each kernel beside PyTorch's, as printed by the example gflops.

    cargo build --release -p burn-dist-kernels --example gflops
    python3 kernels/examples/gflops.py [--threads 2] [--filter conv]

Both measure the median of repeated calls, PyTorch's convolutions in its channels-last format. The
kernels run first, then PyTorch. Of batch normalization the kernel's row is the second pass alone, the
moments being a row of their own; PyTorch's is both.
"""

import argparse
import os
import re
import statistics
import subprocess
import time

import torch
from torch.nn import functional as F

BATCH = 64


def seconds(run):
    """The median of the seconds that `run` takes."""
    run()
    times, start = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < 0.4:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def convolution(part, size, channels, out, stride):
    """A convolution of 3×3, or one of its gradients."""
    padding = 0 if size in (26, 28) else 1
    x = torch.randn(BATCH, channels, size, size).to(memory_format=torch.channels_last)
    w = torch.randn(out, channels, 3, 3).to(memory_format=torch.channels_last)
    if part == "forward":
        return lambda: F.conv2d(x, w, stride=stride, padding=padding)
    dy = torch.randn_like(F.conv2d(x, w, stride=stride, padding=padding))
    mask = [part == "input gradient", part == "weight gradient", False]
    sizes = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
    return lambda: torch.ops.aten.convolution_backward(dy, x, w, None, *sizes, mask)


def product(kind, rows, depth, columns, transposed):
    """A product of matrices."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    left = torch.randn(depth, rows).T if transposed == "left transposed" else torch.randn(rows, depth)
    right = torch.randn(columns, depth).T if transposed == "right transposed" else torch.randn(depth, columns)
    # Autocast converts as the kernel does.
    return lambda: left.to(dtype) @ right.to(dtype)


def backward(run, *inputs):
    """The backward pass of `run` alone."""
    inputs = [value.requires_grad_() for value in inputs]
    out = run(*inputs)
    dy = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, dy, retain_graph=True)


def layer(name):
    """Another layer, forward or gradient."""
    tokens, pixels = torch.randn(BATCH * 65, 192), torch.randn(BATCH, 64, 32, 32)
    pixels = pixels.to(memory_format=torch.channels_last)
    qkv = torch.randn(3, BATCH, 3, 65, 64)
    runs = {
        "attention": (lambda x: F.scaled_dot_product_attention(*x), [qkv]),
        # Autocast's linear layer before it gives bf16.
        "attention bf16": (lambda x: F.scaled_dot_product_attention(*x), [qkv.bfloat16()]),
        "layer norm": (lambda x, w, b: F.layer_norm(x, (192,), w, b), [tokens, torch.randn(192), torch.randn(192)]),
        "gelu": (F.gelu, [tokens]),
        "batch norm + ReLU": (
            lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)),
            [pixels, torch.randn(64), torch.randn(64)],
        ),
        "max-pool": (lambda x: F.max_pool2d(x, 2), [pixels]),
    }
    kind, _, part = name.rpartition(" ")
    if kind not in runs:
        return None
    run, inputs = runs[kind]
    return (lambda: run(*inputs)) if part == "forward" else backward(run, *inputs)


def of(name):
    """PyTorch's way to compute what the example calls `name`; nothing if it has none."""
    if found := re.fullmatch(r"conv (.+) (\d+)²·(\d+) → (\d+) /(\d+) (\w+)", name):
        return convolution(found[1], *(int(found[i]) for i in range(2, 6)))
    if found := re.fullmatch(r"matmul (\w+)(?:/\w+)? (\d+)×(\d+)×(\d+) ?(.*)", name):
        return product(found[1], *(int(found[i]) for i in range(2, 5)), found[5])
    return layer(name)


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--filter", default="")
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--binary", default=os.path.join(target, "release/examples/gflops"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    command = [args.binary, str(args.threads), args.filter]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as kernels:
        lines = list(kernels.stdout)
    print(lines[0].strip())
    for line in lines[1:]:
        found = re.match(r"(.+?)\s+([\d.]+) ms\s+([\d.]+) (GFLOP/s|GB/s)", line)
        run = found and of(found[1].strip())
        if not run:
            print(line.rstrip())
            continue
        ms, speed = float(found[2]), float(found[3])
        theirs = 1e3 * seconds(run)
        print(f"{found[1]:55} {speed:8.0f} {found[4]:7}  PyTorch {speed * ms / theirs:8.0f}  {theirs / ms:5.2f} ×", flush=True)


if __name__ == "__main__":
    main()
