"""What a strategy is told, and what it can do: events in, actions out.

    Started, Arrivals, Merged, Timer   ──►   Strategy.react(view, event)   ──►   dispatch tasks, merge, wake, stop

Devices that are asked at the same moment, from the same weights, are one :class:`Tasks`. A synchronous method waits for
all of them at once (``together``); an asynchronous one hears of each when it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from adelfl.theory.gradient_stats import GradientStats

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tasks:
    """Work for some devices, which start from the same weights at the same moment.

    Attributes
    ----------
    devices : ndarray of int, shape (U,)
        Device numbers, ascending.
    batch : ndarray of int, shape (U,)
        Samples per step; 0 lets a device sit out.
    steps : int
        Local iterations E.
    rate : float
        Learning rate of the local steps.
    cutoff : float
        Seconds after dispatch by which an upload must be in; infinite for none.
    width : ndarray, shape (U,), or None
        Share of the hidden units that each device trains; None for the whole model.
    together : bool
        Whether the devices are reported in one event, at the cutoff; otherwise each in its own, when it is done.
    early : bool
        Whether that event comes as soon as every device has delivered everything.
    """

    devices: Ints
    batch: Ints
    steps: int
    rate: float
    cutoff: float = np.inf
    width: Floats | None = None
    together: bool = True
    early: bool = False


@dataclass(frozen=True)
class Started:
    """The run begins."""


@dataclass(frozen=True, eq=False)
class Arrivals:
    """What came back of :class:`Tasks`, or of one of its devices.

    Attributes
    ----------
    tasks : Tasks
        What was asked, of the devices that this event is about.
    number : int
        Which tasks of the run they are, from 0.
    version : int
        Version of the weights that they started from.
    began : float
        When they were dispatched.
    z : ndarray of int, shape (U,)
        Layers that were finished in time over all steps, from the last layer of the first step on.
    seconds : ndarray, shape (U,)
        How long each device computed; NaN for one from which nothing came.
    upload : ndarray, shape (U,)
        How long a whole upload took; NaN where nothing came.
    """

    tasks: Tasks
    number: int
    version: int
    began: float
    z: Ints
    seconds: Floats
    upload: Floats


@dataclass(frozen=True, eq=False)
class Merged:
    """A merge was done.

    Attributes
    ----------
    version : int
        Version of the weights after it.
    spread : GradientStats or None
        Statistics of the gradients that were merged, if the merge asked for them.
    """

    version: int
    spread: GradientStats | None = None


@dataclass(frozen=True)
class Timer:
    """The moment that ``wake_at`` named."""


Event = Started | Arrivals | Merged | Timer


@dataclass(frozen=True, eq=False)
class Merge:
    """Move the weights by what was delivered.

        w^l ← w^l + Σ_u A[u,l] (w_u^l − w_start^l)          of = "changes": eq. (5), FedAvg, FedBuff
        w^l ← w^l + Σ_u A[u,l] (w_u^l − w^l)                of = "models": FedAsync

    Attributes
    ----------
    arrivals : tuple of Arrivals
        Whose work.
    A : tuple of ndarray, each of shape (U, L)
        How much each device's layer counts.
    of : {"changes", "models"}
        What is averaged.
    spread : bool
        Whether the strategy wants to know the statistics of the gradients before it goes on.
    """

    arrivals: tuple[Arrivals, ...]
    A: tuple[Floats, ...]
    of: Literal["changes", "models"] = "changes"
    spread: bool = False


@dataclass(frozen=True, eq=False)
class Actions:
    """What a strategy wants done, in this order: merge, dispatch, wake, stop."""

    merge: Merge | None = None
    dispatch: tuple[Tasks, ...] = ()
    wake_at: float | None = None
    stop: bool = False


@dataclass(frozen=True, eq=False)
class View:
    """What a strategy may look at when it reacts.

    Attributes
    ----------
    now : float
        Seconds since the run began.
    budget : float
        Seconds that the run may take.
    version : int
        Number of merges so far.
    cohort : callable
        ``cohort(k, size)`` gives the devices of the k-th draw of a random cohort, or every device that is idle if
        ``size`` is None.
    """

    now: float
    budget: float
    version: int
    cohort: Callable[[int, int | None], Ints] = field(repr=False)

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return max(0.0, self.budget - self.now)
