"""Peak memory of PyTorch's tensors while it trains the models of train.py, without a GPU: fake tensors have
sizes, but no values. A lower bound for a GPU, whose allocator takes more and whose cuDNN needs workspaces.

    python3 bench/torch/memory.py --recipe olivia --precision bf16 --batch 256
"""

import argparse
import weakref

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from train import PRECISIONS, RECIPES

# Granularity of CUDA's allocations, in bytes.
GRAIN = 512


class Watch(TorchDispatchMode):
    """Counts the bytes of all live storages. Tensors that share one count once."""

    def __init__(self):
        super().__init__()
        self.live = {}
        self.now = self.most = 0

    def see(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live:
            return
        self.live[key] = -(-storage.nbytes() // GRAIN) * GRAIN
        self.now += self.live[key]
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self.forget, key)

    def forget(self, key):
        self.now -= self.live.pop(key, 0)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.see, out)
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", choices=RECIPES, required=True)
    parser.add_argument("--precision", choices=PRECISIONS, default="f32")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--images", type=int, default=4096, help="that lie on the device")
    args = parser.parse_args()
    dtype = PRECISIONS[args.precision]
    side, build = RECIPES[args.recipe]
    with FakeTensorMode(), Watch() as watch:
        model = build()
        for parameter in model.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        data = torch.randint(0, 256, (args.images, 3, side, side), dtype=torch.uint8)
        labels = torch.arange(args.images) % 100
        # The optimizer's state exists from the second step on.
        for _ in range(3):
            picked = torch.randint(0, len(data), (args.batch,))
            images = data[picked].float().div_(127.5).sub_(1)
            images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                logits = model(images)
            loss = F.cross_entropy(logits.float(), labels[picked])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    print(f"{args.recipe} {args.precision}, batch {args.batch}: {watch.most / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
