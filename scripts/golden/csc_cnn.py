"""The convolutional network of CSC's course on deep learning."""

from torch import nn


def stage(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 5, padding=2),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


class CscCnn(nn.Module):
    def __init__(self, channels, height, width, classes, filters):
        super().__init__()
        self.layer1 = stage(channels, filters[0])
        self.layer2 = stage(filters[0], filters[1])
        self.fc = nn.Linear(filters[1] * (height // 4) * (width // 4), classes)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(x)).flatten(1))
