"""The WideResNet of the Olivia guide of Sigma2 (documentation.sigma2.no)."""

import torch.nn.functional as F
from torch import nn


class ConvBnRelu(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.cbr = nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x):
        return self.cbr(x)


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.scale = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None
        self.layer1 = ConvBnRelu(inputs, outputs)
        self.layer2 = ConvBnRelu(outputs, outputs)

    def forward(self, x):
        residual = x if self.scale is None else self.scale(x)
        return self.layer2(self.layer1(x)) + residual


class PlainWideResNet(nn.Module):
    def __init__(self, classes, widths, channels, average_pool):
        super().__init__()
        stem, first, second, third = widths
        self.input_block = ConvBnRelu(channels, stem)
        self.block1 = Block(stem, first)
        self.block2 = Block(first, first)
        self.block3 = Block(first, second)
        self.block4 = Block(second, second)
        self.block5 = Block(second, third)
        self.block6 = Block(third, third)
        self.average_pool = average_pool
        self.fc = nn.Linear(third, classes)

    def forward(self, x):
        x = self.block2(self.block1(self.input_block(x)))
        x = self.block4(self.block3(F.max_pool2d(x, 2)))
        x = self.block6(self.block5(F.max_pool2d(x, 2)))
        if self.average_pool is None:
            x = x.mean((2, 3))
        else:
            x = F.avg_pool2d(x, self.average_pool).flatten(1)
        return self.fc(x)
