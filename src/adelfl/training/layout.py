"""Rows of samples in memory: prefixes, weights, and the layout with rows last."""

from __future__ import annotations

from torch import Tensor

VECTOR = 8  # numbers that a vector instruction of a CPU takes


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
