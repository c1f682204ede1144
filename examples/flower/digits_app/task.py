"""Model, data, and an emulated weak device: what client and server share."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn

from adelfl.data import Dataset, load_dataset


class Net(nn.Module):
    """Layers are listed in the order in which they run."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, 32), nn.Linear(32, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = torch.relu(self.first(x.flatten(1)))
        return self.third(torch.relu(self.second(x)))


def build(*_: object) -> Net:
    """Make the model, for run files."""
    return Net()


def split(data: Dataset, nodes: int = 4) -> list[np.ndarray]:
    """Positions of each node's samples. The last node has most of the eights and nines."""
    rare = np.isin(data.y_train, (8, 9))
    luck = np.random.default_rng(0)
    home = luck.integers(nodes, size=rare.size)
    home[rare & (luck.random(rare.size) < 0.9)] = nodes - 1
    return [np.flatnonzero(home == node) for node in range(nodes)]


def load_node(node: int, nodes: int) -> tuple[Tensor, Tensor]:
    """A node's samples."""
    data = load_dataset("digits")
    mine = split(data, nodes)[node]
    return torch.from_numpy(data.x_train[mine]), torch.from_numpy(data.y_train[mine])


def load_test() -> tuple[Tensor, Tensor]:
    """Everybody's test samples."""
    data = load_dataset("digits")
    return torch.from_numpy(data.x_test), torch.from_numpy(data.y_test)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of right answers."""
    return float((model(x).argmax(1) == y).float().mean())


def weaken(model: nn.Module, seconds: float) -> None:
    """Emulate a device that takes so long for a layer: sleep whenever a layer's gradient is ready."""
    for module in model.children():
        module.weight.register_post_accumulate_grad_hook(lambda _: time.sleep(seconds))
