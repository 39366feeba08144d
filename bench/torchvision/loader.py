"""CIFAR-shaped images per second of crop + flip + normalise, as PyTorch programs do it.

`loader.py COUNT BATCH SECONDS` prints one JSON object: images per second by name. Everything
computes in one thread; the images are in memory.
"""

import json
import sys
import time

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

MEAN, STD = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)
PADDING = 4


class Images(Dataset):
    """Images as bytes, turned into PIL images one by one, as in torchvision's CIFAR."""

    def __init__(self, count):
        generator = np.random.default_rng(1)
        self.bytes = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=PADDING),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self):
        return len(self.bytes)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.bytes[index])), index % 100


def rate(seconds, epoch):
    """Images per second of `epoch()`, which returns their number. One epoch is not counted."""
    epoch()
    start, images = time.perf_counter(), 0
    while True:
        images += epoch()
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return images / elapsed


def torchvision_rate(images, batch, workers, seconds):
    loader = DataLoader(
        images,
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return rate(seconds, lambda: sum(len(labels) for _, labels in loader))


def gather_rate(images, batch, seconds):
    """Whole batches by NumPy: one gather from padded planes."""
    planes = images.bytes.transpose(0, 3, 1, 2)
    pad = ((0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING))
    padded = np.pad(planes, pad)
    labels = np.arange(len(planes)) % 100
    scale = (1 / (255 * np.array(STD, np.float32))).reshape(1, 3, 1, 1)
    offset = (np.array(MEAN, np.float32) / np.array(STD, np.float32)).reshape(1, 3, 1, 1)
    generator = np.random.default_rng(1)
    side, channels = np.arange(32), np.arange(3).reshape(1, 3, 1, 1)

    def epoch():
        order, total = generator.permutation(len(planes)), 0
        for start in range(0, len(order) - batch + 1, batch):
            index = order[start : start + batch]
            down, right = generator.integers(0, 2 * PADDING + 1, (2, batch, 1))
            columns = np.where(generator.random((batch, 1)) < 0.5, side, 31 - side)
            rows = (down + side)[:, None, :, None]
            columns = (right + columns)[:, None, None, :]
            pixels = padded[index[:, None, None, None], channels, rows, columns]
            torch.from_numpy(pixels * scale - offset)
            total += len(labels[index])
        return total

    return rate(seconds, epoch)


def main():
    count, batch, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    images = Images(count)
    result = {
        "versions": f"torch {torch.__version__}, torchvision {torchvision.__version__}",
        "torchvision, 0 workers": torchvision_rate(images, batch, 0, seconds),
        "torchvision, 2 workers": torchvision_rate(images, batch, 2, seconds),
        "numpy gather": gather_rate(images, batch, seconds),
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
