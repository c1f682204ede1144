"""Interface of backends, which execute tasks: on a virtual clock in a simulation, or on Flower nodes."""

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
    """New values of the running statistics that changed."""
    loss: float = math.nan
    """Mean loss of the contributors; NaN if unknown."""


@dataclass(frozen=True, eq=False)
class Computed:
    """What was computed for a merge."""

    change: Change | None
    """Change of the model; None if nothing was delivered."""
    spread: GradientStats | None = None
    """Gradient statistics, if the merge requested them."""
    losses: Floats | None = None
    """Losses of the devices, if the merge requested them; NaN where nothing was delivered."""

    @classmethod
    def recorded(cls, gradients: Mapping[str, Any] | None, losses: Sequence[float | None] | None) -> Computed:
        """Return the recorded result of a merge that an earlier process computed."""
        spread = None if gradients is None else GradientStats.of(**gradients)
        return cls(None, spread, None if losses is None else np.array(losses, dtype=np.float64))


Compute = Callable[[], Computed]
"""Function that computes a merge from the present weights."""


class Backend(ABC):
    """Executes tasks and reports events."""

    ahead: int = 1
    """Number of merges that may be decided before the first of them is computed; 1 on a real clock."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since the run began."""

    @abstractmethod
    def dispatch(self, tasks: Tasks, version: int) -> None:
        """Start tasks from the weights of a version."""

    @abstractmethod
    def next(self, wake_at: float | None) -> Event | None:
        """Wait for the next event, at most until ``wake_at``; None if no further event can occur."""

    @abstractmethod
    def cohort(self, k: int, size: int | None) -> Ints:
        """Return the devices of the k-th cohort: ``size`` of the available ones at random, or all of them."""

    @abstractmethod
    def prepare(self, merges: Sequence[Merge]) -> list[Compute]:
        """Prepare the computation of some merges, as far as it does not depend on the weights."""

    def resume(self, dispatched: int) -> None:  # noqa: B027 - only real backends need it
        """Continue in a new process, after the dispatches that an earlier process made."""

    def fills(self, merge: Merge) -> float:
        """Return the share of the memory for prepared merges that a merge needs."""
        return 0.0
