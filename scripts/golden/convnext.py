"""ConvNeXt (Liu et al. 2022), with the names of timm."""

import torch
import torch.nn.functional as F
from torch import nn

EPSILON = 1e-6


class ChannelNorm(nn.LayerNorm):
    """Layer normalization over the channels of each pixel."""

    def __init__(self, channels):
        super().__init__(channels, eps=EPSILON)

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), 1e-6))
        self.conv_dw = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=EPSILON)
        self.mlp = Mlp(dim)

    def forward(self, x):
        y = self.mlp(self.norm(self.conv_dw(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return x + y * self.gamma.reshape(1, -1, 1, 1)


class Stage(nn.Module):
    def __init__(self, inputs, outputs, blocks, first):
        super().__init__()
        if first:
            self.downsample = nn.Identity()
        else:
            self.downsample = nn.Sequential(ChannelNorm(inputs), nn.Conv2d(inputs, outputs, 2, 2))
        self.blocks = nn.Sequential(*(Block(outputs) for _ in range(blocks)))

    def forward(self, x):
        return self.blocks(self.downsample(x))


class Head(nn.Module):
    def __init__(self, dim, classes):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=EPSILON)
        self.fc = nn.Linear(dim, classes)

    def forward(self, x):
        return self.fc(self.norm(x.mean((2, 3))))


class ConvNext(nn.Module):
    def __init__(self, depths, widths, classes, channels=3, patch=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, widths[0], patch, patch), ChannelNorm(widths[0]))
        inputs = [widths[0], *widths]
        self.stages = nn.Sequential(
            *(Stage(inputs[i], widths[i], depths[i], i == 0) for i in range(4))
        )
        self.head = Head(widths[3], classes)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)))


def torchvision_key(key):
    """The name of tensor `key` in torchvision's ConvNeXt."""
    parts = key.split(".")
    if parts[0] == "stem":
        return ".".join(["features", "0", *parts[1:]])
    if parts[0] == "head":
        return ".".join(["classifier", {"norm": "0", "fc": "2"}[parts[1]], *parts[2:]])
    stage = 2 * int(parts[1])
    if parts[2] == "downsample":
        return ".".join(["features", str(stage), *parts[3:]])
    start = ["features", str(stage + 1), parts[3]]
    if parts[4] == "gamma":
        return ".".join([*start, "layer_scale"])
    inner = ".".join(parts[4:-1])
    layer = {"conv_dw": "0", "norm": "2", "mlp.fc1": "3", "mlp.fc2": "5"}[inner]
    return ".".join([*start, "block", layer, parts[-1]])


def check():
    """Compares with torchvision and timm where they are installed."""
    x = torch.randn(2, 3, 64, 96)
    tiny = ([3, 3, 9, 3], [96, 192, 384, 768], 10)
    try:
        import torchvision

        theirs = torchvision.models.convnext_tiny(num_classes=10).eval()
        for name, tensor in theirs.named_parameters():
            if name.endswith("layer_scale"):
                nn.init.normal_(tensor)
        state, ours = theirs.state_dict(), ConvNext(*tiny).eval()
        ours.load_state_dict(
            {
                key: state.pop(torchvision_key(key)).reshape(value.shape)
                for key, value in ours.state_dict().items()
            }
        )
        assert not state, state.keys()
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)
        print("convnext: convnext_tiny equals that of torchvision")
    except ImportError:
        print("convnext: torchvision is not installed, not compared")
    try:
        import timm
    except ImportError:
        print("convnext: timm is not installed, not compared")
        return
    theirs = timm.create_model("convnext_tiny", num_classes=10).eval()
    for name, tensor in theirs.named_parameters():
        if name.endswith("gamma"):
            nn.init.normal_(tensor)
    ours = ConvNext(*tiny).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)
    print("convnext: convnext_tiny equals that of timm")
