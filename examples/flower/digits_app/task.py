"""Models, data and emulated slow devices, shared by client and server."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.data import Dataset, load_dataset


class Net(nn.Module):
    """MLP for digits; its layers are listed in the order in which they run."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, 32), nn.Linear(32, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = torch.relu(self.first(x.flatten(1)))
        return self.third(torch.relu(self.second(x)))


class ConvNet(nn.Module):
    """Two convolutions and two dense layers, for MNIST."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 5), nn.Conv2d(8, 16, 5)
        self.third, self.fourth = nn.Linear(256, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = functional.max_pool2d(torch.relu(self.first(x)), 2)
        x = functional.max_pool2d(torch.relu(self.second(x)), 2)
        return self.fourth(torch.relu(self.third(x.flatten(1))))


def network(task: str) -> nn.Module:
    """Make the model of a task."""
    return ConvNet() if task == "mnist" else Net()


def load(task: str) -> Dataset:
    """Load the data of a task; only a part of MNIST, because every message starts a process that loads it."""
    data = load_dataset(task)
    if task == "digits":
        return data
    train, test = slice(12_000), slice(2_000)
    return replace(
        data,
        x_train=data.x_train[train],
        y_train=data.y_train[train],
        x_test=data.x_test[test],
        y_test=data.y_test[test],
    )


def split(data: Dataset, nodes: int = 4) -> list[np.ndarray]:
    """Return the indices of each node's samples; the last node has most of the eights and nines."""
    rare = np.isin(data.y_train, (8, 9))
    rng = np.random.default_rng(0)
    home = rng.integers(nodes, size=rare.size)
    home[rare & (rng.random(rare.size) < 0.9)] = nodes - 1
    return [np.flatnonzero(home == node) for node in range(nodes)]


def load_node(task: str, node: int, nodes: int) -> tuple[Tensor, Tensor]:
    """Return the samples of a node."""
    data = load(task)
    mine = split(data, nodes)[node]
    return torch.from_numpy(data.x_train[mine]), torch.from_numpy(data.y_train[mine])


# Functions for experiment files and adelfl what-if: the models, the data of scenario 2, the partition of scenario 3.


def build(*_: object) -> nn.Module:
    """Make the model for digits."""
    return Net()


def build_cnn(*_: object) -> nn.Module:
    """Make the model for MNIST."""
    return ConvNet()


def load_mnist() -> Dataset:
    """Load the part of MNIST that scenario 2 uses."""
    return load("mnist")


def split_in_eight(data: Dataset) -> list[np.ndarray]:
    """Split digits over eight nodes."""
    return split(data, 8)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of correct predictions."""
    return float((model(x).argmax(1) == y).float().mean())


def weaken(model: nn.Module, seconds: float) -> None:
    """Emulate a slow device: sleep for ``seconds`` whenever the gradient of a layer is ready."""
    if seconds == 0.0:
        return
    for module in model.children():
        module.weight.register_post_accumulate_grad_hook(lambda _: time.sleep(seconds))
