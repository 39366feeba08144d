"""Trains the Olivia recipe (configs/olivia.toml) on CIFAR-100 in PyTorch: the same model, batches, optimizer and
augmentation, bf16 autocast, images on the device. Writes one JSON object per epoch to stdout.

    python3 bench/torch/cifar.py --data FOLDER --epochs 30 --seconds 60

FOLDER holds `cifar-100-binary`, in full or a part of it. `--compile` uses `torch.compile`.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "golden"))

from plain_wide_resnet import PlainWideResNet  # noqa: E402

RECORD = 2 + 3 * 32 * 32
PADDING = 4


def load(path, device):
    """Images [N, 3, 32, 32] as bytes, and their fine labels [N]."""
    records = torch.from_numpy(np.fromfile(path, dtype=np.uint8).reshape(-1, RECORD))
    return records[:, 2:].reshape(-1, 3, 32, 32).to(device), records[:, 1].long().to(device)


def augment(images):
    """A random crop of each image padded with zeros, half of them mirrored."""
    count, device = len(images), images.device
    padded = F.pad(images, [PADDING] * 4)
    places = torch.randint(0, 2 * PADDING + 1, (2, count, 1), device=device)
    side = torch.arange(32, device=device)
    rows, columns = places[0] + side, places[1] + side
    mirrored = torch.rand(count, 1, device=device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    which = torch.arange(count, device=device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60, help="no epoch begins after that")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    device = torch.device(args.device)
    folder = args.data / "cifar-100-binary"
    images, labels = load(folder / "train.bin", device)
    test_images, test_labels = load(folder / "test.bin", device)
    # Mean of the whole training set, as in the trainer.
    mean = torch.tensor([0.5071, 0.4865, 0.4409], device=device)[:, None, None]
    std = torch.tensor([0.2673, 0.2564, 0.2762], device=device)[:, None, None]

    def normalized(picked):
        picked = (picked.float() / 255 - mean) / std
        return picked.contiguous(memory_format=torch.channels_last)

    model = PlainWideResNet(100, [16, 160, 320, 640], 3, 7)
    model = model.to(device, memory_format=torch.channels_last)
    step_model = torch.compile(model) if args.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9, weight_decay=5e-4)
    begin = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        if time.perf_counter() - begin > args.seconds:
            break
        started = time.perf_counter()
        model.train()
        losses = []
        for picked in torch.randperm(len(images), device=device).split(args.batch):
            if len(picked) < args.batch:
                continue
            with torch.autocast(device.type, dtype=torch.bfloat16):
                logits = step_model(normalized(augment(images[picked])))
            loss = F.cross_entropy(logits.float(), labels[picked])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        train_loss = torch.stack(losses).mean().item()
        trained = time.perf_counter() - started
        model.eval()
        right = 0
        with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
            for picked in torch.arange(len(test_images), device=device).split(args.batch):
                right += (model(normalized(test_images[picked])).argmax(1) == test_labels[picked]).sum()
        line = {
            "epoch": epoch,
            "train_loss": train_loss,
            "test_accuracy": int(right) / len(test_images),
            "train_seconds": trained,
            "seconds": time.perf_counter() - begin,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
