"""Interface of backends, which run tasks: a simulation on a virtual clock, or Flower nodes on a real one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adelfl.strategies.actions import Event, Floats, Ints, Merge, Tasks
from adelfl.theory.gradient_stats import GradientStats


@dataclass(frozen=True, eq=False)
class Change:
    """Result of a merge, not yet applied to the model: arrays of NumPy or tensors of torch."""

    parameters: Mapping[str, Any]
    """Σ_u A[u,l] (w_u − w) of each parameter that was delivered."""
    buffers: Mapping[str, Any] = field(default_factory=dict)
    """New values of running statistics that changed."""
    loss: float = math.nan
    """Mean loss of the devices that contributed; NaN if it is not known."""


@dataclass(frozen=True, eq=False)
class Computed:
    """A merge that was computed."""

    change: Change | None
    """Its result; None if nothing was delivered."""
    spread: GradientStats | None = None
    """Statistics of the gradients, if the merge requested them."""
    losses: Floats | None = None
    """Losses of the devices, if the merge requested them; NaN where nothing was delivered."""

    @classmethod
    def recorded(cls, gradients: Mapping[str, Any] | None, losses: Sequence[float | None] | None) -> Computed:
        """Return the recorded result of a merge that an earlier process computed."""
        spread = None if gradients is None else GradientStats.of(**gradients)
        return cls(None, spread, None if losses is None else np.array(losses, dtype=np.float64))

    @property
    def losses_listed(self) -> list[float | None] | None:
        """The losses, ready for a record."""
        return None if self.losses is None else [None if math.isnan(v) else v for v in self.losses.tolist()]


Compute = Callable[[], Computed]
"""Computes a merge, from the weights as they are when it is called."""


class Backend(ABC):
    """Does tasks and reports events. It knows nothing of methods."""

    ahead: int = 1
    """How many merges may be decided before the first of them is computed: many where time is virtual, 1 where it is
    real. A strategy that wants to know the gradients gets them before it goes on, in either case."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since the run began."""

    @abstractmethod
    def dispatch(self, tasks: Tasks, version: int) -> None:
        """Let devices begin, from weights of a version."""

    @abstractmethod
    def next(self, wake_at: float | None) -> Event | None:
        """Wait for what happens next, at most until ``wake_at``; None if nothing is under way that could happen."""

    @abstractmethod
    def cohort(self, k: int, size: int | None) -> Ints:
        """Return the devices of the k-th cohort: some drawn at random, or all, of those that are available."""

    @abstractmethod
    def prepare(self, merges: Sequence[Merge]) -> list[Compute]:
        """Do what can be done for some merges before their weights are known."""

    def resume(self, dispatched: int) -> None:  # noqa: B027 - only real backends need it
        """Go on in a new process, after a number of dispatches that another process made."""

    def fills(self, merge: Merge) -> float:
        """Return the share of the memory for prepared merges that one fills; no more are decided when it is full."""
        return 0.0
