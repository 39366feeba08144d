#!/usr/bin/env python3
"""The models of `bench training` and `bench sharding` in PyTorch, trained alike: SGD with momentum or
AdamW, the loss of every step is read, images that are in memory. Started by the benchmark; writes the
seconds of each step, a JSON list of every rank's own list, and what memory each rank took, as the
trainer's processes do.
"""

import argparse
import json
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

BATCHES = 16


class Cnn(nn.Module):
    """The CNN of the MNIST tutorials."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.drop1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(9216, 128)
        self.drop2 = nn.Dropout(0.5)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.fc1(self.drop1(x).flatten(1)))
        return self.fc2(self.drop2(x))


class WideBlock(nn.Module):
    """A residual block with normalization before each convolution."""

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


class WideResNet(nn.Module):
    """WRN-16-4."""

    def __init__(self):
        super().__init__()
        sizes = [(16, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.blocks = nn.Sequential(*(WideBlock(*size) for size in sizes))
        self.norm = nn.BatchNorm2d(256)
        self.head = nn.Linear(256, 100)

    def forward(self, x):
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        return self.head(x.mean((2, 3)))


class VitBlock(nn.Module):
    """Attention and an MLP of two layers."""

    def __init__(self, width, heads):
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
    """A vision transformer for images of 32 × 32 in patches of 4."""

    def __init__(self, width, heads):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 65, width))
        self.blocks = nn.Sequential(*(VitBlock(width, heads) for _ in range(12)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 100)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x)[:, 0]))


# Builder, shape of an image, classes, whether channels-last is the faster memory format.
MODELS = {
    "cnn": (Cnn, (1, 28, 28), 10, True),
    "wrn-16-4": (WideResNet, (3, 32, 32), 100, True),
    "vit-tiny": (lambda: Vit(192, 3), (3, 32, 32), 100, False),
    "vit-base": (lambda: Vit(768, 12), (3, 32, 32), 100, False),
}


def optimizer_for(name, parameters):
    """The optimizer with the settings of the benchmark."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, 0.001)
    return torch.optim.SGD(parameters, 0.01, momentum=0.9)


def sharded(model, args):
    """The model and its optimizer, distributed by the strategy."""
    if args.strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (args.ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, optimizer_for(args.optimizer, model.parameters())
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if args.strategy == "zero-1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[args.optimizer]
        return model, ZeroRedundancyOptimizer(model.parameters(), kind, lr=0.001)
    return model, optimizer_for(args.optimizer, model.parameters())


def resident(name):
    """Memory of this process in MiB, by a key of /proc/self/status."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))


def train(rank, args):
    """Trains as one rank; the first writes the result."""
    start_mib = resident("VmRSS:")
    torch.set_num_threads(args.threads)
    torch.manual_seed(rank)
    build, image, classes, last = MODELS[args.model]
    model = build()
    images = [torch.rand(args.batch, *image) * 2 - 1 for _ in range(BATCHES)]
    labels = torch.arange(args.batch) % classes
    if last:
        model = model.to(memory_format=torch.channels_last)
        images = [batch.to(memory_format=torch.channels_last) for batch in images]
    distributed = None
    if args.ranks > 1:
        import torch.distributed as distributed

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
        distributed.init_process_group("gloo", rank=rank, world_size=args.ranks)
        model, optimizer = sharded(model, args)
    else:
        optimizer = optimizer_for(args.optimizer, model.parameters())
    seconds = []
    for step in range(args.steps):
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = F.cross_entropy(model(images[step % BATCHES]), labels)
        loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    ranks = [seconds]
    if distributed:
        ranks = [None] * args.ranks
        distributed.all_gather_object(ranks, seconds)
    if args.memory:
        with open(f"{args.memory}/memory-{rank}.json", "w", encoding="utf-8") as file:
            json.dump({"start_mib": start_mib, "peak_mib": resident("VmHWM:")}, file)
    if rank == 0:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(ranks, file)
    if distributed:
        distributed.barrier()
        # Without the destructors of gloo's threads, which sometimes abort the process.
        os._exit(0)


def main():
    """Starts the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--batch", type=int, required=True, help="images per rank and step")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--strategy", choices=["ddp", "zero-1", "fsdp2"], default="ddp")
    parser.add_argument("--memory", help="folder for what memory each rank took")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--port", type=int, default=29761)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if args.ranks == 1:
        train(0, args)
    else:
        torch.multiprocessing.spawn(train, (args,), args.ranks)


if __name__ == "__main__":
    main()
