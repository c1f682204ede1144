"""Samples as bytes: pictures were, before somebody scaled them, and a quarter of the memory is read in less time.

Only the numbers themselves are asked: if all of them are low + step · (0 … 255), up to the rounding of single
precision, they are kept as bytes beside the original, and the rows of a round are made from these.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LEVELS = 256
_ROUNDING = 2.0**-22  # of the largest number: by whoever scaled the samples, and by scaling them again
_LOOKED_AT, _AT_ONCE = 100_000, 1 << 16  # numbers
_FIT_INTO_CACHE = 16 << 20  # bytes: rows of so few samples are gathered quickly as they are


@dataclass(frozen=True, eq=False)
class Codes:
    """Samples whose numbers are low + step · byte.

    Attributes
    ----------
    bytes : Tensor of uint8, shape (N, d)
        One row per sample.
    low : Tensor, shape ()
        What 0 stands for.
    step : float
        What 1 adds to that.
    """

    bytes: Tensor
    low: Tensor
    step: float

    def rows(self, index: Tensor) -> Tensor:
        """Some samples as they were, up to rounding, shape (n, d)."""
        found = self.bytes.index_select(0, index).float()
        return torch.add(self.low, found, alpha=self.step, out=found)


@dataclass(frozen=True, eq=False)
class _Known:
    """What was found out about an array, and what tells whether it has been changed since."""

    array: weakref.ref[NDArray[Any]]  # lets this be forgotten with the array
    codes: Codes | None
    products: Tensor | None

    def still_is(self, rows: Tensor) -> bool:
        """Whether codes are still those of an array; one that had none may stay without."""
        return self.products is None or torch.equal(self.products, _products(rows))


def _products(rows: Tensor) -> Tensor:
    """Each row times one random vector: another number for another row."""
    return rows @ torch.rand(rows.shape[1], generator=torch.Generator().manual_seed(0))


_known: dict[int, _Known] = {}


@torch.no_grad()
def find_codes(x: NDArray[Any]) -> Codes | None:
    """The samples as bytes; None if they were none, or are so few that it does not matter.

    Parameters
    ----------
    x : ndarray, shape (N, ...)
        The samples. What is found is remembered for as long as the array lives and stays as it is: looking whether it
        does takes a tenth of the time.
    """
    if x.dtype != np.float32 or x.nbytes <= _FIT_INTO_CACHE:
        return None
    key, rows = id(x), torch.from_numpy(x).flatten(1)
    known = _known.get(key)
    if known is None or not known.still_is(rows):
        codes = _find(rows)
        products = None if codes is None else _products(rows)
        known = _known[key] = _Known(weakref.ref(x, lambda _: _known.pop(key, None)), codes, products)
    return known.codes


def _find(x: Tensor) -> Codes | None:
    some = torch.unique(x[:: max(1, x.numel() // _LOOKED_AT)])
    if not 2 <= some.numel() <= _LEVELS:
        return None
    low, high = map(float, x.aminmax())
    levels = round((high - low) / float(some.diff().min()))
    if levels >= _LEVELS:
        return None
    step, rounding = (high - low) / levels, _ROUNDING * max(abs(low), abs(high))
    codes = Codes(torch.empty(x.shape, dtype=torch.uint8), torch.tensor(low), step)
    at_once = max(1, _AT_ONCE // x.shape[1])
    for values, own in zip(torch.split(x, at_once), torch.split(codes.bytes, at_once), strict=True):
        own.copy_((values - low).div_(step).round_())
        least, most = torch.add(codes.low, own.float(), alpha=step).sub_(values).aminmax()
        if max(-float(least), float(most)) > rounding:
            return None
    return codes
