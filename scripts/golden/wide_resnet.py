"""WRN-d-k (Zagoruyko & Komodakis 2016), with the names of xternalz/WideResNet-pytorch."""

import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        if inputs != outputs:
            self.convShortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        activated = F.relu(self.bn1(x))
        # Where the width changes, the shortcut takes the activated input.
        shortcut = self.convShortcut(activated) if hasattr(self, "convShortcut") else x
        return self.conv2(F.relu(self.bn2(self.conv1(activated)))) + shortcut


class Group(nn.Module):
    def __init__(self, blocks, inputs, outputs, stride):
        super().__init__()
        first = Block(inputs, outputs, stride)
        self.layer = nn.Sequential(first, *(Block(outputs, outputs, 1) for _ in range(blocks - 1)))

    def forward(self, x):
        return self.layer(x)


class WideResNet(nn.Module):
    def __init__(self, depth, widen, classes, channels, base=16):
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        assert rest == 0
        widths = [base * factor * widen for factor in (1, 2, 4)]
        self.conv1 = nn.Conv2d(channels, base, 3, 1, 1, bias=False)
        self.block1 = Group(blocks, base, widths[0], 1)
        self.block2 = Group(blocks, widths[0], widths[1], 2)
        self.block3 = Group(blocks, widths[1], widths[2], 2)
        self.bn1 = nn.BatchNorm2d(widths[2])
        self.fc = nn.Linear(widths[2], classes)

    def forward(self, x):
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return self.fc(F.relu(self.bn1(x)).mean((2, 3)))
