"""What one round asks of an engine: which rows each device trains on, how far it gets, how much that counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adelfl.learning.codes import Codes, find_codes
from adelfl.strategies.base import Progress

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Samples:
    """All training samples, kept as rows: picking whole rows of a matrix is three times as quick as of an image stack.

    Parameters
    ----------
    x, y : Tensor
        Inputs (N, ...) and labels (N,).
    source : ndarray, optional
        The array in main memory that ``x`` shows or was copied from.
    """

    def __init__(self, x: Tensor, y: Tensor, source: NDArray[Any] | None = None) -> None:
        self.x, self.y = x, y
        self._source = source
        self._flat, self._shape = x.flatten(1), x.shape[1:]
        self._labels = y.cpu().numpy()
        self._elsewhere = x.device.type != "cpu"

    @classmethod
    def of(cls, x: NDArray[Any], y: NDArray[Any], device: torch.device | None = None) -> Samples:
        """Arrays as tensors, on some device; in main memory they are not copied."""
        return cls(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device), x)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.x.device

    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some samples, in that order."""
        index, labels = self.labelled(rows)
        return self.inputs(index), labels

    def labelled(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Some samples as :meth:`inputs` wants them, and their labels."""
        return self.tensor(rows), self.tensor(self._labels[rows])

    def tensor(self, values: NDArray[Any]) -> Tensor:
        """An array where the samples are; ``to`` takes its time even where it has nothing to do."""
        found = torch.from_numpy(values)
        return found.to(self.device) if self._elsewhere else found

    def inputs(self, index: Tensor) -> Tensor:
        """Inputs of some samples, in that order."""
        return self._shaped(self._flat.index_select(0, index))

    def inputs_from_bytes(self) -> Callable[[Tensor], Tensor]:
        """Something quicker than :meth:`inputs`, and as good up to rounding, if the samples were bytes once."""
        codes = self._codes
        return self.inputs if codes is None else lambda index: self._shaped(codes.rows(index))

    @cached_property
    def _codes(self) -> Codes | None:
        return None if self._elsewhere or self._source is None else find_codes(self._source)

    def _shaped(self, rows: Tensor) -> Tensor:
        return rows if len(self._shape) == 1 else rows.view(-1, *self._shape)


@dataclass(frozen=True, eq=False)
class RoundWork:
    """One round's local work, for the devices that deliver something.

    Attributes
    ----------
    rows : tuple of ndarray of int
        For each local iteration, the training samples of all devices one after another, shape (Σ S_u,).
    sizes : ndarray of int, shape (U,)
        S_u.
    A : ndarray, shape (U, L)
        Weights of the merge.
    progress : Progress
        How far each device comes.
    eta : float
        Learning rate.
    width : ndarray, shape (U,), or None
        HeteroFL's widths.
    mask_seeds : ndarray of int, shape (U,), or None
        Seeds of the random numbers that the model draws on each device (dropout); None leaves torch's generators alone.
    """

    rows: tuple[Ints, ...]
    sizes: Ints
    A: Floats
    progress: Progress
    eta: float
    width: Floats | None = None
    mask_seeds: Ints | None = None

    @cached_property
    def contributes(self) -> Bools:
        """Whether device u adds anything to the merge, shape (U,)."""
        found: Bools = (self.progress.z > 0) & self.A.any(axis=1)
        return found

    @property
    def starts(self) -> Ints:
        """Where each device's rows begin, shape (U + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def deepest_first(self) -> RoundWork:
        """The same work for the devices that contribute, sorted by depth."""
        z = self.progress.z
        if z.size and z[-1] > 0 and (z[1:] <= z[:-1]).all() and self.A.all():
            return self  # the common case without stragglers, found quickly
        chosen = np.flatnonzero(self.contributes)
        return self.only(chosen[np.argsort(-z[chosen], kind="stable")])

    def only(self, chosen: Ints) -> RoundWork:
        """The same work for some of the devices, in the given order."""
        if chosen.size == self.sizes.size and np.array_equal(chosen, np.arange(chosen.size)):
            return self
        sizes = self.sizes[chosen]
        ends = np.cumsum(sizes)
        take = np.arange(ends[-1] if ends.size else 0) + np.repeat(self.starts[chosen] - (ends - sizes), sizes)
        p = self.progress
        return RoundWork(
            tuple(rows[take] for rows in self.rows),
            sizes,
            self.A[chosen],
            Progress(p.z[chosen], p.layers, p.local_iterations, p.rate[chosen], batch=self.sizes[chosen]),
            self.eta,
            None if self.width is None else self.width[chosen],
            None if self.mask_seeds is None else self.mask_seeds[chosen],
        )


class Engine(ABC):
    """Computes a round: changes the model's weights in place, gives the mean loss of those who contributed."""

    name: str

    @abstractmethod
    def run(self, work: RoundWork) -> float:
        """Do one round's local work and merge it. NaN if nobody contributed."""

    def prepare(self, work: RoundWork) -> Callable[[], float]:
        """Do what can be done before the round's weights are known; calling the result does the rest."""
        return partial(self.run, work)
