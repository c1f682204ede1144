"""What one round asks of an engine: which rows each device trains on, how far it gets, how much that counts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adelfl.strategies.rounds import Progress

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Samples:
    """All training samples, kept as rows: picking whole rows of a matrix is three times as quick as of an image stack.

    Parameters
    ----------
    x, y : Tensor
        Inputs (N, ...) and labels (N,).
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self._flat, self._shape = x.flatten(1), x.shape[1:]
        self._labels = y.cpu().numpy()
        self._elsewhere = x.device.type != "cpu"

    @classmethod
    def of(cls, x: NDArray[Any], y: NDArray[Any], device: torch.device | None = None) -> Samples:
        """Arrays as tensors, on some device; in main memory they are not copied."""
        return cls(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device))

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
        rows = self._flat.index_select(0, index)
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
    senders : ndarray of int, shape (U, 2), or None
        Numbers of each task and its device, for a lossy codec.
    """

    rows: tuple[Ints, ...]
    sizes: Ints
    A: Floats
    progress: Progress
    eta: float
    width: Floats | None = None
    mask_seeds: Ints | None = None
    senders: Ints | None = None

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
            None if self.senders is None else self.senders[chosen],
        )


def joined_work(parts: Sequence[RoundWork]) -> RoundWork:
    """Join the work of devices that start from the same weights at the same rate."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    p = first.progress
    masks = [w.mask_seeds for w in parts if w.mask_seeds is not None]
    widths = [w.width for w in parts if w.width is not None]
    senders = [w.senders for w in parts if w.senders is not None]
    z, rate = (np.concatenate([getattr(w.progress, key) for w in parts]) for key in ("z", "rate"))
    return RoundWork(
        tuple(np.concatenate(rows) for rows in zip(*(w.rows for w in parts), strict=True)),
        np.concatenate([w.sizes for w in parts]),
        np.concatenate([w.A for w in parts]),
        Progress(z, p.layers, p.local_iterations, rate),
        first.eta,
        np.concatenate(widths) if widths else None,
        np.concatenate(masks) if masks else None,
        np.concatenate(senders) if senders else None,
    )


@dataclass(frozen=True, eq=False)
class Change:
    """What the merged work of some devices comes to; nothing of it has touched the model yet.

    Attributes
    ----------
    parameters : dict of str to Tensor
        Σ_u A[u,l] (w_u − w) of each parameter that was delivered.
    buffers : dict of str to Tensor
        New values of running statistics that changed.
    loss : float
        Mean loss of the devices that contributed; NaN if there were none.
    """

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    loss: float


NOTHING = Change({}, {}, math.nan)
"""Of a round to which no device contributed."""


class Engine(ABC):
    """Computes what the devices of a round would send, merged; reads the model's weights and does not change them."""

    name: str

    @abstractmethod
    def run(self, work: RoundWork) -> Change:
        """Do one round's local work and merge it."""

    def prepare(self, work: RoundWork) -> Callable[[], Change]:
        """Do what can be done before the round's weights are known; calling the result does the rest."""
        return partial(self.run, work)


@torch.no_grad()
def apply_change(model: nn.Module, change: Change) -> None:
    """Move a model by a change, as the paper's server does."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for name, step in change.parameters.items():
        parameters[name].add_(step)
    for name, value in change.buffers.items():
        buffers[name].copy_(value)
