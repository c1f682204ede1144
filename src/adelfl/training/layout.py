"""Rows of samples in memory: the first of them, their weights, and the layout in which they come last."""

from __future__ import annotations

from torch import Tensor

VECTOR = 8  # numbers that CPUs work on at a time


def first(x: Tensor, rows: int) -> Tensor:
    """The first rows; slicing takes its time even where nothing is cut off."""
    return x if x.shape[0] == rows else x[:rows]


def weighed(delta: Tensor, row_weight: Tensor | None) -> Tensor:
    """Each row times its weight; as it is without weights."""
    return delta if row_weight is None else delta * row_weight.view(-1, *([1] * (delta.dim() - 1)))


def rows_last(x: Tensor) -> Tensor:
    """(N, C, H, W) as (H, W, C, N), with neighbouring rows next to each other in memory."""
    if x.stride(0) != 1:
        # Torch is quick at turning two dimensions, and slow at four.
        x = x.flatten(1).t().contiguous().t().view(x.shape)
    return x.permute(2, 3, 1, 0)
