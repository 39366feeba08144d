"""Images per second of PyTorch on one GPU: the models, batches and number formats of `bench gpu`,
synthetic images on the device, SGD with momentum.

    python3 bench/torch/train.py --recipe olivia --precision bf16 --batch 256 --steps 50

Writes one JSON object to stdout. Convolutions use channels-last memory, attention PyTorch's fused
kernel, f32 the TensorFloat-32 that `--tf32` allows. As in the trainer, the loss of every step is read when
the device has been given the next one, and that ends the step; the last is read when the device is done.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "golden"))

import vit  # noqa: E402
from plain_wide_resnet import PlainWideResNet  # noqa: E402
from resnet import ResNet  # noqa: E402
from wide_resnet import WideResNet  # noqa: E402


def attention(self, x):
    batch, tokens, dim = x.shape
    parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads)
    query, key, value = parts.permute(2, 0, 3, 1, 4)
    x = F.scaled_dot_product_attention(query, key, value)
    return self.proj(x.transpose(1, 2).reshape(batch, tokens, dim))


vit.Attention.forward = attention

# Side of the images, and the model.
RECIPES = {
    "olivia": (32, lambda: PlainWideResNet(100, [16, 160, 320, 640], 3, 7)),
    "wrn-28-10": (32, lambda: WideResNet(28, 10, 100, 3)),
    "wrn-16-4": (32, lambda: WideResNet(16, 4, 100, 3)),
    "vit-tiny": (32, lambda: vit.Vit(192, 12, 3, 100, 4, 3, 32, 32, 4, "ClassToken")),
    "vit-b-16": (224, lambda: vit.Vit(768, 12, 12, 100, 4, 3, 224, 224, 16, "ClassToken")),
    "resnet-50": (224, lambda: ResNet([3, 4, 6, 3], True, 100)),
}
PRECISIONS = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", choices=RECIPES, required=True)
    parser.add_argument("--precision", choices=PRECISIONS, default="f32")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--images", type=int, default=4096, help="that lie on the device")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    device, dtype = torch.device(args.device), PRECISIONS[args.precision]
    side, build = RECIPES[args.recipe]
    model = build().to(device, memory_format=torch.channels_last)
    step_model = torch.compile(model) if args.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    data = torch.randint(0, 256, (args.images, 3, side, side), dtype=torch.uint8, device=device)
    labels = torch.arange(args.images, device=device) % 100

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize()

    def step():
        picked = torch.randint(0, len(data), (args.batch,), device=device)
        images = data[picked].float().div_(127.5).sub_(1)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            logits = step_model(images)
        loss = F.cross_entropy(logits.float(), labels[picked])
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return start_reading(loss.detach())

    def start_reading(loss):
        """Starts to copy the loss after the step. Returns a function that waits for it."""
        if device.type != "cuda":
            return loss.item
        host = torch.empty((), pin_memory=True)
        host.copy_(loss, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

        def read():
            copied.synchronize()
            return host.item()

        return read

    wait()
    ended = [time.perf_counter()]
    before = None
    for number in range(args.warm_up + args.steps):
        if device.type == "cuda" and number == args.warm_up // 2:
            # Excludes the memory in which cuDNN tried its algorithms.
            wait()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        read = step()
        if before:
            before()
            ended.append(time.perf_counter())
        before = read
    loss = before()
    ended.append(time.perf_counter())
    ended = ended[args.warm_up :]
    seconds = [end - begin for begin, end in zip(ended, ended[1:])]
    memory = torch.cuda.max_memory_reserved() / 2**20 if device.type == "cuda" else None
    result = {
        "images_per_second": args.batch * len(seconds) / sum(seconds),
        "median_images_per_second": args.batch / statistics.median(seconds),
        "memory_mib": memory,
        "loss": loss if math.isfinite(loss) else None,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
    }
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
