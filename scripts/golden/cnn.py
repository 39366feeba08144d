"""The network of PyTorch's MNIST example (pytorch/examples, mnist/main.py)."""

import torch
import torch.nn.functional as F
from torch import nn


class Cnn(nn.Module):
    def __init__(self, channels, height, width, classes, filters, hidden):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters[0], 3)
        self.conv2 = nn.Conv2d(filters[0], filters[1], 3)
        features = filters[1] * ((height - 4) // 2) * ((width - 4) // 2)
        self.fc1 = nn.Linear(features, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = torch.flatten(F.max_pool2d(x, 2), 1)
        return self.fc2(F.relu(self.fc1(x)))
