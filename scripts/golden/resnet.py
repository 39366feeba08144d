"""ResNet (He et al. 2016), with the names and the strides of torchvision."""

import torch.nn.functional as F
from torch import nn


def conv(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, inputs, inner, stride, bottleneck):
        super().__init__()
        outputs = 4 * inner if bottleneck else inner
        if bottleneck:
            convs = [conv(inputs, inner, 1), conv(inner, inner, 3, stride), conv(inner, outputs, 1)]
        else:
            convs = [conv(inputs, inner, 3, stride), conv(inner, inner, 3)]
        for number, layer in enumerate(convs, 1):
            self.add_module(f"conv{number}", layer)
            self.add_module(f"bn{number}", nn.BatchNorm2d(layer.out_channels))
        self.last = len(convs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            down = conv(inputs, outputs, 1, stride)
            self.downsample = nn.Sequential(down, nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        for number in range(1, self.last + 1):
            x = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x))
            if number < self.last:
                x = F.relu(x)
        return F.relu(x + identity)


class ResNet(nn.Module):
    def __init__(self, blocks, bottleneck, classes, width=64, channels=3, stem="ImageNet"):
        super().__init__()
        self.pool = stem == "ImageNet"
        self.conv1 = conv(channels, width, 7, 2) if self.pool else conv(channels, width, 3)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for group, count in enumerate(blocks):
            inner = width << group
            layers = []
            for block in range(count):
                stride = 2 if block == 0 and group > 0 else 1
                layers.append(Block(inputs, inner, stride, bottleneck))
                inputs = 4 * inner if bottleneck else inner
            self.add_module(f"layer{group + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        if self.pool:
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def check():
    """Compares with torchvision and timm where they are installed."""
    import torch

    x = torch.randn(2, 3, 64, 64)
    for name, blocks, bottleneck in [
        ("resnet18", [2, 2, 2, 2], False),
        ("resnet34", [3, 4, 6, 3], False),
        ("resnet50", [3, 4, 6, 3], True),
        ("resnet101", [3, 4, 23, 3], True),
        ("resnet152", [3, 8, 36, 3], True),
    ]:
        ours = ResNet(blocks, bottleneck, 10).eval()
        for library, build in builders(name):
            theirs = build(10).eval()
            ours.load_state_dict(theirs.state_dict(), strict=True)
            torch.testing.assert_close(ours(x), theirs(x))
            print(f"resnet: {name} equals that of {library}")


def builders(name):
    try:
        import torchvision

        yield "torchvision", lambda n: getattr(torchvision.models, name)(num_classes=n)
    except ImportError:
        print("resnet: torchvision is not installed, not compared")
    try:
        import timm

        yield "timm", lambda n: timm.create_model(name, num_classes=n)
    except ImportError:
        print("resnet: timm is not installed, not compared")
