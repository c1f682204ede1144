"""Rows of samples in memory: prefixes, weights, and the layout with rows last; operations on them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from adelfl.training.submodel import Scaler

VECTOR = 8  # numbers that a vector instruction of a CPU takes

M = TypeVar("M", bound=nn.Module)


class Operation(Generic[M]):
    """The operation of a module: ``forward``, and ``input_grad`` for the first rows or devices.

    What the way back needs is in ``kept``. It is set to None as soon as it is not needed any more, so that the next
    pass finds the same memory, still in the caches.
    """

    kept: Any = None

    def __init__(self, module: M) -> None:
        self.module = module


def first(x: Tensor, rows: int) -> Tensor:
    """Return the first rows; slicing takes time even where nothing is cut off."""
    return x if x.shape[0] == rows else x[:rows]


def weighed(delta: Tensor, row_weight: Tensor | None) -> Tensor:
    """Return each row times its weight; the tensor itself without weights."""
    return delta if row_weight is None else delta * row_weight.view(-1, *([1] * (delta.dim() - 1)))


def rows_last(x: Tensor) -> Tensor:
    """Return (N, C, H, W) as (H, W, C, N), with neighbouring rows adjacent in memory."""
    if x.stride(0) != 1:
        # Torch transposes two dimensions fast, and four slowly.
        x = x.flatten(1).t().contiguous().t().view(x.shape)
    return x.permute(2, 3, 1, 0)


class Relu(Operation[nn.ReLU]):
    """max(x, 0), in place: no operation needs its own output to go back."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        self.kept = torch.relu_(x)
        return x

    def input_grad(self, delta: Tensor) -> Tensor:
        """Return the gradient of the input."""
        grad: Tensor = torch.ops.aten.threshold_backward.default(delta, first(self.kept, delta.shape[0]), 0)
        return grad


class Scale(Operation[Scaler]):
    """HeteroFL's scaler."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        return x / self.module.width

    def input_grad(self, delta: Tensor) -> Tensor:
        """Return the gradient of the input."""
        return delta / self.module.width
